"""A node that cannot do what is asked: too little memory, no bf16, a fault on the device, no chip at all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ascend_node.cann.environment import simulated_environment
from ascend_node.cann.node import Ended, Node
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.plan.device_table import speed_of

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train

Prepared = Callable[..., RunDir]
STEPS = {"max_steps": 2}


def work(path: Path) -> None:
    """On the node: what the process of a rank does."""
    from ascendtune.train.worker import main

    sys.exit(main([str(path)]))


def cause(run: RunDir) -> str:
    record = run.read()
    assert record["state"] == "failed"
    return str(record["exit_cause"]["what"])


def ended_cleanly(ended: Ended) -> bool:
    return "Traceback" not in ended.err and "SIMULATED NPU" in ended.err


def test_too_little_memory_is_said_with_a_remedy(node: Node, prepared: Prepared) -> None:
    run = prepared(optim=STEPS)
    ended = node.run(work, run.path, SIMULATED_NPU_MEMORY_MB=4)
    assert ended.code == 3, ended.err
    assert "out of device memory" in ended.err and "memory.gradient_checkpointing: true" in ended.err
    assert ended_cleanly(ended) and "out of device memory" in cause(run)


@pytest.mark.parametrize("soc", ["Ascend910A", "Ascend910ProB"])
def test_bf16_is_refused_where_the_chip_has_none(node: Node, prepared: Prepared, soc: str) -> None:
    run = prepared(optim=STEPS, precision="bf16")
    ended = node.run(work, run.path, SIMULATED_NPU_SOC=soc)
    assert ended.code == 3, ended.err
    assert f"{soc} has no bf16" in ended.err and "use precision: fp16 or fp32" in ended.err
    assert ended_cleanly(ended)


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_a_chip_without_fused_operators_trains(node: Node, prepared: Prepared, train: Train, precision: str) -> None:
    run = prepared(optim=STEPS, precision=precision, data={"packing": True})
    ended = node.run(work, run.path, SIMULATED_NPU_SOC="Ascend910ProB")
    assert ended.code == 0, ended.err
    assert run.read()["resolved"]["attention"]["name"] == "sdpa"
    expected = train(optim=STEPS, data={"packing": True}, name="cpu").losses()
    tolerance = 5e-3 if precision == "fp16" else 1e-5
    assert [record["loss"] for record in run.read_metrics()] == pytest.approx(expected, rel=tolerance)


def abilities() -> tuple[str, bool, bool, str, float | None]:
    """On the node: what a device says of itself."""
    from ascendtune.machine.torch_backend.find import open_device

    device = open_device("npu")
    return device.name, device.supports_bf16, device.supports_fp16, device.best_precision(), device.peak_flops


@pytest.mark.parametrize(
    ("soc", "has_bf16"),
    [
        ("Ascend910A", False), ("Ascend910B", False), ("Ascend910ProB", False), ("Ascend310P3", False),
        ("Ascend310B4", False), ("Ascend910B1", True), ("Ascend910B2", True), ("Ascend910B3", True),
        ("Ascend910B4", True), ("Ascend910_9391", True),
    ],
)  # fmt: skip
def test_a_chip_has_bf16_from_the_910b1_on_and_the_peak_of_the_plan(node: Node, soc: str, *, has_bf16: bool) -> None:
    name, bf16, fp16, best, peak = node.call(abilities, SIMULATED_NPU_SOC=soc)
    assert name == soc and fp16
    assert peak == speed_of(soc, "bf16").flops
    assert bf16 is has_bf16
    assert best == ("bf16" if has_bf16 else "fp16")


def trained_with(path: Path) -> tuple[int, str | None]:
    """On the node: exit code of a rank, and the variable by which HCCL sums in one order."""
    from ascendtune.train.worker import main

    return main([str(path)]), os.environ.get("HCCL_DETERMINISTIC")


@pytest.mark.parametrize(
    ("deterministic", "given", "expected"),
    [(True, {}, "true"), (True, {"HCCL_DETERMINISTIC": "strict"}, "strict"), (False, {}, None)],
)
def test_deterministic_holds_for_sums_over_ranks(
    node: Node, prepared: Prepared, *, deterministic: bool, given: dict[str, str], expected: str | None
) -> None:
    run = prepared(optim=STEPS, deterministic=deterministic)
    assert node.call(trained_with, run.path, **given) == (0, expected)


def memory() -> int:
    """On the node."""
    from ascendtune.machine.torch_backend.find import open_device

    return open_device("npu").memory_total_bytes


def test_a_device_tells_its_memory(node: Node) -> None:
    """What `auto` holds a model against when it chooses a strategy."""
    assert node.call(memory, SIMULATED_NPU_MEMORY_MB=4096) == 4096 << 20


def test_a_fault_on_the_device_ends_the_run(node: Node, prepared: Prepared) -> None:
    """It shows when somebody waits for the device, not where the operator was queued."""
    run = prepared(optim=STEPS, kernel="off")
    ended = node.run(work, run.path, SIMULATED_NPU_FAULT="aclnnSilu:6:507011")
    assert ended.code == 3 and ended_cleanly(ended), ended.err
    assert "the device failed" in ended.err and "507011" in cause(run)


def test_without_a_chip_the_cpu_trains(node: Node, recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    """torch_npu is installed and loads, and there is nothing below it."""
    (tmp_path / "recipe.yaml").write_text(recipe(name="none", optim={"max_steps": 1}).to_yaml())
    command = [sys.executable, "-m", "ascendtune", "train", "recipe.yaml"]
    env = simulated_environment(dict(os.environ), devices=0)
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    assert RunDir(tmp_path / "runs/none").read()["resolved"]["device"]["kind"] == "cpu"
