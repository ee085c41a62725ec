"""Cloning and renaming conda environments, with a stand-in (fake_conda.py) that answers as conda does."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ascendtune.core.errors import AscendtuneError
from ascendtune.machine.environment.conda import Conda, _cloning_into

pytestmark = pytest.mark.long

_PACKAGES = [
    {"name": "python", "version": "3.11.9", "build_string": "h955ad1f_0", "channel": "defaults"},
    {"name": "torch", "version": "2.6.0", "build_string": "pypi_0", "channel": "pypi"},
]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    root = tmp_path / "miniconda3"
    for place in (root, root / "envs/old"):
        (place / "conda-meta").mkdir(parents=True)
        (place / "conda-meta/history").touch()
        (place / "packages.json").write_text(json.dumps(_PACKAGES))
    (root / "condabin").mkdir()
    program = root / "conda"
    fake = Path(__file__).with_name("fake_conda.py")
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(fake))} "$@"\n')
    program.chmod(0o755)
    return {"CONDA_EXE": str(program), "FAKE_CONDA_ROOT": str(root), "PATH": "/usr/bin:/bin"}


def test_clone_has_the_same_packages_and_the_old_one_can_be_removed(env: dict[str, str]) -> None:
    conda = Conda.find(env)
    old = conda.environments()["old"]
    clone, removal = conda.commands("old", "new", then_remove=True)
    assert clone[1:] == ["create", "--json", "--yes", "--name", "new", "--clone", str(old)]
    assert removal[1:] == ["remove", "--json", "--yes", "--prefix", str(old), "--all"]
    assert conda.clone("old", "new") == 2
    conda.remove(old)
    assert set(conda.environments()) == {"base", "new"}


@pytest.mark.long
@pytest.mark.parametrize("place", ["miniconda3/envs/by-path", "elsewhere/by-path"])
def test_environment_is_found_by_its_path(env: dict[str, str], tmp_path: Path, place: str) -> None:
    conda, new = Conda.find(env), str(tmp_path / place)
    old = str(tmp_path / "miniconda3/envs/old")
    assert conda.commands(f"{old}/", new, then_remove=True)[1][-2] == old
    assert conda.clone(old, new) == 2
    assert conda.prefix_of(new) == Path(new)
    assert conda.clone(new, "by-name") == 2


def test_environment_with_the_name_of_another_keeps_its_path(env: dict[str, str], tmp_path: Path) -> None:
    conda = Conda.find(env)
    shutil.copytree(tmp_path / "miniconda3/envs/old", tmp_path / "miniconda3/envs/sub/envs/old")
    (tmp_path / "miniconda3/envs/sub/conda-meta").mkdir()
    assert conda.prefix_of("old") == tmp_path / "miniconda3/envs/old"
    assert str(tmp_path / "miniconda3/envs/sub/envs/old") in conda.environments()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"errors": None, "message": "channel is gone"}, ": channel is gone"),
        (
            {"errors": [{"message": "[Errno 28] No space left"}, {"message": "()"}]},
            ": [Errno 28] No space left",
        ),
        ({"message": "The environment\nis corrupted."}, ": The environment is corrupted."),
        ({"error": "FileNotFoundError(2, 'x')", "traceback": "…"}, ": FileNotFoundError(2, 'x')"),
        ([], ": CondaError: disk quota"),
    ],
)
def test_reason_of_a_failure_is_read_from_condas_json(env: dict[str, str], answer: object, reason: str) -> None:
    told = json.dumps(answer)
    with pytest.raises(AscendtuneError) as caught:
        Conda.find({**env, "FAKE_CONDA_FAILS": "create", "FAKE_CONDA_ANSWER": told}).clone("old", "new")
    assert caught.value.code == "conda-failed" and reason in str(caught.value)


def test_directory_that_a_failed_clone_left_is_named(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "left/bin").mkdir(parents=True)
    with pytest.raises(AscendtuneError) as caught:
        Conda.find(env).commands("old", str(tmp_path / "left"), then_remove=False)
    assert caught.value.code == "path-exists" and "not a conda environment" in str(caught.value)


@pytest.mark.parametrize(
    ("held", "then_remove", "what", "remedy"),
    [
        (2, False, "with all 2 packages of old", "nothing is left to clone"),
        (2, True, "with all 2 packages of old", "what is left of the renaming: conda remove --prefix "),
        (1, True, "it has 1 of the 2 packages of old", "conda remove --name new --all"),
    ],
)
def test_an_interrupted_clone_is_compared_with_the_old_environment(
    env: dict[str, str], tmp_path: Path, held: int, then_remove: bool, what: str, remedy: str
) -> None:
    new = tmp_path / "miniconda3/envs/new"
    shutil.copytree(tmp_path / "miniconda3/envs/old", new)
    (new / "packages.json").write_text(json.dumps(_PACKAGES[:held]))
    with pytest.raises(AscendtuneError) as caught:
        Conda.find(env).commands("old", "new", then_remove=then_remove)
    assert caught.value.code == "path-exists"
    assert what in str(caught.value) and remedy in str(caught.value.remedy)


def test_clone_that_conda_is_still_making_is_named(env: dict[str, str], tmp_path: Path) -> None:
    """`kill -9` of the command lets conda go on."""
    os.mkfifo(tmp_path / "miniconda3/waits")
    name = f"new-{os.getpid()}"
    argv = [env["CONDA_EXE"], "create", "--name", name, "--clone", str(tmp_path / "miniconda3/envs/old")]
    with subprocess.Popen(argv, env={**env, "FAKE_CONDA_WAITS": str(tmp_path / "miniconda3/waits")}) as conda:
        # open() returns when the other side reads: conda runs.
        with (tmp_path / "miniconda3/waits").open("w"), pytest.raises(AscendtuneError) as caught:
            Conda.find(env).commands("old", name, then_remove=False)
        assert caught.value.code == "target-in-use" and f"(process {conda.pid})" in str(caught.value)
        assert conda.wait(60) == 0
    with pytest.raises(AscendtuneError, match="with all 2 packages of old"):
        Conda.find(env).commands("old", name, then_remove=False)


@pytest.mark.parametrize("is_path", [False, True])
def test_clone_of_another_user_is_in_the_way_at_the_same_path_only(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_path: bool
) -> None:
    new = str(tmp_path / "new") if is_path else f"new-{os.getpid()}"
    argv = ["bash", "-c", "read", "conda", "create", "--prefix" if is_path else "--name", new, "--clone", "old"]
    another = os.getuid() + 1
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as other:
        # Popen returns when the kernel has closed its pipe, which is before /proc shows the new command line.
        while not Path(f"/proc/{other.pid}/cmdline").read_bytes():
            time.sleep(0.01)
        monkeypatch.setattr(os, "getuid", lambda: another)
        assert _cloning_into(new) == ([other.pid] if is_path else [])
        assert other.stdin is not None
        other.stdin.close()


def test_clone_that_lacks_a_package_is_an_error_and_nothing_is_removed(env: dict[str, str]) -> None:
    conda = Conda.find({**env, "FAKE_CONDA_LOSES": "torch"})
    with pytest.raises(AscendtuneError) as caught:
        conda.clone("old", "new")
    assert caught.value.code == "clone-differs"
    assert "missing torch 2.6.0; additional nothing" in str(caught.value)
    assert set(conda.environments()) == {"base", "old", "new"}


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("old", "base", "path-exists"),
        ("absent", "new", "unknown-name"),
        ("old", "--yes", "invalid-value"),
        ("old", "a/b", "invalid-value"),
        ("old", "a b", "invalid-value"),
        ("old", "/data/a b", "invalid-value"),
        ("/nowhere", "new", "unknown-name"),
        ("base", "new", "target-in-use"),
    ],
)
def test_wrong_names_are_refused_before_conda_changes_anything(
    env: dict[str, str], old: str, new: str, code: str
) -> None:
    with pytest.raises(AscendtuneError) as caught:
        Conda.find(env).commands(old, new, then_remove=True)
    assert caught.value.code == code


def test_active_environment_is_not_renamed(env: dict[str, str], tmp_path: Path) -> None:
    conda = Conda.find({**env, "CONDA_PREFIX": str(tmp_path / "miniconda3/envs/old")})
    with pytest.raises(AscendtuneError) as caught:
        conda.commands("old", "new", then_remove=True)
    assert caught.value.code == "target-in-use"
    assert conda.commands("old", "new", then_remove=False)


def test_missing_conda_is_named() -> None:
    with pytest.raises(AscendtuneError) as caught:
        Conda.find({"PATH": ""})
    assert caught.value.code == "program-missing"
