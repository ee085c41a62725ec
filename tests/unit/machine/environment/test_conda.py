"""Cloning and renaming conda environments, with a stand-in for conda (fake_conda.py): no real one was available."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from ascendtune.core.errors import AscendtuneError
from ascendtune.machine.environment.conda import Conda

_PACKAGES = [
    {"name": "python", "version": "3.11.9", "build_string": "h955ad1f_0", "channel": "defaults"},
    {"name": "torch", "version": "2.6.0", "build_string": "pypi_0", "channel": "pypi"},
]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    root = tmp_path / "miniconda3"
    for place in (root, root / "envs/old"):
        place.mkdir(parents=True)
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
    assert clone[1:] == ["create", "--yes", "--name", "new", "--clone", str(old)]
    assert removal[1:] == ["remove", "--yes", "--prefix", str(old), "--all"]
    assert conda.clone("old", "new") == 2
    conda.remove(old)
    assert set(conda.environments()) == {"base", "new"}


def test_clone_to_a_path_is_found_by_its_path(env: dict[str, str], tmp_path: Path) -> None:
    conda = Conda.find(env)
    place = tmp_path / "miniconda3/envs/by-path"
    assert conda.commands("old", str(place), then_remove=False)[0][2:5] == ["--yes", "--prefix", str(place)]


def test_clone_that_lacks_a_package_is_an_error_and_nothing_is_removed(env: dict[str, str]) -> None:
    conda = Conda.find({**env, "FAKE_CONDA_LOSES": "torch"})
    with pytest.raises(AscendtuneError) as caught:
        conda.clone("old", "new")
    assert caught.value.code == "clone-differs" and "torch 2.6.0" in str(caught.value)
    assert set(conda.environments()) == {"base", "old", "new"}


def test_failure_of_conda_is_reported_with_its_words(env: dict[str, str]) -> None:
    with pytest.raises(AscendtuneError) as caught:
        Conda.find({**env, "FAKE_CONDA_FAILS": "create"}).clone("old", "new")
    assert caught.value.code == "conda-failed" and "disk quota" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("old", "base", "path-exists"),
        ("absent", "new", "unknown-name"),
        ("old", "--yes", "invalid-value"),
        ("old", "a/b", "invalid-value"),
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
