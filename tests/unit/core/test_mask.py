from __future__ import annotations

import pytest

from ascendtune.core.mask import Mask, command_without_secrets


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
        ("tokens_per_second: 812.5, max_length: 2048", "tokens_per_second: 812.5, max_length: 2048"),
    ],
)
def test_names_hosts_and_addresses_are_masked_in_text(text: str, masked: str) -> None:
    assert Mask(users=["wanglei"], hosts=["npu-a7"], versions=["23.0.2.1"]).text(text) == masked


def test_environment_and_names_that_are_words() -> None:
    env = {"WANDB_API_KEY": "a b c", "HOME": "/root", "PATH": "/usr/bin"}
    told = Mask(users=["root"]).environment(env)
    assert told == "HOME=/root\nPATH=/usr/bin\nWANDB_API_KEY=***\n"


def test_a_command_keeps_all_but_its_secrets() -> None:
    argv = ["env", "HF_TOKEN=hf_abcdefghijklmnop", "train.py", "--hub_token", "abc", "--max_tokens", "512", "10.0.0.1"]
    assert command_without_secrets(argv) == [
        *("env", "HF_TOKEN=***", "train.py", "--hub_token", "***", "--max_tokens", "512", "10.0.0.1")
    ]
    assert command_without_secrets(["--use-auth-token", "--seed", "--api-key=xyz"]) == [
        *("--use-auth-token", "--seed", "--api-key=***")
    ]
