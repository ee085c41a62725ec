"""Files for engines, compared with golden files and with the engines' own rules."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

import submissions
from ascendtune.job.backend import docker
from ascendtune.job.backend.submission import HEADER

WRITTEN = submissions.written()
COMPARED = submissions.golden()
MANIFESTS = [name for name in WRITTEN if name.split("_")[0] in submissions.kubernetes.KINDS]
SCRIPTS = [name for name in WRITTEN if name.endswith((".sh", ".sbatch"))]
FIELDS = tomllib.loads((Path(__file__).parents[3] / "fixtures" / "kubernetes" / "fields.toml").read_text())


def test_golden_directory_holds_only_compared_files() -> None:
    assert {path.name for path in submissions.GOLDEN.iterdir()} == set(COMPARED)


@pytest.mark.parametrize("name", COMPARED)
def test_written_submission_equals_the_golden_file(name: str) -> None:
    assert (submissions.GOLDEN / name).read_text() == COMPARED[name], "look at the difference, then `make golden`"


@pytest.mark.parametrize("name", WRITTEN)
def test_every_written_line_is_in_a_golden_file(name: str) -> None:
    engine = name.partition("_")[0]
    compared = {line for each, text in COMPARED.items() if each.startswith(f"{engine}_") for line in _plain(text)}
    assert [line for line in _plain(WRITTEN[name]) if line not in compared] == []


def _plain(text: str) -> list[str]:
    """Lines without what stands before the first word; without the heading, which counts devices."""
    return [line.strip(" -\\") for line in text.splitlines() if HEADER not in line]


def test_compose_files_follow_the_specification() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    package = pytest.importorskip("check_jsonschema")
    schema = json.loads((resources.files(package) / "builtin_schemas" / "vendor" / "compose-spec.json").read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    for name in (name for name in WRITTEN if name.startswith("compose")):
        assert not [error.message for error in validator.iter_errors(yaml.safe_load(WRITTEN[name]))]
    broken = yaml.safe_load(WRITTEN["compose_npu_2.yaml"])
    broken["services"]["train"]["shm_sizes"] = "1gb"
    assert list(validator.iter_errors(broken))


@pytest.mark.long
@pytest.mark.parametrize("name", MANIFESTS)
def test_core_kinds_follow_kubernetes_schemas(name: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    core = [each for each in map(_as_core, yaml.safe_load_all(WRITTEN[name])) if each is not None]
    assert core
    for each in core:
        validator.validate(each, validator.latest_version(), strict=True)


def test_the_schemas_find_a_wrong_field() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    (pod,) = [
        each for each in map(_as_core, yaml.safe_load_all(WRITTEN["volcano_npu_2.yaml"])) if each["kind"] != "ConfigMap"
    ]
    pod["template"]["spec"]["containers"][0]["arg"] = []
    with pytest.raises(validator.ValidationError):
        validator.validate(pod, validator.latest_version(), strict=True)


@pytest.mark.parametrize("name", MANIFESTS)
def test_custom_kinds_have_only_fields_of_their_definitions(name: str) -> None:
    for content in yaml.safe_load_all(WRITTEN[name]):
        known = FIELDS.get(f"{content['apiVersion']} {content['kind']}")
        if known is not None:
            for path, value in _paths({"spec": content["spec"]}, "", known.get("template")):
                _check(path, value, known["fields"])


def _as_core(content: dict[str, Any]) -> dict[str, Any] | None:
    """A core kind as it is, a custom one as a PodTemplate; None where it has none."""
    known = FIELDS.get(f"{content['apiVersion']} {content['kind']}")
    if known is None:
        return content
    if "template" not in known:
        return None
    found = next(
        value for path, value in _paths({"spec": content["spec"]}, "", known["template"]) if path == known["template"]
    )
    if "core" in known:
        version, kind = known["core"].split()
        return {"apiVersion": version, "kind": kind, "metadata": content["metadata"], "spec": found["spec"]}
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": content["metadata"], "template": found}


def _paths(value: Any, path: str, end: str | None) -> Iterator[tuple[str, Any]]:
    """Every field below `value` with its path, not looking into `end`."""
    if path and not path.endswith("[]"):
        yield path, value
    if path == end:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            # The names of replicas are the user's.
            key = "{}" if path.endswith("ReplicaSpecs") else key
            yield from _paths(inner, f"{path}.{key}".lstrip("."), end)
    elif isinstance(value, list):
        for inner in value:
            if isinstance(inner, dict):
                yield from _paths(inner, f"{path}[]", end)


def _check(path: str, value: Any, fields: dict[str, Any]) -> None:
    if path == "spec" or path.endswith("{}"):
        return
    assert path in fields
    kinds = {"integer": int, "string": str, "array": list, "map": dict, "boolean": bool}
    expected = fields[path]
    if isinstance(expected, list):
        assert value in expected
    else:
        assert type(value) is kinds[expected], path


def _shellcheck() -> str:
    beside = Path(sys.executable).with_name("shellcheck")
    program = str(beside) if beside.exists() else shutil.which("shellcheck")
    return program or pytest.skip("no shellcheck")


def test_shellcheck_finds_nothing_in_written_scripts(tmp_path: Path) -> None:
    program = _shellcheck()
    scripts = {name: WRITTEN[name] for name in SCRIPTS}
    for name in MANIFESTS:
        for number, script in enumerate(_scripts_in(yaml.safe_load_all(WRITTEN[name]))):
            # The environment's variables are not assigned in here.
            scripts[f"{name}_{number}.sh"] = f"#!/bin/bash\n# shellcheck disable=SC1091,SC2154\n{script}\n"
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run([program, *scripts], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def _scripts_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if value.get("args", [""])[0] == "bash":
            yield value["args"][2]
        value = list(value.values())
    if not isinstance(value, str | int | None | bool):
        for inner in value:
            yield from _scripts_in(inner)


def test_docker_script_fails_without_node_rank(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(docker.write(submissions.submission("cpu", 2, str(tmp_path)), tmp_path))
    done = subprocess.run(["bash", script], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode != 0
    assert "NODE_RANK: 0, 1, …" in done.stderr


@pytest.mark.long
def test_secrets_are_passed_on_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_never_to_be_seen")
    assert not [name for name, text in submissions.written().items() if "hf_never" in text]
    assert all("HF_TOKEN" in text for name, text in submissions.written().items() if not name.startswith("slurm"))


def test_no_container_is_privileged() -> None:
    assert not [name for name, text in WRITTEN.items() if "privileged" in text.lower().replace("no-new-privileges", "")]
