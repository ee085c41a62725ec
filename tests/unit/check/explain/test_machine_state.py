"""Remedies held against the machine that the logs are of."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.check.explain.answer.machine_state import Here, on_this_machine, this_machine
from ascendtune.check.explain.explain import Explanation, explain


def _sentences(explanation: Explanation, **changed: object) -> tuple[str, ...]:
    environment = {"HCCL_BUFFSIZE": "400", "HF_TOKEN": "hf_secret", "HTTPS_PROXY": "http://me:hidden@proxy:80"}
    here = Here(environment, {"yaml": "6.0"}.get, lambda port: port == 29500,
                {Path("/data"): 3 << 30}.get, lambda: 1024,
                {"moon.tides": frozenset({"moonrise"})}.__getitem__, {"yaml.tides"}.__contains__)  # fmt: skip
    first = explanation.verdict.first
    assert first is not None
    remedies = (str(changed["remedy"]),) if "remedy" in changed else first.remedies
    return on_this_machine(first, remedies, explanation.facts, here)


@pytest.mark.parametrize(
    ("log", "remedy", "expected"),
    [
        ("ModuleNotFoundError: No module named 'peft'", "-", "peft is not installed in"),
        ("ModuleNotFoundError: No module named 'yaml'", "-", "the job used another Python"),
        ("ModuleNotFoundError: No module named 'peft.moon'", "-", "peft is not installed in"),
        ("ModuleNotFoundError: No module named 'yaml.tides'", "-", "the job used another Python"),
        ("ModuleNotFoundError: No module named 'yaml.moon'", "-", "has no yaml.moon"),
        ("ImportError: cannot import name 'moonrsie' from 'moon.tides'", "-", "has moonrise, not moonrsie"),
        ("AttributeError: module 'moon.tides' has no attribute 'moonrise'", "-", "used another Python or copy"),
        ("MASTER_PORT=29500\nOSError: [Errno 98] Address already in use", "another port", "port 29500 is taken"),
        ("MASTER_PORT=29501\nOSError: [Errno 98] Address already in use", "another port", "port 29501 is free"),
        ("OSError: [Errno 28] No space left on device: '/data'", "-", "/data exists, 3.0 GiB are free there"),
        ("OSError: [Errno 28] No space left on device: '/data/a/b'", "-", "exist; 3.0 GiB are free in /data"),
        ("OSError: [Errno 28] No space left on device: '/none'", "-", "/none does not exist"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/a'", "-", "/data/a does not exist"),
        ("RuntimeError: x", "set HCCL_BUFFSIZE=200", "HCCL_BUFFSIZE is 400 in this shell"),
        ("RuntimeError: x", "HCCL_IF_IP=10.0.0.1", "HCCL_IF_IP is not set in this shell"),
        ("OSError: [Errno 24] Too many open files", "`ulimit -n 65536`", "the limit of open files is 1024"),
    ],
)
def test_the_state_of_things_that_a_remedy_names_is_checked(
    explained: Callable[..., Explanation], log: str, remedy: str, expected: str
) -> None:
    assert any(expected in each for each in _sentences(explained(f"{log}\n"), remedy=remedy))


def test_space_beside_a_program_that_was_killed_is_not_told(explained: Callable[..., Explanation]) -> None:
    explanation = explained("E1120 10:11:12.000 failed (exitcode: -9) local_rank: 3 (pid: 4711) of binary: /data\n")
    assert explanation.verdict.first is not None and explanation.verdict.first.entry.id == "sigkill"
    assert not any("/data" in each for each in _sentences(explanation))


def test_value_of_a_secret_is_not_shown(explained: Callable[..., Explanation]) -> None:
    sentences = _sentences(explained("RuntimeError: x\n"), remedy="export HF_TOKEN=…")

    assert sentences == ("HF_TOKEN is set in this shell",)


def test_password_of_a_proxy_is_not_shown(explained: Callable[..., Explanation]) -> None:
    sentences = _sentences(explained("RuntimeError: x\n"), remedy="correct HTTPS_PROXY")

    assert sentences == ("HTTPS_PROXY is http://***@proxy:80 in this shell",)


def test_only_logs_of_this_machine_are_held_against_it(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("ModuleNotFoundError: No module named 'no_such_module_anywhere'\n")

    assert explain([str(log)]).now() == ()
    assert "is not installed in" in explain([str(log)], is_here=True).now()[0]


def _unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.7", "0.0.0.0"])
def test_port_that_a_process_listens_on_is_taken(address: str) -> None:
    with socket.socket() as server:
        server.bind((address, 0))
        server.listen()
        assert this_machine().is_taken(server.getsockname()[1])
    assert not this_machine().is_taken(_unused_port())


def test_port_that_may_not_be_used_is_not_called_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    class Denied(socket.socket):
        bind = deny

    monkeypatch.setattr(socket, "socket", Denied)

    assert not this_machine().is_taken(81)


def test_space_is_that_of_an_existing_path(tmp_path: Path) -> None:
    here = this_machine()

    assert here.free_bytes(tmp_path) is not None
    assert here.free_bytes(tmp_path / "none") is None


def test_directory_that_may_not_be_entered_is_not_called_absent(explained: Callable[..., Explanation]) -> None:
    def denied(path: Path) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    first = explained("OSError: [Errno 28] No space left on device: '/data'\n").verdict.first
    assert first is not None
    here = Here({}, lambda _: None, lambda _: False, denied, lambda: 7)

    assert on_this_machine(first, (), {}, here) == ("/data may not be entered by this user",)


def test_module_of_an_installed_package_is_looked_for_without_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "moon_of_modules"
    (package / "sea").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit\n")
    (package / "tides.cpython-311-x86_64-linux-gnu.so").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    has_module = this_machine().has_module

    assert has_module("moon_of_modules.tides") and has_module("moon_of_modules.sea")
    assert not has_module("moon_of_modules.ebb")


def test_names_of_a_module_are_read_without_running_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "moon_of_names"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit\n")
    (package / "tides.py").write_text(
        "from os import path as way\n_LAZY = {'sea': ['ebb']}\nif True:\n    flow = 7\n\n\ndef rise():\n    inner = 7\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    names_in = this_machine().names_in

    assert names_in("moon_of_names.tides") == {"way", "_LAZY", "sea", "ebb", "flow", "rise"}
    assert names_in("moon_of_names.none") == frozenset()
    assert names_in("no_such_module_anywhere") == frozenset()
