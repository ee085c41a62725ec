"""Odd values in what engines are told: each arrives as it is, or is refused in words."""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import submissions
from ascendtune.core.errors import InputError
from ascendtune.job.backend import compose, docker, kubernetes, slurm
from ascendtune.job.backend.submission import ContainerMount, Submission

_ODD = st.text(st.sampled_from(" ,;:'\"`$(){}[]\\#%&*!?|<>=~@-_.aZ0é中🙂\t"), min_size=1, max_size=12)
_FOLDERS = _ODD.filter(lambda text: text not in (".", "..") and "\t" not in text)
_WORDS = st.one_of(
    _ODD,
    st.sampled_from(
        ["a\nb", "--x", "$HOME", "$(HOME)", "$$(HOME)", "${HOME}", "a: b", "# a", "y", "<name>", "<if name>", "## a"]
    ),
)

_NOTE = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["NOTED"], "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), os.getcwd(), *sys.argv[1:]]) + chr(10))
"""
_few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _submission(place: Path, folder: str, word: str) -> Submission:
    here = place / folder
    plain = submissions.submission("cpu", 1, str(here))
    return replace(
        plain,
        argv=("ascendtune", "train", f"{here}/recipe.yaml", word),
        mounts=(ContainerMount(here / "data"), ContainerMount(here / "runs", writable=True)),
        variables={"XDG_CACHE_HOME": f"{here}/cache"},
    )


@pytest.fixture
def bin_directory(tmp_path: Path) -> Path:
    """Programs that note how they were called."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("docker", "srun"):
        (directory / name).write_text(_NOTE)
        (directory / name).chmod(0o755 | stat.S_IXUSR)
    return directory


def _calls(script: str, bin_directory: Path) -> list[list[str]]:
    noted = bin_directory / "noted"
    noted.write_text("")
    env = {**os.environ, "PATH": f"{bin_directory}:{os.environ['PATH']}", "NOTED": str(noted)}
    env |= {"SLURM_CPUS_PER_TASK": "1"}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in noted.read_text().splitlines()]


@pytest.mark.long
@_few
@given(folder=_FOLDERS, word=_WORDS)
def test_docker_gets_odd_paths_and_words_unchanged(tmp_path: Path, bin_directory: Path, folder: str, word: str) -> None:
    asked = _submission(tmp_path, folder, word)
    run = _calls(docker.write(asked, tmp_path), bin_directory)[-1]
    assert run[2] == "run" and run[-len(asked.argv) :] == list(asked.argv)
    options = dict(itertools.pairwise(run))
    assert options["--workdir"] == str(asked.directory)
    mounts = [run[index + 1] for index, option in enumerate(run) if option == "--mount"]
    fields = [next(csv.reader([text], strict=True)) for text in mounts]
    for mount, found in zip(asked.mounts, fields, strict=True):
        path = str(mount.path)
        expected = ["type=bind", f"source={path}", f"target={path}", *(() if mount.writable else ("readonly",))]
        assert found == expected
    assert (asked.directory / "runs").is_dir()


@pytest.mark.long
@given(folder=_FOLDERS, word=_WORDS)
def test_compose_reads_odd_paths_and_words_unchanged(folder: str, word: str) -> None:
    asked = _submission(Path("/srv"), folder, word)
    service = _interpolated(yaml.safe_load(compose.write(asked, Path("/no/such/root"))))["services"]["train"]
    assert service["command"] == list(asked.argv)
    assert service["working_dir"] == str(asked.directory)
    assert [each["source"] for each in service["volumes"]] == [str(mount.path) for mount in asked.mounts]
    assert f"XDG_CACHE_HOME={asked.directory}/cache" in service["environment"]


