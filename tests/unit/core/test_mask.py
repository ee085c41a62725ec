from __future__ import annotations

import time

import pytest

from ascendtune.core.mask import Mask, command_without_secrets, contains_secret


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("HF_TOKEN=hf_abcdefghijklmnop", "HF_TOKEN=***"),
        ('"api_key": "0123456789"', '"api_key": ***'),
        ("https://me:pass@mirror.example/x", "https://***@mirror.example/x"),
        ("https://me:p@ss@h/x and http://h:80/a@b", "https://***@h/x and http://h:80/a@b"),
        ("https://conda.example/t/tk-1/chan", "https://conda.example/t/***/chan"),
        ("Authorization: Bearer abcdefghijk", "Authorization: Bearer ***"),
        ("rank 3 at 10.20.0.11:60000, then 10.20.0.12, 10.20.0.11", "rank 3 at <ip-1>:60000, then <ip-2>, <ip-1>"),
        ("fe80::1ff:fe23:4567:890a via 52:54:00:ab:cd:ef", "<ip-1> via <mac-1>"),
        ("/home/wanglei/run on npu-a7 by wanglei", "/home/<user-1>/run on <host-1> by <user-1>"),
        ("driver 23.0.2.1 firmware 7.1.0.11.220", "driver 23.0.2.1 firmware 7.1.0.11.220"),
        ("127.0.0.1 255.255.255.0 0000:C1:00.0 10:08:28", "127.0.0.1 255.255.255.0 0000:C1:00.0 10:08:28"),
        ('DB_PASSWORD=\'two, words\' "api_key": "a \\" b" end', 'DB_PASSWORD=*** "api_key": *** end'),
        (
            r'{"body": "{\"api_key\": \"a b\"}"} api_key: [\'x\', 2]',
            r'{"body": "{\"api_key\": ***}"} api_key: [***, 2]',
        ),
        ("vllm serve m --api-key a,b --port 1", "vllm serve m --api-key *** --port 1"),
        ("['t.py', '--hub_token', 'abc d', '--use-token', '-x']", "['t.py', '--hub_token', ***, '--use-token', '-x']"),
        ("login(token='a b') (API key: 'a b')", "login(token=***) (API key: ***)"),
        (
            "environ['API_KEY'] = 'a b' token=b'c d' token=Secret('e') token => f",
            "environ['API_KEY'] = *** token=b*** token=Secret(***) token => ***",
        ),
        ("Authorization: Token 0123456789", "Authorization: Token ***"),
        ("https://h/f?Expires=1&Signature=a%2Fb&x=2", "https://h/f?Expires=1&Signature=***&x=2"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nx+/=\n-----END", "-----BEGIN RSA PRIVATE KEY-----***-----END"),
        ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3In0.dozjg, ghs_0123456789abcdef", "got ***, ***"),
        (
            "no route to fe80::1: at fe80::2. ::ffff:10.0.0.1 10.0.0.2_1_0",
            "no route to <ip-1>: at <ip-2>. <ip-3> <ip-4>_1_0",
        ),
        ("/tmp/torchinductor_wanglei npu-a7_12_0 npu-a7_set", "/tmp/torchinductor_<user-1> <host-1>_12_0 npu-a7_set"),
        ("tokens_per_second: 812.5, max_length: 2048", "tokens_per_second: 812.5, max_length: 2048"),
    ],
)
def test_names_hosts_and_addresses_are_masked_in_text(text: str, masked: str) -> None:
    mask = Mask(users=["wanglei"], hosts=["npu-a7"], versions=["23.0.2.1"])
    assert mask.text(text) == masked == mask.text(masked)


def test_environment_and_names_that_are_words() -> None:
    env = {"WANDB_API_KEY": "a b c", "HOME": "/root", "PATH": "/usr/bin"}
    told = Mask(users=["root"]).environment(env)
    assert told == "HOME=/root\nPATH=/usr/bin\nWANDB_API_KEY=***\n"


def test_a_command_keeps_all_but_its_secrets() -> None:
    argv = ["env", "HF_TOKEN=hf_abcdefghijklmnop", "train.py", "--hub_token", "abc", "--max_tokens", "512", "10.0.0.1"]
    assert command_without_secrets(argv) == [
        *("env", "HF_TOKEN=***", "train.py", "--hub_token", "***", "--max_tokens", "512", "10.0.0.1")
    ]
    assert command_without_secrets(["--use-auth-token", "--seed", "--api-key=xyz", "--obs_sk", "abc"]) == [
        *("--use-auth-token", "--seed", "--api-key=***", "--obs_sk", "***")
    ]


