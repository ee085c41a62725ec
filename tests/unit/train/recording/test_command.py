"""The commands that are recorded, and how they are changed."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import forkserver, spawn, util
from pathlib import Path
from typing import Any

import pytest

from ascendtune.train.recording.children import followed_children
from ascendtune.train.recording.command import environment_of_recorded, recorded_command, runs_shell
from ascendtune.train.recording.request import PROGRAM, VARIABLE, RecordRequest

RUN = ["-m", PROGRAM]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py --lr 1", ["python", *RUN, "train.py", "--lr", "1"]),
        ("python3.11 -u -X dev train.py", ["python3.11", "-u", "-X", "dev", *RUN, "train.py"]),
        ("python -m torch.distributed.run a.py", ["python", *RUN, "-m", "torch.distributed.run", "a.py"]),
        ("srun -N 2 python train.py", ["srun", "-N", "2", "python", *RUN, "train.py"]),
        ("uv run train.py", ["uv", "run", *RUN, "train.py"]),
        ("python -c 0 train.py", None),
        ("python -", None),
        ("python", None),
        ("ls", None),
        ("git commit -m python", None),
        ("sh run.sh train.py", None),
        ("srun bash run.sh", None),
        (f"python -m {PROGRAM} train.py", None),
    ],
)
def test_program_is_run_by_the_recorder(command: str, expected: list[str] | None) -> None:
    assert recorded_command(command.split()) == expected


def console_script(directory: Path, first: str) -> Path:
    file = directory / "launcher"
    file.write_text(f"{first}\nprint()\n")
    file.chmod(0o755)
    return file


def test_console_script_is_run_by_its_interpreter(tmp_path: Path) -> None:
    file = console_script(tmp_path, f"#!{sys.executable}")
    assert recorded_command([str(file), "x"]) == [sys.executable, *RUN, str(file), "x"]
    console_script(tmp_path, "#!/usr/bin/env python3")
    assert recorded_command([str(file), "x"]) is None
    (tmp_path / "python").symlink_to(sys.executable)
    assert recorded_command([str(file), "x"]) == [str(tmp_path / "python"), *RUN, str(file), "x"]
    console_script(tmp_path, "#!/bin/sh")
    assert recorded_command([str(file), "x"]) is None


def test_children_of_another_python_are_left_alone(tmp_path: Path) -> None:
    own = Path(sys.executable).absolute().parent
    words = [sys.executable, "train.py"]
    assert recorded_command(words, own) == [sys.executable, *RUN, "train.py"]
    assert recorded_command(["nice", "-n", "5", *words], own) == ["nice", "-n", "5", sys.executable, *RUN, "train.py"]
    assert recorded_command(words, tmp_path) is None
    assert recorded_command(["git", "add", sys.executable, "train.py"], own) is None
    assert recorded_command([str(console_script(tmp_path, f"#!{sys.executable}"))], own) is None


def test_started_commands_are_changed_and_restored_after_the_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "request")
    # A stand-in for the recorder, which says what it was started with.
    package = tmp_path / "ascendtune" / "train" / "recording"
    package.mkdir(parents=True)
    for each in (package, *package.parents[:2]):
        (each / "__init__.py").touch()
    (package / "script.py").write_text(f"import os, sys; print(sys.argv[1:], os.environ.get({VARIABLE!r}))")
    (tmp_path / "train.py").write_text("print('not recorded')")
    command = [sys.executable, "train.py", "x"]

    def said(env: dict[str, str] | None = None) -> str:
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout.strip()

    def hooked() -> tuple[object, ...]:
        return subprocess.Popen.__init__, os.execv, os.execve, spawn.get_command_line, util.spawnv_passfds

    before = hooked()
    with followed_children():
        assert said() == "['train.py', 'x'] request"
        assert said({"PATH": "/bin"}) == "['train.py', 'x'] request"
        line = subprocess.run(f"{sys.executable} train.py", shell=True, cwd=tmp_path, capture_output=True, text=True)
        assert line.stdout == "not recorded\n"
        spawned = [str(word) for word in spawn.get_command_line(tracker_fd=3, pipe_handle=4)]
        assert any("record_spawned(tracker_fd=3, pipe_handle=4)" in word for word in spawned)
    assert before == hooked()
    assert said() == "not recorded"


def test_fork_server_is_started_with_the_recorder_and_the_resource_tracker_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "request")
    started: list[Any] = []
    monkeypatch.setattr(util, "spawnv_passfds", lambda path, words, descriptors: started.append(words[-1]) or 1)
    monkeypatch.setattr(forkserver, "_forkserver", forkserver.ForkServer())
    monkeypatch.setattr("multiprocessing.resource_tracker.ensure_running", lambda: None)
    with followed_children():
        forkserver._forkserver.ensure_running()  # type: ignore[attr-defined]
        util.spawnv_passfds(sys.executable, [sys.executable, "-c", "from x import main;main(3)"], [])  # type: ignore[attr-defined]
    assert "; record_fork_server(" in started[0]
    assert started[1] == "from x import main;main(3)"


def run_below_startup(directory: Path, *words: str) -> str:
    """What a Python program prints that a shell starts, where commands of ascendtune are recorded."""
    request = RecordRequest(str(directory / "recorded"), "1", "statistics", is_child=True)
    env = environment_of_recorded({**os.environ, "PYTHONPATH": str(directory / "mine")}, request)
    ended = subprocess.run(
        ["sh", "-c", '"$@"', "sh", sys.executable, *words],
        cwd=directory, env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def recorder_that_prints(directory: Path) -> None:
    """Stand-ins for the recorder and for torch, in the directory of the program."""
    package = directory / "ascendtune" / "train" / "recording"
    package.mkdir(parents=True)
    for each in (package, *package.parents[:2]):
        (each / "__init__.py").touch()
    (package / "script.py").write_text("def record_this_process(words): print('recorded:', *words)\n")
    (directory / "torch.py").write_text("print('torch')\n")


def test_python_program_of_a_shell_is_recorded_once_torch_is_imported_and_keeps_sitecustomize(tmp_path: Path) -> None:
    recorder_that_prints(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text("MINE = True\n")
    (tmp_path / "show.py").write_text(
        "import importlib.util, sys, sitecustomize\n"
        "print(sitecustomize.MINE, 'startup' in ''.join(sys.path), 'ascendtune' in sys.modules)\n"
        # As libraries look whether torch is installed.
        "assert importlib.util.find_spec('torch')\n"
        "import torch\n"
        "print('program', 'exec_module' in vars(torch.__loader__))\n"
    )
    said = run_below_startup(tmp_path, "show.py", "x").splitlines()
    assert said == ["True False False", "torch", "recorded: show.py x", "program False"]


def test_program_whose_import_of_torch_fails_is_not_recorded(tmp_path: Path) -> None:
    recorder_that_prints(tmp_path)
    (tmp_path / "torch.py").write_text("raise ImportError('broken')\n")
    program = "try:\n    import torch\nexcept ImportError as error:\n    print(error)\n"
    (tmp_path / "show.py").write_text(program)
    assert run_below_startup(tmp_path, "show.py") == "broken\n"


def test_recorder_itself_is_not_recorded_again(tmp_path: Path) -> None:
    recorder_that_prints(tmp_path)
    assert run_below_startup(tmp_path, "-c", f"import torch  # {PROGRAM}") == "torch\n"


def test_code_in_the_command_line_is_left_alone_below_startup(tmp_path: Path) -> None:
    assert run_below_startup(tmp_path, "-c", "import sys; print(sys.orig_argv[1], len(sys.argv))") == "-c 1\n"


@pytest.mark.parametrize(("command", "expected"), [("sh run.sh", True), ("nohup /bin/bash x", True), ("ls", False)])
def test_shells_are_told_from_other_programs(command: str, expected: bool) -> None:
    assert runs_shell(command.split()) == expected


def test_script_of_a_shell_starts_a_shell(tmp_path: Path) -> None:
    assert runs_shell([str(console_script(tmp_path, "#!/bin/sh"))])
