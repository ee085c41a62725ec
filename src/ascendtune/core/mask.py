"""Masks secrets, names of users and hosts, and addresses in texts that leave the machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import PurePath

# pad_token and other tokens of a tokenizer are not secret.
_NOT_OF_A_TOKENIZER = "".join(
    rf"(?<!(?:{words})[_-])"
    for words in (
        "pad|eos|bos|unk|sep|cls|new|end|bad|fim|per|max|boi|eoi",
        "mask|stop|next|last|tool|each|prev",
        "image|video|audio|first|start|think|draft|begin|extra",
        "vision|system|prompt|forced|prefix|suffix|middle|number",
        "special|context|current|longest",
    )
)
# The groups are atomic: a name is tried at its beginning only, and a long word is read once.
_SECRET_NAME = (
    rf"(?>[\w.-]*{_NOT_OF_A_TOKENIZER}token(?![\w.-])"
    r"|[\w.-]*(?:secret|passw(?:or)?d|passphrase|passcode|pswd|credential|api[ _-]?key|access[_-]?(?:key|code)"
    r"|private[_-]?key|sshpass|_pwd|webhook|key[_-]data|dockerconfigjson"
    r"|(?:sign(?:ing)?|encrypt(?:ion)?|master|session|account|storage|shared|wandb|swanlab|auth|license|subscription)[_-]?key)"
    r"[\w.-]*+"
    r"|[\w.-]*(?:密码|口令|密钥|令牌|凭据|凭证)(?!\w)"
    r"|(?:[\w.-]*[_.-])?(?:db|database|sql|mysql|pg|redis|mongo|smtp|i?mail|ftp|ldap|ssh|sudo|user|root|admin|login"
    r"|proxy|registry|docker|git|vpn|key|cert|keystore)[_.-]?pass(?![\w.-]))"
)
_WEAK_NAME = r"(?>(?:[\w.-]*[_.-])?(?:auth|creds?|cookies?|pw)(?![\w.-])|pass(?=[\"']?=|[\"']\s*:))"
"""Names of secrets, and also of settings: `use_auth: true`, `pw=12.5`."""
_NO_SECRET = r"""(?!["']?(?:true|false|none|null|yes|no|on|off|\d{1,3}(?:\.\d+)?)(?![\w.-]))"""
_QUOTE = r"""(?:\\*["'])"""
"""Also matches JSON within JSON."""
_VALUE = (
    r"""(?:\*{3}(?![^\s"',;)}\]])|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|\\+(["']).*?(?<!\\)\\+\2"""
    rf"""|{_QUOTE}?(?:[^\s"',;}}\]]|[,;](?=[^\s"'}}\]]))+)"""
)
_SIGN = rf"""{_QUOTE}?\]?\s*(?:==|=>|[=:：])\s*[\[(]?(?:[a-z]\w{{,30}}\(?(?=\\*["']|\*{{3}}))?"""
"""An assignment, as in `{"token": `, `environ["TOKEN"] = ` and `token=str(`."""
_ASSIGNED = re.compile(rf"(?i)((?<![\w.-]){_SECRET_NAME}{_SIGN}){_VALUE}")
_WEAKLY_ASSIGNED = re.compile(rf"(?i)((?<![\w.-]){_WEAK_NAME}{_SIGN}){_NO_SECRET}{_VALUE}")
_WORKING_DIRECTORY = re.compile(rf"""(?i)((?<![\w.-])-{{0,2}}pwd{_SIGN})(?!["'\\]*[/~.$]){_VALUE}""")
"""A password named pwd; PWD=/path is a directory."""
_VARIABLE = re.compile(
    rf"((?<![\w.-])[A-Z][A-Z0-9_]*_(?:PASS|PW|AUTH|CREDS?|COOKIES?|KEY|PAT|JWT)=){_NO_SECRET}{_VALUE}"
)
_CLOUD_KEY = re.compile(
    rf"(?i)((?<![\w.-])(?:--?|[\w.-]*[_.-])?[as]k(?:{_SIGN}|(?:{_QUOTE},)?[ \t]+){_QUOTE}?)"
    r"(?!/)[a-z0-9+/]{16,}+={0,2}"
)
"""The access key (AK) and the secret key (SK) of Huawei's cloud and others."""
_LISTED = re.compile(
    rf"(?i)(\bname{_QUOTE}?:[ \t]*{_QUOTE}?{_SECRET_NAME}{_QUOTE}?,?[ \t]*\n?[^\n]{{0,40}}?\bvalue{_QUOTE}?:[ \t]*)"
    rf"{_VALUE}"
)
"""Variables as Kubernetes and others list them: a name, and its value beside it or in the next line."""
_DECLARED = re.compile(
    rf"(?i)((?:(?<![\w.-])(?-i:ENV|setenv)[ \t]+{_SECRET_NAME}[ \t]+"
    rf"|\({_QUOTE}{_SECRET_NAME}{_QUOTE},[ \t]*(?={_QUOTE})"
    rf"|[|│┃║][ \t]*{_SECRET_NAME}[ \t]*[|│┃║][ \t]*(?![|│┃║]))){_NO_SECRET}{_VALUE}"
)
"""Assignments in a Dockerfile and in csh, as a pair in Python, and in a row of a table."""
_SAID = re.compile(r"((?:密码|口令|密钥|令牌)(?:是|为)\s*)[!-~]{4,}")
_OPTION = re.compile(rf"(?i)((?<![\w.-])--?(?=[a-z]){_SECRET_NAME}(?:{_QUOTE},)?[ \t]+(?!{_QUOTE}?-)){_VALUE}")
"""`--token VALUE`, and the same in a list of Python strings."""
_WEAK_OPTION = re.compile(
    rf"(?i)((?<![\w.-])--?(?=[a-z])(?:[\w.-]*[_.-])?(?:auth|creds?|cookies?|pwd?)"
    rf"(?:{_QUOTE},)?[ \t]+(?!{_QUOTE}?-)){_NO_SECRET}{_VALUE}"
)
_BEARER = re.compile(r"""(?i)(\b(?:bearer|basic|authorization["']?:\s*["']?\w+))\s+[\w.~+/=-]{8,}""")
_AUTHORIZATION = re.compile(
    r"""(?i)(\bauthorization["']?\s*[:=]\s*["']?)(?!(?:bearer|basic|token|digest|negotiate|\*)|\w+\s)[^\s"']{8,}"""
)
_COOKIE = re.compile(r"""(?i)((?<![\w-])(?:set-)?cookie:[ \t]*)[^\s"'][^\n"']*""")
_IN_COMMAND = re.compile(
    r"(?i)(\bsshpass[ \t]+-p[ \t]*"
    r"|\b(?:mysql|mariadb)\w*\b[^\n|;]{0,120}?[ \t]-p(?=[^\s])"
    r"|\b(?:docker|podman|nerdctl|ctr|helm)[^\n|;]{0,60}?[ \t]login\b[^\n|;]{0,120}?[ \t]-p[ \t=]+"
    r"|\b(?:curl|wget|httpie)\b[^\n|;]{0,120}?[ \t](?:-u|-U|--user|--proxy-user)[ \t=]*[\"']?[^\s:\"'/]+:"
    r"|\bredis-cli\b[^\n|;]{0,120}?[ \t]-a[ \t]+"
    r"|\b(?:un)?zip\b[^\n|;]{0,60}?[ \t](?-i:-P)[ \t]*"
    r"|\bmachine[ \t]+\S{1,100}[ \t]+login[ \t]+\S{1,100}[ \t]+password[ \t]+"
    r"|\b(?:wandb|swanlab)[ \t]+login[ \t]+(?:--relogin[ \t]+)?(?:-k[ \t]+)?(?=[A-Za-z0-9_-]{16})"
    r"|\baws_secret_access_key[ \t]+(?=[^\s=:])"
    r"|\becho[ \t]+(?=[^\n|]{1,80}\|[ \t]*(?:sudo|passwd|chpasswd)\b))"
    rf"{_VALUE}"
)
"""Passwords as arguments of commands, without a name."""
_HOOK = re.compile(
    r"(?i)(://(?:hooks\.slack\.com/services|[\w.-]{1,80}/open-apis/bot/v2/hook|[\w.]{0,20}discord(?:app)?\.com/api/webhooks"
    r"|[\w.-]{1,80}webhook\.office\.com|api\.telegram\.org|api\.day\.app|sc(?:tapi)?\.ftqq\.com"
    r"|[\w.-]{1,80}(?:/[\w.-]{1,40}){0,4}/(?:web)?hooks?)/)[^\s\"'<>*][^\s\"'<>]*"
)
"""Webhooks: everyone with such a link may write to the group's chat."""
_NAMED_HEX = re.compile(
    r"(?i)(\b(?:wandb|swanlab|login|api)\b(?:(?!commit|sha|hash|rev|git|snapshots|blob|\b[0-9a-f]{40}\b)[^\n]){0,40})"
    r"(?<![0-9a-f])[0-9a-f]{40}\b"
)
"""The key of wandb has the form of a git commit: the text before it distinguishes them."""
# A password may hold '@': the last one before the path ends it.
_IN_URL = re.compile(r"""(://)[^/\s:@]*(?::[^/\s"'<>]*)?@""")
_IN_PATH = re.compile(r"(://[^/\s]+/t/)[^/\s]+(?=/)")
"""The token of a conda channel."""
_IN_QUERY = re.compile(r"""(?i)([?&](?:[\w-]*sig(?:nature)?|key|code)=)[^&\s"'<>]+""")
"""Parameters of a link that give access to everyone who has it."""
_PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----)[^-]*")
_KEY = re.compile(
    r"\b(?:(?:hf_(?![a-z]+_[a-z_]+(?![\w-]))|sk-|gh[oprsu]_|github_pat_|glpat-|A[KS]IA|AIza|nvapi-|xox[bp]-|ms-(?=[0-9a-f]{8}-))"
    r"[A-Za-z0-9_-]{12,}"
    r"|wandb_v1_[A-Za-z0-9_]{20,}|(?<!-)eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
_NAMED = (_ASSIGNED, _WEAKLY_ASSIGNED, _WORKING_DIRECTORY, _VARIABLE, _SAID, _OPTION, _WEAK_OPTION)
_PATTERNS = (
    _HOOK, _AUTHORIZATION, _COOKIE, *_NAMED, _CLOUD_KEY, _LISTED, _DECLARED, _IN_COMMAND, _NAMED_HEX
)  # fmt: skip
_V4 = re.compile(r"(?<![A-Za-z0-9.])\d{1,3}(?:\.\d{1,3}){3}(?![A-Za-z0-9.]*\d)")
_V6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]*+:[0-9A-Fa-f:.]*+(?!\w)")
_MAC = re.compile(r"\b(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}\b")
_IS_SECRET = re.compile(_SECRET_NAME, re.IGNORECASE)
_IS_SECRET_OPTION = re.compile(
    rf"(?i)(?=-)(?:{_SECRET_NAME}|--?(?:[\w.-]*[_.-])?(?:auth|creds?|cookies?|pwd?|[as]k))", re.IGNORECASE
)
_MAIL = re.compile(r"(?<![\w.+@/-])[\w.+-]{1,64}+@(?:[A-Za-z0-9-]{1,63}\.){1,6}(?P<top>[A-Za-z]{2,24})(?![\w@-])")
_NOBODY = ("git@", "noreply@", "no-reply@")
_UNITS = ("service", "socket", "target", "scope", "slice", "mount", "timer", "device", "path", "so", "py")
"""Suffixes of systemd units: user@1000.service."""
_HOST = re.compile(
    r"(?:(?<=://)|(?<![\w.@/-]))(?=[a-z-]{0,40}\d)[a-z][a-z0-9-]{0,62}(?:\.[a-z0-9-]{1,63}){1,6}(?![\w-]|\.\w)",
    re.IGNORECASE,
)
_IS_NODE = re.compile(r"(?i)(?:^|[^a-z])(?:node|gpu|npu|host|server|worker|master|login|compute|dgx|atlas|ip|rank|pod)")
_PRIVATE_DOMAINS = ("local", "internal", "lan", "corp", "localdomain", "intranet", "arpa")
_PUBLIC_DOMAINS = re.compile("com|cn|net|org|edu|io|ai|de|eu|jp|uk|hk|tw|sg|fr|kr")
_HARMLESS_VARIABLE = re.compile(
    r"(?i)(?:ASCEND|ATB_|ACL|ASDOPS|HCCL|HCCN|LCCL|LCAL|NPU_|TORCH|PYTORCH|MINDSPORE|MS_|CUDA|NVIDIA|NVPL|NV_|NCCL|CUDNN"
    r"|CUBLAS|GLOO|UCX_|OMPI_|PMI|MPI|OMP_|KMP_|GOMP|MKL_|OPENBLAS|NUMEXPR|RANK|LOCAL_|WORLD_SIZE|GROUP_|ROLE_|NODE_RANK"
    r"|MASTER_(?:ADDR|PORT)|SLURM(?!.*LIST)|HF_|HUGGINGFACE|TRANSFORMERS|DATASETS_|ACCELERATE|FSDP|DEEPSPEED|DS_|TRITON"
    r"|XLA|TF_|TOKENIZERS_|SAFETENSORS|MODELSCOPE|USE_|WANDB_|SWANLAB_|BITSANDBYTES|BNB_|FLASH_|VLLM_|LD_|PYTHON|CONDA"
    r"|MAMBA_|PIP_|UV_|LC_|XDG_|TERM|KUBERNETES_|MALLOC|GLIBC_|JEMALLOC|CMAKE|TE_|TBE_|GE_|PROF|RT_|RAY_|ROCM|HSA_|HIP_"
    r"|RUST_|DEBIAN_FRONTEND|AUTO_)\w*"
    r"|(?:TASK_QUEUE_ENABLE|CPU_AFFINITY_CONF|COMBINED_ENABLE|INF_NAN_MODE\w*|MULTI_STREAM_MEMORY_REUSE|STREAMS_PER_DEVICE"
    r"|CC|CXX|CPP|C\w*FLAGS|LDFLAGS|MAX_JOBS|CPATH|HOME|USER|LOGNAME|SHELL|SHLVL|PWD|OLDPWD|LANG|LANGUAGE|TZ|TMPDIR|TMP"
    r"|TEMP|DISPLAY|HOSTNAME|VIRTUAL_ENV|container|IS_SANDBOX|_|(?:https?|all|no|ftp)_proxy)"
    r"|\w*(?:_VISIBLE_DEVICES|_HOME|PATH|_ROOT|_DIR|_CACHE|_CA_BUNDLE|_CERT|_CERTS|_CAINFO|_CERTS_FILE|CERTS_FILE_PATH"
    r"|_CERT_FILE|_LOG_LEVEL|_NUM_THREADS)"
)
"""Variables that diagnosis needs; the values of other variables are masked."""
_HARMLESS_VALUE = re.compile(r"(?i)[01]?|true|false|yes|no|on|off|none")
_SURE_KEY = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{30,}|sk-(?:\w{1,40}-){0,8}[A-Za-z0-9]{20,}|gh[po]_[A-Za-z0-9]{30,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
    r"|AKIA[A-Z0-9]{16}|xox[bp]-[\w-]{20,}|ms-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b"
)
_TOO_COMMON = ("root", "localhost", "user", "admin", "ubuntu", "node", "master", "worker")


def without_secrets(text: str) -> str:
    """The text with *** in place of everything that looks like a password, a token or a key."""
    text = _IN_URL.sub(r"\1***@", text)
    text = _IN_PATH.sub(r"\1***", text)
    text = _IN_QUERY.sub(r"\1***", text)
    text = _PRIVATE_KEY.sub(r"\1***", text)
    # First the names with a word before the secret: `Authorization: Basic SECRET`, `token: Bearer SECRET`.
    text = _BEARER.sub(r"\1 ***", text)
    for pattern in _PATTERNS:
        text = pattern.sub(r"\1***", text)
    return _KEY.sub("***", text)


def is_name_of_secret(name: str) -> bool:
    """Whether `name`, of a variable or a key, is the name of a password, a token or a key."""
    return _IS_SECRET.fullmatch(name) is not None


def contains_secret(text: str) -> bool:
    """Whether `text` certainly contains a secret: a URL with credentials, or a key in a known service's format.

    Stricter than `without_secrets`, which may mask too much: a model may well be called ms-marco-MiniLM-L-6-v2.
    """
    return bool(_IN_URL.search(text) or _SURE_KEY.search(text))


def command_without_secrets(argv: Sequence[str]) -> list[str]:
    """`without_secrets` for a command, in which a secret may also follow its option: `--token VALUE`."""
    return [
        "***" if _IS_SECRET_OPTION.fullmatch(before) and not argument.startswith("-") else without_secrets(argument)
        for before, argument in zip(["", *argv], argv, strict=False)
    ]


class Mask:
    """Masks each name or address by the same placeholder throughout, so two machines can still be told apart."""

    def __init__(self, *, users: Iterable[str] = (), hosts: Iterable[str] = (), versions: Iterable[str] = ()) -> None:
        """`versions` are numbers that look like addresses (driver 23.0.2.1) and are not masked."""
        names = [(each, "user") for each in users] + [(each, "host") for each in hosts]
        self._names = {name: kind for name, kind in names if len(name) > 2 and name.lower() not in _TOO_COMMON}
        self._kept = frozenset(versions)
        self._seen: dict[str, str] = {}

    @classmethod
    def of_this_machine(cls, env: Mapping[str, str], versions: Iterable[str] = ()) -> Mask:
        """A mask for the names of this host and of its user."""
        host = os.uname().nodename
        users = {env.get("USER", ""), PurePath(env.get("HOME", "")).name, _user()} - {""}
        return cls(users=users, hosts=dict.fromkeys((host, host.partition(".")[0])), versions=versions)

    def text(self, text: str) -> str:
        text = without_secrets(text)
        text = _MAIL.sub(self._mail, text)
        text = _MAC.sub(lambda found: self._named("mac", found[0]), text)
        text = _V6.sub(lambda found: self._v6(found[0]), text)
        text = _V4.sub(lambda found: self._address(found[0]), text)
        text = _HOST.sub(self._host, text)
        for name, kind in self._names.items():
            # As in torchinductor_NAME, and in the NAME_PID_RANK of torchrun.
            text = re.sub(
                rf"(?<![A-Za-z0-9-]){re.escape(name)}(?![A-Za-z0-9-]|_[^\W\d])", self._named(kind, name), text
            )
        return text

    def environment(self, env: Mapping[str, str]) -> str:
        """NAME=value lines, sorted; values are shown only if the variable is known not to contain a secret."""
        lines = (
            self.text(f"{name}={value}")
            if _HARMLESS_VALUE.fullmatch(value)
            or (_HARMLESS_VARIABLE.fullmatch(name) and not _IS_SECRET.fullmatch(name))
            else f"{name}=***"
            for name, value in env.items()
        )
        return "".join(f"{line}\n" for line in sorted(lines))

    def _mail(self, found: re.Match[str]) -> str:
        is_kept = found["top"].lower() in _UNITS or found[0].lower().startswith(_NOBODY)
        return found[0] if is_kept else self._named("mail", found[0])

    def _host(self, found: re.Match[str]) -> str:
        """Mask another node's full name; names of modules, files and public servers have other forms."""
        first, *between, top = found[0].lower().split(".")
        is_node = top in _PRIVATE_DOMAINS or (
            bool(between) and _PUBLIC_DOMAINS.fullmatch(top) and _IS_NODE.search(first)
        )
        return self._named("host", found[0]) if is_node else found[0]

    def _v6(self, text: str) -> str:
        """`text` may end with a full stop, or with the colon before a message."""
        address = text.rstrip(".")
        address = address if address.endswith("::") else address.rstrip(":")
        return self._address(address) + text[len(address) :]

    def _address(self, text: str) -> str:
        try:
            address = ip_address(text)
        except ValueError:
            return text
        # Network masks and addresses of the machine itself reveal nothing.
        if text in self._kept or address.is_loopback or address.is_unspecified or text.startswith("255."):
            return text
        return self._named("ip", text)

    def _named(self, kind: str, text: str) -> str:
        if text not in self._seen:
            count = sum(each.startswith(f"<{kind}-") for each in self._seen.values())
            self._seen[text] = f"<{kind}-{count + 1}>"
        return self._seen[text]


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
