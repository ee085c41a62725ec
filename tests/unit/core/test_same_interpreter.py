"""Becoming a module in the same interpreter: what the module sees is what a new one would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from python_path import python_path

_BEFORE = """
import os, signal, sys
from ascendtune.core.same_interpreter import become_module
signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
env = {name: value for name, value in os.environ.items() if name != "GONE"}
become_module([sys.executable, "-m", "told", "a b", "-c"], env | dict([each.split("=") for each in sys.argv[1:]]))
print("returned")
"""
_TOLD = """
import json, os, signal, sys
print(json.dumps({
    "pid": os.getpid(),
    "words": sys.argv[1:],
    "name": __name__,
    "main": sys.modules["__main__"].__file__ == __file__,
    "imports_stay": "ascendtune.core.same_interpreter" in sys.modules,
    "gone": os.environ.get("GONE"),
    "new": os.environ.get("NEW"),
    "handlers": [signal.getsignal(each) == signal.SIG_DFL for each in (signal.SIGTERM, signal.SIGHUP)],
}), flush=True)
sys.exit(7)
"""


def _start(tmp_path: Path, *variables: str) -> tuple[subprocess.Popen[str], str]:
    (tmp_path / "told.py").write_text(_TOLD)
    process = subprocess.Popen(
        [sys.executable, "-c", _BEFORE, *variables],
        env=os.environ | {"GONE": "1", "PYTHONPATH": python_path(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, process.communicate()[0]


def test_the_module_runs_as_the_program_of_this_process(tmp_path: Path) -> None:
    process, said = _start(tmp_path, "NEW=2")
    seen: dict[str, Any] = json.loads(said)
    assert seen == {
        "pid": process.pid,
        "words": ["a b", "-c"],
        "name": "__main__",
        "main": True,
        "imports_stay": True,
        "gone": None,
        "new": "2",
        "handlers": [True, False],
    }
    assert process.returncode == 7


@pytest.mark.parametrize("variable", ["LD_PRELOAD=x", "PYTHONHASHSEED=1", "MALLOC_ARENA_MAX=2"])
def test_variables_that_need_a_new_interpreter_prevent_the_same_one(tmp_path: Path, variable: str) -> None:
    assert _start(tmp_path, variable)[1] == "returned\n"