_SECRET = "Xq7vLm2Zk9"
_HEX = "0123456789abcdef0123456789abcdef01234567"
_NAMES = (
    *(
        "DB_PASS",
        "MY_SMTP_PASS",
        "REGISTRY_PW",
        "REDIS_AUTH",
        "MY_CREDS",
        "SIGNING_KEY",
        "COOKIE",
        "ACCESS_CODE",
        "pwd",
    ),
    *(
        "db_password",
        "passwd",
        "hub_token",
        "wandb_key",
        "HF_TOKEN",
        "apiKey",
        "x-api-key",
        "client_secret",
        "authToken",
    ),
    *("auth", "db_pass", "master_key", "mysql_pwd", "client-key-data", "密码", "数据库密码", "口令"),
)
_FORMS = (
    *("{n}={v}", "export {n}='{v}'", '{n}="{v}"', "env {n}={v} python t.py", "x {n} = {v} y"),
    *(
        '{{"{n}": "{v}"}}',
        '{{"{n}":"{v}","x":1}}',
        "{{'{n}': '{v}'}}",
        r"{{\"{n}\": \"{v}\"}}",
        "{n}: {v}",
        '{n}: "{v}"',
    ),
)
_OPTIONS = ("--{n} {v}", "--{n}={v}", "['--{n}', '{v}']")


def test_value_of_a_secret_is_masked_in_every_form() -> None:
    for name in _NAMES:
        options = _OPTIONS if name.isascii() and name.islower() else ()
        for form in (*_FORMS, *options):
            text = form.format(n=name, v=_SECRET)
            masked = Mask().text(text)
            assert _SECRET not in masked, text
            assert Mask().text(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        *(f"wandb login {_HEX}", f"WANDB {_HEX} peer", f"wandb: api key {_HEX}", f"sshpass -p {_SECRET} ssh root@h"),
        *(f"mysql -uroot -p{_SECRET}", f"curl -s -u alice:{_SECRET} https://x", f"curl --user 'a:{_SECRET}' x"),
        *(f"docker login -u me -p {_SECRET} r", f"redis-cli -h x -a {_SECRET} ping", f"echo {_SECRET} | sudo -S ls"),
        *(f"密码：{_SECRET}", f"口令={_SECRET}", f"密码是{_SECRET}", f"machine h login u password {_SECRET}"),
        f"https://hooks.slack.com/services/T0/B0/{_SECRET}",
        f"https://open.feishu.cn/open-apis/bot/v2/hook/{_SECRET}",
        f"https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key={_SECRET}",
        f"https://oapi.dingtalk.com/robot/send?access_token={_SECRET}",
        f"postgres://u:{_SECRET}@h/d",
        *(f"Authorization: Basic {_SECRET}==", f"Authorization: {_SECRET}", f"auth: Bearer {_SECRET}"),
        *(f"Cookie: sid=1; t={_SECRET}", f"X-Auth-Token: {_SECRET}", f'{{"auths":{{"r":{{"auth":"{_SECRET}"}}}}}}'),
        *(f"GITHUB_PAT={_SECRET}", f"SLURM_JWT={_SECRET}", f"Ocp-Apim-Subscription-Key: {_SECRET}"),
        *(f"{form}{_SECRET}AbC1234" for form in ("AK=", "obs_sk: ", '"sk": "', "--ak ", "-sk=", "['--sk', '", "-ak=")),
        *(f"- name: HF_TOKEN\n  value: {_SECRET}", f'{{"name": "DB_PASSWORD", "value": "{_SECRET}"}}'),
        *(f"3: - name: HF_TOKEN\n4:   value: {_SECRET}", f"Step 3/9 : ENV HF_TOKEN {_SECRET}"),
        *(f"setenv API_KEY '{_SECRET}'", f"[('HF_TOKEN', '{_SECRET}'), ('A', 'b')]", f"| hub_token | {_SECRET} |"),
        *(f"│ HF_TOKEN   │ {_SECRET} │", f".dockerconfigjson: {_SECRET}"),
        *(f"TRAIN_ARGS=--hub_token *** --wandb_key {_SECRET}", f"SERVICE_KEY={_SECRET}", f"user=a,pass={_SECRET}"),
    ],
)
def test_secret_of_a_command_a_header_or_a_link_is_masked(text: str) -> None:
    masked = Mask().text(text)
    assert _SECRET not in masked and _HEX not in masked
    assert Mask().text(masked) == masked


def test_mail_addresses_and_nodes_are_masked() -> None:
    text = (
        "a.b@corp.example.com on gpu-node-17.corp.example.com, http://ip-10-0-0-1.ec2.internal:80 a.b@corp.example.com"
    )
    assert Mask().text(text) == "<mail-1> on <host-1>, http://<host-2>:80 <mail-1>"


