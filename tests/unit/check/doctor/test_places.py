"""Places that a job reads and writes: mounts and their speed, owners, logs, caches, and needs of a recipe."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ascend_node.scenarios import HEALTHY
from ascendtune.check.doctor.check import examine
from ascendtune.check.doctor.needs import Needs, needs_of
from ascendtune.check.doctor.system import System, file_speed
from ascendtune.check.finding import Finding
from ascendtune.recipe.recipe import Recipe

Lay = Callable[..., System]
GIB = 1 << 30


def _found(system: System, code: str) -> list[Finding]:
    return list(examine(system, [code]).findings)


def _mounted(system: System, kind: str, options: str) -> System:
    mounts = system.path("/proc/self/mountinfo")
    mounts.write_text(f"1 0 8:1 / / rw - xfs /dev/sda rw\n2 1 0:9 / {system.cwd} rw - {kind} host:/x {options}\n")
    return system


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("nfs4", "rw,vers=4.1,soft,proto=tcp,rsize=1048576,wsize=1048576", "is mounted with soft"),
        ("nfs", "rw,vers=3,hard,proto=udp", "is mounted with udp"),
        ("nfs4", "rw,hard,sync", "is mounted with sync"),
        ("nfs4", "rw,hard,rsize=32768,wsize=8192", "is mounted with rsize=32768,wsize=8192"),
        ("ext4", "ro", "mounted read-only"),
    ],
)
def test_mount_options_that_lose_data_or_time(lay: Lay, kind: str, options: str, said: str) -> None:
    (found,) = _found(_mounted(lay(HEALTHY), kind, options), "storage")
    assert found.status == "warning" and said in found.measured


def test_shared_storage_that_is_fast_shows_protocol_options_and_speed(lay: Lay) -> None:
    (found,) = _found(_mounted(lay(HEALTHY), "dpc", "rw,timeo=600"), "storage")
    assert found.status == "ok"
    assert "checkpoints on dpc (timeo=600): writes 953.7 MiB/s, reads 1.9 GiB/s" in found.measured


def test_slow_storage_tells_how_long_a_checkpoint_takes(lay: Lay) -> None:
    system = _mounted(lay(HEALTHY), "nfs4", "rw,hard")
    system.file_speed = lambda path: (20e6, 30e6)
    slow = _found(system, "storage")
    assert [each.status for each in slow] == ["warning", "warning"]
    assert "writes 19.1 MiB/s" in slow[0].measured and "takes 70 minutes here" in (slow[0].expected or "")


def test_model_and_data_on_one_mount_are_told_once(lay: Lay) -> None:
    system = _mounted(lay(HEALTHY), "nfs4", "rw,hard")
    recipe = Recipe.check({"model": {"path": str(system.cwd)}, "data": {"train": [str(system.cwd)] * 2}})
    system.needs = needs_of(recipe, system.cwd / "recipe.yaml")
    assert _found(system, "storage")[0].measured.count("data on nfs4") == 1
    system.file_speed = lambda path: (20e6, 30e6)
    slow = [each.measured for each in _found(system, "storage")]
    assert len(slow) == len(set(slow))


def test_speed_of_files_is_measured_and_leaves_no_file(tmp_path: Path) -> None:
    write, read = file_speed(tmp_path)
    assert write > 0 and read > 0 and not list(tmp_path.iterdir())


def test_directories_of_another_user_are_found(lay: Lay) -> None:
    system = lay(HEALTHY, HOME="/nowhere")
    closed = {system.path("/usr/local/Ascend/driver"), system.cwd}
    system.may_access = lambda path, mode: path not in closed
    system.owner = lambda path: "root:HwHiAiUser"
    found = _found(system, "permissions")
    assert found[0].status == "failure" and "/usr/local/Ascend/driver" in found[0].measured
    assert "usermod -aG HwHiAiUser" in (found[0].remedy or "")
    assert found[1].measured.endswith("is not writable (root:HwHiAiUser)")
    assert found[1].remedy == "change to a directory of your own"


def test_directory_in_which_every_user_may_replace_files_is_a_warning(lay: Lay, tmp_path: Path) -> None:
    system = lay(HEALTHY, HF_HOME="/nowhere")
    shared = tmp_path / "shared"
    system.cwd = shared / "mine"
    system.cwd.mkdir(parents=True)
    for mode, is_warned in ((0o777, True), (0o1777, False), (0o775, False)):
        shared.chmod(mode)
        found = [each for each in _found(system, "permissions") if "rename and replace" in each.measured]
        assert bool(found) is is_warned
    shared.chmod(0o777)
    (found,) = (each for each in _found(system, "permissions") if each.status == "warning")
    assert found.measured.endswith("(mode 777, no sticky bit): working directory")
    assert (found.remedy or "").startswith(f"chmod +t {shared}")


def test_environment_with_two_owners_is_a_warning_and_one_kept_by_root_is_not(lay: Lay) -> None:
    system = lay(HEALTHY)
    system.may_access = lambda path, mode: path.name != "torch"
    (found,) = _found(system, "permissions")
    assert found.status == "warning" and "such as torch (" in found.measured
    system.may_access = lambda path, mode: not mode & os.W_OK or system.site not in (path, *path.parents)
    assert [each.status for each in _found(system, "permissions")] == ["ok"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"space": lambda path: (GIB, 100 * GIB)}, "has 1.0 GiB free for logs and kernels"),
        ({"inodes": lambda path: (900, 10_000_000)}, "has room for 900 more files"),
    ],
)
def test_log_directory_without_space_is_a_warning(lay: Lay, change: dict[str, object], said: str) -> None:
    found = _found(replace(lay(HEALTHY), **change), "log_directories")
    assert found and all(each.status == "warning" and said in each.measured for each in found)


def test_large_logs_and_quota_are_reported(lay: Lay, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    with (log / "plog-1.log").open("wb") as file:
        file.truncate(30 * GIB)
    system = lay(HEALTHY, ASCEND_PROCESS_LOG_PATH=str(log))
    quota = system.root / "bin/quota"
    quota.write_text("#!/bin/sh\necho 'Filesystem blocks quota limit grace'\necho ' server:/home 990000 1000000 0 0'\n")
    quota.chmod(0o755)
    large, near = _found(system, "log_directories")
    assert "contains 30.0 GiB" in large.measured and f"find {log} -name '*.log' -mtime +7 -delete" in (
        large.remedy or ""
    )
    assert near.measured == "this user's quota on server:/home is nearly used: 966.8 MiB of 976.6 MiB"


def test_kernels_in_a_home_on_nfs_are_a_warning_with_local_places(lay: Lay, tmp_path: Path) -> None:
    system = lay(HEALTHY, HOME=str(tmp_path))
    mounts = f"1 0 8:1 / / rw - xfs /dev/sda rw\n2 1 0:9 / {tmp_path} rw - nfs4 server:/home rw,vers=4.1\n"
    system.path("/proc/self/mountinfo").write_text(mounts)
    (found,) = _found(system, "log_directories")
    assert found.status == "warning" and found.measured == "compiled kernels (CANN, Triton) are kept on nfs4"
    assert found.remedy == "export ASCEND_CACHE_PATH=/var/tmp/$USER/cann TRITON_CACHE_DIR=/var/tmp/$USER/triton"
    moved = {"ASCEND_CACHE_PATH": "/var/tmp/cann", "TRITON_CACHE_DIR": "/var/tmp/triton"}
    assert [each.status for each in _found(replace(system, env={**system.env, **moved}), "log_directories")] == ["ok"]


def test_the_cache_of_the_compiler_is_measured_where_its_own_variable_says(lay: Lay, tmp_path: Path) -> None:
    (tmp_path / "own/kernel_cache").mkdir(parents=True)
    (tmp_path / "general/kernel_cache").mkdir(parents=True)
    variables = {"ACL_OP_COMPILER_CACHE_DIR": str(tmp_path / "own"), "ASCEND_CACHE_PATH": str(tmp_path / "general")}
    (found,) = _found(lay(HEALTHY, **variables), "log_directories")
    assert str(tmp_path / "own/kernel_cache") in found.measured and "general" not in found.measured


def test_remedy_never_removes_a_whole_directory_that_a_variable_names(lay: Lay, tmp_path: Path) -> None:
    system = lay(HEALTHY, ASCEND_WORK_PATH=str(tmp_path), ASCEND_CACHE_PATH=str(tmp_path))
    for name in ("data", "kernel_cache"):
        (tmp_path / name).mkdir()
        with (tmp_path / name / "file").open("wb") as file:
            file.truncate(30 * GIB)
    (found,) = _found(system, "log_directories")
    assert found.remedy == f"while no job runs: rm -r {tmp_path}/kernel_cache"


def test_directory_that_may_not_be_searched_is_reported_as_closed(
    lay: Lay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    system = replace(lay(HEALTHY, XDG_CACHE_HOME=str(closed)), cache=closed / "ascendtune")
    system.may_access = lambda path, mode: path != closed
    stat = Path.stat

    def stat_unless_closed(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if closed in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", stat_unless_closed)
    (found,) = _found(system, "permissions")
    assert found.measured.startswith(f"the cache {closed} is not writable")
    assert found.remedy == f"sudo install -d -o $USER {closed}/ascendtune"
    assert "the check itself failed" not in _found(system, "storage")[0].measured


def test_tracker_is_asked_only_after_a_login(lay: Lay) -> None:
    node = replace(HEALTHY, packages={**HEALTHY.packages, "wandb": "0.19.1"})
    assert _found(lay(node), "tracker") == []
    assert _found(lay(node, WANDB_API_KEY="x", WANDB_MODE="offline"), "tracker") == []
    (gone,) = _found(lay(node, WANDB_API_KEY="x", WANDB_BASE_URL="http://127.0.0.1:1"), "tracker")
    assert gone.status == "warning" and gone.remedy == "export WANDB_MODE=offline"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (found,) = _found(lay(node, WANDB_API_KEY="x", WANDB_BASE_URL=f"http://127.0.0.1:{port}"), "tracker")
    assert found.status == "ok"


def _needs(**change: object) -> Needs:
    needs = Needs("r.yaml", "org/model", (), Path("runs/x"), {"torch": "train"}, False, "auto", 3, 6, 1)
    return replace(needs, **change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"packages": {"deepspeed": "parallel.strategy: deepspeed"}}, "not installed: deepspeed (parallel.strategy"),
        ({"model": "./no-such-model"}, "no such model path: ./no-such-model"),
        ({"data": ("./none.jsonl",)}, "./none.jsonl"),
        ({"model": "hf:org/model"}, "HF_HUB_OFFLINE is set, and hf:org/model is not in the download directory"),
    ],
)
def test_recipe_whose_needs_are_missing_fails(lay: Lay, change: dict[str, object], said: str) -> None:
    system = lay(HEALTHY, HF_HOME="/nowhere")
    system.needs = _needs(model=".", **change) if "model" not in change else _needs(**change)
    (found,) = _found(system, "recipe")
    assert found.status == "failure" and said in found.measured and found.remedy


def test_packages_that_the_models_own_code_imports_are_named(lay: Lay, tmp_path: Path) -> None:
    (tmp_path / "modeling.py").write_text(
        "import os, einops\nfrom PIL import Image\nfrom .configuration import Config\n"
        "try:\n    import flash_attn\nexcept ImportError:\n    pass\n"
        "if is_fla_available():\n    import fla\ndef later():\n    import timm.layers\n"
    )
    (tmp_path / "broken.py").write_text("def (")
    system = lay(HEALTHY)
    system.package_directory = lambda module: Path("/x") if module == "os" else None
    system.needs = _needs(model=str(tmp_path), runs_model_code=True)
    (found,) = _found(system, "recipe")
    assert found.measured.endswith("einops (modeling.py), PIL (modeling.py), timm (modeling.py)")
    assert found.remedy == "pip install einops pillow timm"
    system.needs = _needs(model=str(tmp_path), runs_model_code=False)
    assert _found(system, "recipe")[0].status == "ok"


def test_clients_of_trackers_are_needed(lay: Lay) -> None:
    recipe = Recipe.check({"model": {"path": "m"}, "data": {"train": ["d"]}, "track": {"send_to": ["mlflow", "wandb"]}})
    system = lay(HEALTHY)
    system.needs = _needs(model=".", packages=needs_of(recipe, Path("r.yaml")).packages)
    system.package = lambda name: None if name in ("mlflow-skinny", "wandb") else "1"
    (found,) = _found(system, "recipe")
    assert "mlflow-skinny (track.send_to: mlflow)" in found.measured
    assert found.remedy == "pip install 'ascendtune[mlflow,wandb]'"


def test_recipe_is_looked_for_in_the_cache_where_transformers_may_not_use_the_network(lay: Lay) -> None:
    system = lay(HEALTHY, HF_HOME="/nowhere", HF_HUB_OFFLINE="", TRANSFORMERS_OFFLINE="1")
    system.needs = _needs(model="hf:org/model")
    (found,) = _found(system, "recipe")
    assert found.status == "failure" and found.measured.startswith("TRANSFORMERS_OFFLINE is set, and hf:org/model")


def test_recipe_asks_for_room_and_precision(lay: Lay, tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(15 * GIB)
    system = lay(replace(HEALTHY, name="910ProB"))
    system.space = lambda path: (100 * GIB, 1000 * GIB)
    system.needs = _needs(model=str(tmp_path), precision="bf16")
    room, precision = _found(system, "recipe")
    assert "has 100.0 GiB free; 3 checkpoints and the final weights take about 285.0 GiB" in room.measured
    assert precision.status == "failure" and "910ProB has no bf16" in precision.measured


@pytest.mark.parametrize(
    ("run_dir", "why"),
    [
        # As root, access() says that /proc can be written.
        ("/proc/x/lora", "/proc: nothing can be created there" if os.getuid() == 0 else "/proc: "),
        ("file/lora", "file: a part of the path is a file, not a directory"),
    ],
)
def test_recipe_whose_run_directory_cannot_be_made_fails(lay: Lay, run_dir: str, why: str) -> None:
    system = lay(HEALTHY, HF_HOME="/nowhere")
    (system.cwd / "file").touch()
    system.needs = _needs(model="./no-such-model", run_dir=Path(run_dir))
    model, run = _found(system, "recipe")
    assert "no such model path" in model.measured
    assert run.status == "failure" and run.measured.startswith(f"the run directory {run_dir} cannot be created: ")
    assert why in run.measured and "set run_dir" in (run.remedy or "")
    told = _found(system, "permissions")
    assert not any("install -d" in (each.remedy or "") for each in told if "file" in run_dir)


def test_run_directory_whose_name_a_file_has_is_not_a_fault(lay: Lay) -> None:
    """The run gets the next name: lora-2."""
    system = lay(HEALTHY, HF_HOME="/nowhere")
    (system.cwd / "lora").touch()
    system.needs = _needs(model=".", run_dir=Path("lora"))
    assert [each.status for each in (*_found(system, "recipe"), *_found(system, "permissions"))] == ["ok", "ok"]


def test_cache_below_a_file_is_told_with_a_remedy_that_is_possible(lay: Lay, tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o755)
    system = replace(lay(HEALTHY), cache=tmp_path / "file/ascendtune")
    (found,) = _found(system, "permissions")
    assert found.measured == f"the cache {tmp_path}/file/ascendtune cannot be made: {tmp_path}/file is a file"
    assert found.remedy == f"choose another path, or move {tmp_path}/file away"


def test_needs_are_read_from_a_recipe(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "name: one\nmodel: {path: org/m}\ndata: {train: modelscope:org/d}\nmethod: {tuner: lora}\n"
        "parallel: {strategy: deepspeed}\nprecision: bf16\n"
    )
    needs = needs_of(Recipe.load(recipe), recipe)
    assert needs.run_dir == Path("runs/one") and needs.precision == "bf16" and needs.checkpoints == 3
    assert {"peft", "deepspeed", "modelscope-hub", "torch", "tensorboard"} <= needs.packages.keys()


@pytest.mark.parametrize(
    ("keys", "wanted"),
    # Of weights of 10 GiB in bf16: checkpoints of 20 GiB and as much for each state; 10 GiB at the end.
    [
        ({}, 3 * 60 + 10),
        ({"optim": {"optimizer": "sgd"}}, 3 * 20 + 10),
        ({"optim": {"optimizer": "muon"}}, 3 * 40 + 10),
        ({"data": {"train": "d", "eval_rows": 2}, "checkpoint": {"keep": 1, "best": True}}, 3 * 60 + 10),
        # Adapters alone are exported.
        ({"method": {"tuner": "lora"}}, 3 * 2 + 0.7),
    ],
)
def test_room_is_that_of_the_optimizer_and_of_what_is_exported(
    lay: Lay, tmp_path: Path, keys: dict[str, object], wanted: float
) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(10 * GIB)
    recipe = Recipe.check({"model": {"path": str(tmp_path)}, "data": {"train": str(tmp_path)}, **keys})
    for factor, count in ((0.95, 1), (1.05, 0)):
        system = lay(HEALTHY)
        system.space = lambda path, free=int(wanted * factor * GIB): (free, 1000 * GIB)
        system.needs = replace(needs_of(recipe, tmp_path), packages={})
        assert len([each for each in _found(system, "recipe") if each.status == "warning"]) == count
