"""A child that is forked after the libraries were imported is one that was started, as far as it and others can see."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from preloaded import Preloaded

pytestmark = pytest.mark.long

PROBE = str(Path(__file__).parents[1] / "preloaded_probe.py")


def _seen(how: str, directory: Path, **variables: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, PROBE, how],
        cwd=directory,
        env={**os.environ, "ONLY_HERE": "wörd", "TMPDIR": str(directory), "TZ": "UTC-3", **variables},
        capture_output=True,
        text=True,
        start_new_session=True,
        umask=0o27,
    )
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("how", ["tell", "start", "become"])
def test_forked_child_sees_what_a_started_one_sees(how: str, _libraries: Preloaded, tmp_path: Path) -> None:
    code, expected = _seen(how, tmp_path)
    with _libraries.children():
        forked, seen = _seen(how, tmp_path)
    assert forked == code == 7 and seen == expected
    assert "ONLY_HERE=wörd" in seen["environ"] and seen["leads"] == [True, True]


def test_forked_child_has_a_safe_path_where_it_is_asked_for(_libraries: Preloaded, tmp_path: Path) -> None:
    _, usual = _seen("tell", tmp_path)
    _, expected = _seen("tell", tmp_path, PYTHONSAFEPATH="1")
    with _libraries.children():
        assert _seen("tell", tmp_path, PYTHONSAFEPATH="1")[1] == expected
    assert usual["path"] == [str(Path(PROBE).parent)] != expected["path"]


def test_forked_child_is_a_child_that_can_be_signalled(_libraries: Preloaded) -> None:
    with _libraries.children():
        child = subprocess.Popen([sys.executable, "-m", "ascendtune", "devices", "--json"], stdout=subprocess.PIPE)
        process = psutil.Process(child.pid)
        assert process.ppid() == os.getpid() and process.cmdline()[1:] == ["-m", "ascendtune", "devices", "--json"]
        child.kill()
    assert child.communicate()[0] == b"" and child.returncode == -signal.SIGKILL
    assert not psutil.pid_exists(child.pid)


def test_interrupt_before_the_program_runs_ends_the_child_as_after_exec(_libraries: Preloaded) -> None:
    argv = [sys.executable, "-m", "ascendtune", "--help"]
    with _libraries.children():
        for _ in range(10):
            child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            child.send_signal(signal.SIGINT)
            assert "_forget_program" not in child.communicate()[1]
            assert child.returncode in (-signal.SIGINT, 130)


def test_interrupt_waits_as_after_exec_until_it_is_unblocked(_libraries: Preloaded) -> None:
    with _libraries.children():
        done = subprocess.run([sys.executable, PROBE, "become, blocked"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (5, "went on while blocked\n"), done.stderr


def test_child_whose_interpreter_starts_differently_is_started(_libraries: Preloaded) -> None:
    program = "import sys; print('torch' in sys.modules)"
    with _libraries.children():
        for argv, env in (
            ([sys.executable, "-c", program], None),
            ([sys.executable, PROBE, "tell"], {**os.environ, "PYTHONHASHSEED": "5"}),
        ):
            done = subprocess.run(argv, env=env, capture_output=True, text=True)
            assert done.stdout == "False\n" if env is None else "PYTHONHASHSEED=5" in json.loads(done.stdout)["environ"]


def test_copies_of_our_modules_share_nothing(_libraries: Preloaded) -> None:
    with _libraries.children():
        done = subprocess.run([sys.executable, PROBE, "copies"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "checked\n"), done.stderr


def test_program_after_exec_gets_modules_in_which_nothing_has_run(_libraries: Preloaded, tmp_path: Path) -> None:
    program = [sys.executable, PROBE, "become, ours"]
    with _libraries.children():
        done = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and "Usage: ascendtune" in done.stdout and "MARKED" not in done.stdout, done.stderr
