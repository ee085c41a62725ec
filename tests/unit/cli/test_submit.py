from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ascendtune.machine.vendor.npu import NpuVendor

ENGINES = ("docker", "compose", "slurm", "kubernetes")


@pytest.fixture
def ascendtune(in_process: Any) -> Any:
    return in_process


@pytest.fixture
def recipe(tmp_path: Path, tiny_model: Path) -> str:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "2 + 2?", "completion": "4"}) + "\n")
    content = {"name": "Two_plus.two", "model": {"path": str(tiny_model)}, "data": {"train": "rows.jsonl"}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    return "recipe.yaml"


@pytest.fixture
def submit(ascendtune: Any, recipe: str) -> Any:
    def call(to: str, *words: str, **env: str) -> Any:
        image = [] if to == "slurm" or "--image" in words else ["--image", "tune:1"]
        kind = [] if "--accelerator" in words else ["--accelerator", "cpu"]
        return ascendtune("submit", recipe, *words, *image, *kind, "--to", to, **env)

    return call


@pytest.mark.parametrize("to", ENGINES)
def test_the_file_goes_to_standard_output(submit: Any, tmp_path: Path, to: str) -> None:
    done = submit(to, "optim.epochs=2")
    assert done.returncode == 0, done.stderr
    assert "ascendtune-two-plus-two" in done.stdout
    assert f"train {tmp_path}/recipe.yaml optim.epochs=2 --devices 1" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recipe.yaml", "rows.jsonl"]


def test_paths_of_the_recipe_are_mounted_at_the_same_place(submit: Any, tmp_path: Path, tiny_model: Path) -> None:
    service = yaml.safe_load(submit("compose").stdout)["services"]["train"]
    mounted = {volume["target"]: volume.get("read_only", False) for volume in service["volumes"]}
    assert mounted[f"{tmp_path}/recipe.yaml"] and mounted[f"{tmp_path}/rows.jsonl"] and mounted[str(tiny_model)]
    assert not mounted[f"{tmp_path}/runs"]
    cache = next(value for value in service["environment"] if value.startswith("XDG_CACHE_HOME="))
    assert not mounted[f"{cache.partition('=')[2]}/ascendtune"]


@pytest.mark.parametrize("to", ["docker", "compose"])
def test_the_variable_of_the_shell_chooses_the_cards_of_a_shared_machine(
    submit: Any, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    monkeypatch.setattr(NpuVendor, "device_ids", lambda self, dev: tuple("01234567"))
    done = submit(to, "--accelerator", "npu", ASCEND_RT_VISIBLE_DEVICES="5,6")
    assert sorted(set(re.findall(r"/dev/davinci[0-9]+", done.stdout))) == ["/dev/davinci5", "/dev/davinci6"]
    # Inside, the cards count from 0: the variable is not passed on.
    assert "--devices 2" in done.stdout and "VISIBLE" not in done.stdout and "warning" not in done.stderr


def test_targets_of_symbolic_links_are_mounted(submit: Any, recipe: str, tmp_path: Path, tiny_model: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in tiny_model.iterdir():
        (snapshot / file.name).symlink_to(file)
    done = submit("compose", f"model.path={snapshot}")
    mounted = {volume["target"] for volume in yaml.safe_load(done.stdout)["services"]["train"]["volumes"]}
    assert {str(snapshot), str(tiny_model)} <= mounted


def test_a_hub_id_is_looked_for_in_the_hubs_cache(submit: Any, tmp_path: Path) -> None:
    done = submit("compose", "model.path=somebody/something", HF_HOME=str(tmp_path / "hub"))
    service = yaml.safe_load(done.stdout)["services"]["train"]
    assert f"HF_HOME={tmp_path}/hub" in service["environment"]
    assert any(volume["target"] == f"{tmp_path}/hub" for volume in service["volumes"])


@pytest.mark.parametrize(
    ("model", "env", "cache"),
    [
        ("somebody/something", {"HF_HUB_CACHE": "/data/hub"}, "HF_HUB_CACHE=/data/hub"),
        (
            "somebody/something",
            {"USE_MODELSCOPE_HUB": "1", "MODELSCOPE_CACHE": "/data/ms"},
            "MODELSCOPE_CACHE=/data/ms",
        ),
        ("modelscope:somebody/something", {"MODELSCOPE_CACHE": "/data/ms"}, "MODELSCOPE_CACHE=/data/ms"),
    ],
)
def test_the_container_asks_the_same_hub_and_sees_its_cache(
    submit: Any, model: str, env: dict[str, str], cache: str
) -> None:
    service = yaml.safe_load(submit("compose", f"model.path={model}", **env).stdout)["services"]["train"]
    assert cache in service["environment"]
    assert ("USE_MODELSCOPE_HUB" in service["environment"]) == ("USE_MODELSCOPE_HUB" in env)
    assert cache.partition("=")[2] in {volume["target"] for volume in service["volumes"] if not volume.get("read_only")}


@pytest.mark.parametrize("to", ["compose", "kubernetes"])
def test_home_directory_is_the_same_in_a_container_where_the_recipe_names_it(
    submit: Any, tmp_path: Path, tiny_model: Path, to: str
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "qwen").symlink_to(tiny_model)
    done = submit(to, "model.path=~/qwen", "run_dir=~/runs/{name}", HOME=str(tmp_path / "home"))
    *_, file = yaml.safe_load_all(done.stdout)
    if to == "compose":
        environment, places = file["services"]["train"]["environment"], file["services"]["train"]["volumes"]
        assert f"HOME={tmp_path}/home" in environment
        assert {f"{tmp_path}/home/qwen", f"{tmp_path}/home/runs"} <= {each["target"] for each in places}
    else:
        (container,) = file["spec"]["template"]["spec"]["containers"]
        assert {"name": "HOME", "value": f"{tmp_path}/home"} in container["env"]
        assert f"{tmp_path}/home/runs" in {each["mountPath"] for each in container["volumeMounts"]}
    assert "HOME=" not in submit("compose").stdout.replace("XDG_CACHE_HOME=", "")


def test_secrets_are_named_and_never_written(submit: Any) -> None:
    for to in ENGINES:
        words = () if to == "slurm" else ("--env", "MY_PASSWORD")
        done = submit(to, *words, HF_TOKEN="hf_secret", MY_PASSWORD="hunter2")
        assert done.returncode == 0, done.stderr
        assert "hf_secret" not in done.stdout + done.stderr
        assert "hunter2" not in done.stdout + done.stderr
        assert to == "slurm" or ("HF_TOKEN" in done.stdout and "MY_PASSWORD" in done.stdout)


def test_paths_of_a_cluster_need_not_be_here(submit: Any) -> None:
    done = submit("kubernetes", "model.path=/data/qwen", "--volume", "data:/data")
    assert done.returncode == 0, done.stderr
    assert "/data/qwen does not exist on this machine; it must exist on the nodes" in done.stderr
    twice = submit("kubernetes", "model.path=/a/qwen", "--volume", "data:/a", "--volume", "data:/b").stdout
    assert "mountPath: /a\n" in twice and "mountPath: /b\n" in twice
    (job,) = (each for each in yaml.safe_load_all(done.stdout) if each["kind"] == "Job")
    volumes = job["spec"]["template"]["spec"]["volumes"]
    assert {"name": "volume-1", "persistentVolumeClaim": {"claimName": "data"}} in volumes
    assert not any(volume.get("hostPath", {}).get("path") == "/data/qwen" for volume in volumes)


def test_the_recipe_travels_with_a_kubernetes_job(submit: Any, tmp_path: Path) -> None:
    content = next(yaml.safe_load_all(submit("kubernetes").stdout))
    assert content["data"] == {"recipe.yaml": (tmp_path / "recipe.yaml").read_text()}


def test_npus_are_scheduled_by_volcano_unless_asked_otherwise(submit: Any) -> None:
    npu = submit("kubernetes", "--accelerator", "npu", "--nodes", "2")
    assert [each["kind"] for each in yaml.safe_load_all(npu.stdout)] == ["ConfigMap", "Job"]
    assert "batch.volcano.sh/v1alpha1" in npu.stdout
    assert "on storage shared by all of them" in npu.stderr
    other = submit("kubernetes", "--accelerator", "npu", "--kind", "pytorchjob")
    assert [each["kind"] for each in yaml.safe_load_all(other.stdout)] == ["ConfigMap", "PyTorchJob"]


def test_the_written_file_may_be_written_again_and_no_other(submit: Any, tmp_path: Path) -> None:
    for _ in range(2):
        done = submit("slurm", "--output", "jobs/train.sbatch")
        assert (done.returncode, done.stdout) == (0, "wrote jobs/train.sbatch\n")
    (tmp_path / "mine.sh").write_text("echo mine\n")
    done = submit("slurm", "-o", "mine.sh")
    assert done.returncode == 2
    assert "was not written by this command" in done.stderr
    assert (tmp_path / "mine.sh").read_text() == "echo mine\n"
    done = submit("slurm", "-o", ".")
    assert (done.returncode, "--output names a directory" in done.stderr) == (2, True)
    os.mkfifo(tmp_path / "pipe")
    done = submit("slurm", "-o", "pipe")
    assert (done.returncode, "--output names a device or a pipe" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("to", "words", "complaint"),
    [
        ("docker", ["--partition", "p"], "--partition has no effect with --to docker"),
        ("slurm", ["--image", "x"], "--image has no effect with --to slurm"),
        ("docker", ["--hours", "3"], "--hours has no effect with --to docker"),
        ("slurm", ["--hours", "0"], "--hours 0 is not a duration"),
        ("slurm", ["--hours", "nan"], "--hours nan is not a duration"),
        ("kubernetes", ["--hours", "inf"], "--hours inf is not a duration"),
        ("docker", ["--env", "HF_TOKEN=abc"], "--env takes the name of a variable"),
        ("kubernetes", ["--volume", "data"], "--volume data is not CLAIM:PATH"),
        ("kubernetes", ["--volume", "My Claim:/data"], "--volume: 'My Claim' is not a valid Kubernetes name"),
        ("kubernetes", ["--namespace", "Bad Name"], "--namespace: 'Bad Name' is not a valid Kubernetes name"),
        ("kubernetes", ["--secret", "a/b"], "--secret: 'a/b' is not a valid Kubernetes name"),
        ("docker", ["--image", "a b"], "--image 'a b' is not the name of an image"),
        ("docker", ["--image", "--privileged"], "--image '--privileged' is not the name of an image"),
        ("compose", ["--image", "$HOME"], "--image '$HOME' is not the name of an image"),
        ("slurm", ["--partition", "a\n#SBATCH --uid=0"], "is not a valid name of a partition"),
        ("slurm", ["--sbatch", "--qos=a\n#SBATCH --uid=0"], "is not an option of sbatch"),
        ("slurm", ["--accelerator", "npu", "--devices", "17"], "no server has more than 16 NPU"),
        ("docker", ["data.train=no.jsonl"], "no such data set path"),
        ("slurm", ["data.train=no.jsonl"], "no such data set path"),
        ("kubernetes", ["data.train=no.jsonl"], "no such data set path"),
        ("docker", ["data.template=no/such.jinja"], "code: path-missing"),
        ("compose", ["--nodes", "2"], "NODE_RANK and MASTER_ADDR are not set"),
        ("docker", ["optim.epoch=2"], "unknown key 'optim.epoch'"),
    ],
)
def test_impossible_submission_is_refused_before_anything_is_written(
    submit: Any, tmp_path: Path, to: str, words: list[str], complaint: str
) -> None:
    done = submit(to, *words, "--apply", "--yes")
    assert done.returncode == 2, done.stderr
    assert complaint in done.stderr
    assert "   do: " in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recipe.yaml", "rows.jsonl"]


def test_submit_without_a_recipe_or_an_image_is_refused(ascendtune: Any, recipe: str) -> None:
    done = ascendtune("submit", "no.yaml", "--to", "slurm")
    assert (done.returncode, "no such recipe" in done.stderr) == (2, True)
    done = ascendtune("submit", recipe, "--to", "docker", "--accelerator", "cpu")
    assert (done.returncode, "--to docker needs an image" in done.stderr) == (2, True)


def test_an_engine_that_is_missing_is_missed_before_anything_is_written(submit: Any, tmp_path: Path) -> None:
    missing = {"docker": "docker", "compose": "docker compose", "slurm": "sbatch", "kubernetes": "kubectl"}
    for to, program in missing.items():
        done = submit(to, "--apply", "--yes", PATH=str(tmp_path))
        assert done.returncode == 3
        assert f"{program} is not installed here" in done.stderr
        assert "leave --apply out" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recipe.yaml", "rows.jsonl"]


def test_a_daemon_that_is_down_is_noticed_before_anything_is_written(submit: Any, tmp_path: Path) -> None:
    _program(tmp_path, "docker", "echo 'Cannot connect to the Docker daemon.' >&2; exit 1")
    done = submit("docker", "--apply", "--yes", PATH=_path(tmp_path))
    assert done.returncode == 3
    assert "docker cannot be used: Cannot connect to the Docker daemon." in done.stderr
    assert not list(tmp_path.glob("ascendtune-*"))


def test_a_cluster_that_does_not_answer_is_noticed_before_anything_is_written(submit: Any, tmp_path: Path) -> None:
    # The client alone knows its version.
    refused = 'case "$*" in *--client*) exit 0;; esac; echo "The connection to the server was refused" >&2; exit 1'
    _program(tmp_path, "kubectl", refused)
    done = submit("kubernetes", "--apply", "--yes", PATH=_path(tmp_path))
    assert done.returncode == 3
    assert "kubectl cannot be used: The connection to the server was refused" in done.stderr
    assert not list(tmp_path.glob("ascendtune-*"))


def test_npus_where_docker_has_none(submit: Any, tmp_path: Path) -> None:
    if Path("/dev/davinci0").exists():
        pytest.skip("there are NPUs here")
    assert "this machine has 0 NPU; the file is for one with more" in submit("docker", "--accelerator", "npu").stderr
    _program(tmp_path, "docker", "exit 0")
    done = submit("docker", "--accelerator", "npu", "--apply", "--yes", PATH=_path(tmp_path))
    assert done.returncode == 3
    assert "there is no NPU" in done.stderr


def test_the_largest_node_of_a_cluster_counts(submit: Any, tmp_path: Path) -> None:
    nodes = [{"status": {"allocatable": {"huawei.com/Ascend910": str(count)}}} for count in (0, 8, 4)]
    (tmp_path / "nodes.json").write_text(json.dumps({"items": [*nodes, {"status": {}}]}))
    _program(tmp_path, "kubectl", f"cat {tmp_path}/nodes.json")
    words = ("--accelerator", "npu", "--apply", "--yes")
    done = submit("kubernetes", *words, "--devices", "16", PATH=_path(tmp_path))
    assert done.returncode == 3
    assert "16 NPU on one node requested, at most 8 available" in done.stderr
    assert submit("kubernetes", *words, "--devices", "8", PATH=_path(tmp_path)).returncode == 0


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("gpu:a100:4(S:0-1),npu:9", 0),
        ("gpu:a100:2,npu:9", 3),
        ("gpu:a100:2(S:0),gpu:v100:2(S:1)", 0),
        ("gpu:2\\ngpu:h100:8", 0),
        ("(null)", 3),
    ],
)
def test_slurm_says_how_many_gpus_a_node_has(submit: Any, tmp_path: Path, said: str, code: int) -> None:
    _program(tmp_path, "sbatch", "echo Submitted")
    _program(tmp_path, "sinfo", f"printf '{said}\\n'")
    done = submit("slurm", "--accelerator", "cuda", "--devices", "4", "--apply", "--yes", PATH=_path(tmp_path))
    assert done.returncode == code, done.stderr


def test_answer_of_the_engine_is_printed(submit: Any, tmp_path: Path) -> None:
    _program(tmp_path, "sbatch", 'echo "Submitted batch job 7 from $1"')
    done = submit("slurm", "--apply", "--yes", PATH=_path(tmp_path))
    file = "ascendtune-two-plus-two.sbatch"
    assert (done.returncode, done.stdout) == (0, f"wrote {file}\nSubmitted batch job 7 from {file}\n")
    refuse = "echo 'error: invalid partition' >&2; exit 1"
    _program(tmp_path, "sbatch", f'test "$1" = --version || {{ {refuse}; }}')
    done = submit("slurm", "--apply", "--yes", PATH=_path(tmp_path))
    assert done.returncode == 3
    assert "sbatch refuses: error: invalid partition" in done.stderr


def test_submit_without_confirmation_is_refused(submit: Any, tmp_path: Path) -> None:
    _program(tmp_path, "sbatch", f'test "$1" = --version || touch {tmp_path}/submitted')
    done = submit("slurm", "--apply", PATH=_path(tmp_path))
    assert done.returncode == 2
    assert " code: confirmation-needed\n" in done.stderr
    assert not (tmp_path / "submitted").exists()


def _program(place: Path, name: str, line: str) -> None:
    """A program of that name, which a test puts first on the PATH."""
    (place / "bin").mkdir(exist_ok=True)
    (place / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
    (place / "bin" / name).chmod(0o755)


def _path(place: Path) -> str:
    return f"{place}/bin:{os.environ['PATH']}"