@pytest.mark.parametrize(
    "text",
    [
        *("max_new_tokens=512", "pad_token=<pad>", "'eos_token': '</s>'", "mask_token=[MASK]", "--pad_token <pad>"),
        *(
            f"commit {_HEX}",
            f"wandb: git commit {_HEX}",
            f"models--x/snapshots/{_HEX}/config.json",
            f"git+https://h/a@{_HEX}",
        ),
        *(
            "PWD=/tmp/x",
            "OLDPWD=/root",
            "cd x && pwd",
            "use_auth: true",
            "auth=none",
            "SSH_AUTH_SOCK=/tmp/a",
            "author: b",
        ),
        *("pass=12 fail=3", "first pass: loading", "forward_pass: 0.5 s", "PASS: test_a", "pw: 120.5 W", "bypass=5"),
        *(
            "git@github.com:a/b.git",
            "user@1000.service",
            "libc.so@GLIBC_2.34",
            "transformers@v4.40.0",
            "@torch.no_grad()",
        ),
        *(
            "torch.nn.modules.linear",
            "worker1.log",
            "node-1.err.log",
            "google.protobuf.internal",
            "hf-mirror.com pypi.org",
        ),
        *(
            "message_key: messages",
            "key: value",
            "unexpected key 'lm_head.weight'",
            "unzip -p a.zip",
            "最大令牌数：512",
            "ls -sk /usr/local/Ascend/driver/lib64",
            "top_k=50 attn_mask=aaaaaaaaaaaaaaaaaaaa",
            "| hub_token | None |",
            "('pad_token', '<pad>')",
            "- name: LR\n  value: 1e-4",
        ),
        *("mysql 8.0 on port 3306", "docker run -p 80:80 img", "hf_hub_download(x)", "ms-marco-MiniLM-L-6-v2"),
        "sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "model.layers.0.self_attn.q_proj.weight checkpoint-500/model.safetensors",
    ],
)
def test_text_that_diagnosis_needs_is_not_masked(text: str) -> None:
    assert Mask(users=["wanglei"], hosts=["npu-a7"]).text(text) == text


def test_variables_that_are_not_known_to_be_harmless_are_masked() -> None:
    kept = [
        *(
            "ASCEND_RT_VISIBLE_DEVICES=0,1",
            "A_MODE=true",
            "FOO=1",
            "HCCL_CONNECT_TIMEOUT=1800",
            "LD_LIBRARY_PATH=/a:/b",
        ),
        *("MY_TOOL_HOME=/opt/x", "NCCL_DEBUG=INFO", "OMP_NUM_THREADS=8", "PWD=/tmp", "SLURM_JOB_ID=77"),
        *("PYTORCH_NPU_ALLOC_CONF=expandable_segments:True", "https_proxy=http://h:80"),
    ]
    masked = [
        *("ALERT_URL=x", "DOCKER_AUTH_CONFIG={}", "HF_AUTH=secret", "HF_TOKEN=a", "JDBC=u", "KUBECONFIG_DATA=a b"),
        *("LITELLM_MASTER=m", "SLURM_NODELIST=node[01-04]", "TRAIN_ARGS=--x y", "WANDB_API_KEY=b"),
    ]
    env = dict(each.split("=", 1) for each in (*kept, *masked))
    expected = [*kept, *(f"{each.partition('=')[0]}=***" for each in masked)]
    assert Mask().environment(env).splitlines() == sorted(expected)


_HOSTILE = (
    *(
        ":" * 60_000 + "g",
        "secret" * 10_000,
        "\\" * 60_000,
        "a:" * 30_000,
        '="' * 30_000,
        "curl " * 12_000,
        "://a." * 12_000,
    ),
    *(
        "wandb login " * 5_000,
        "a1-" * 20_000,
        "a@b." * 15_000,
        "auth_" * 12_000,
        "pad_token" * 6_000,
        "密码是 " * 15_000,
    ),
    *(
        "mysql " * 10_000,
        "docker login " * 5_000,
        "node1." * 10_000,
        "pwd=" * 15_000,
        "-p a.b=c:/@" * 6_000,
        *("-ak " * 15_000, "name:token\n" * 6_000, "('token'," * 7_000, "|token" * 10_000, "ENV a.token " * 5_000),
        " " * 60_000,
        "token='x" + "\\" * 60_000,
        r"token=\'x" + "\\" * 60_000,
        "eyJ-" * 15_000,
        "sk-" * 20_000,
    ),
)


@pytest.mark.parametrize("text", _HOSTILE, ids=range(len(_HOSTILE)))
def test_hostile_line_is_masked_in_bounded_work(text: str) -> None:
    begin = time.process_time()
    Mask(users=["wanglei"]).text(text)
    contains_secret(text)
    assert time.process_time() - begin < 5