def _interpolated(value: Any) -> Any:
    """As Compose reads it, in an environment where every variable has the value WRONG."""
    if isinstance(value, dict):
        return {key: _interpolated(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return list(map(_interpolated, value))
    if not isinstance(value, str):
        return value
    return re.sub(r"\$(\$|\w+|\{[^}]*\})", lambda found: "$" if found[1] == "$" else "WRONG", value)


@pytest.mark.long
@pytest.mark.parametrize("kind", kubernetes.KINDS)
@_few
@given(folder=_FOLDERS.filter(lambda text: ":" not in text), word=_WORDS)
def test_kubernetes_reads_odd_paths_and_words_unchanged(kind: str, folder: str, word: str) -> None:
    asked = submissions.in_a_cluster(_submission(Path("/srv"), folder, word))
    documents = list(yaml.safe_load_all(kubernetes.write(asked, kind, f"name: {word!r}\n")))
    containers = list(_containers(documents))
    assert containers
    for container in containers:
        assert [_expanded(text) for text in container["args"]] == list(asked.argv)
        assert container["workingDir"] == str(asked.directory)
        assert {str(mount.path) for mount in asked.mounts} <= {each["mountPath"] for each in container["volumeMounts"]}


def _containers(value: Any) -> Iterator[dict[str, Any]]:
    """Those of all pods in a manifest."""
    if isinstance(value, dict):
        yield from value.get("containers", ())
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _containers(inner)


def _expanded(text: str) -> str:
    """As the kubelet reads an argument, in an environment where every variable has the value WRONG."""
    return re.sub(r"\$(\$|\([^)]*\))", lambda found: "$" if found[1] == "$" else "WRONG", text)


@pytest.mark.long
@_few
@given(folder=_FOLDERS, word=_WORDS)
def test_srun_gets_odd_paths_and_words_unchanged(tmp_path: Path, bin_directory: Path, folder: str, word: str) -> None:
    asked = _submission(tmp_path, folder, word)
    asked.directory.mkdir(exist_ok=True)
    (call,) = _calls(slurm.write(asked), bin_directory)
    assert call[1] == str(asked.directory) and call[-len(asked.argv) :] == list(asked.argv)


@given(value=_ODD.filter(lambda text: "\t" not in text))
def test_an_option_of_sbatch_stays_one_argument(value: str) -> None:
    option = f"--comment={value}"
    script = slurm.write(replace(submissions.submission("cpu", 1), sbatch=(option,)))
    directives = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]
    assert _arguments(directives[-1]) == [option]


def _arguments(line: str) -> list[str]:
    """As sbatch 22.05 reads a directive (`_get_argument` in src/sbatch/opt.c)."""
    found, word, quote, is_escaped = [], "", "", False
    for character in line + " ":
        if is_escaped:
            word, is_escaped = word + character, False
        elif character == "\\":
            is_escaped = True
        elif quote:
            word, quote = (word, "") if character == quote else (word + character, quote)
        elif character in "\"'":
            quote = character
        elif character == "#":
            break
        elif character.isspace():
            found, word = [*found, word] if word else found, ""
        else:
            word += character
    return found


@pytest.mark.parametrize("character", ["\n", "\r", "\x1b", "\0", "\x85", "\u2028", "\udcff"])
def test_a_path_that_no_file_can_hold_is_refused(character: str) -> None:
    plain = submissions.submission("cpu", 1)
    for odd in (
        {"directory": Path(f"/srv/a{character}b")},
        {"mounts": (ContainerMount(Path(f"/a{character}b")),)},
        {"sbatch": (f"--qos=a{character}b",)},
        {"partition": f"a{character}b"},
    ):
        with pytest.raises(InputError) as caught:
            replace(plain, **odd)  # type: ignore[arg-type]
        assert caught.value.code == "invalid-character"


@pytest.mark.parametrize("character", ["\0", "\udcff"])
def test_an_argument_that_no_file_can_hold_is_refused(character: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(submissions.submission("cpu", 1), argv=("ascendtune", f"name=a{character}b"))
    assert caught.value.code == "invalid-character"


def test_a_colon_in_a_path_is_refused_for_kubernetes() -> None:
    asked = submissions.in_a_cluster(replace(submissions.submission("cpu", 1), mounts=(ContainerMount(Path("/a:b")),)))
    with pytest.raises(InputError) as caught:
        kubernetes.write(asked, "job", "")
    assert caught.value.code == "invalid-character"
