"""Two simulated NPUs joined by torch_npu's ProcessGroupHCCL against one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ascend_node.cann.environment import simulated_environment
from ascend_node.cann.node import Node
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train, Trained

SHORT = {"max_steps": 4, "weight_decay": 0.1}


def assert_same(found: Trained, expected: Trained) -> None:
    for key in ("loss", "grad_norm"):
        assert found.curve(key) == pytest.approx(expected.curve(key), rel=1e-5), key
    assert found.curve("batch_hash") == expected.curve("batch_hash")
    for name, weight in found.weights().items():
        torch.testing.assert_close(weight, expected.weights()[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tuner", ["full", "lora"])
def test_two_npus_are_one(train_on_npu: Train, train_on_npus: Train, tuner: str) -> None:
    changes: dict[str, Any] = {"method": {"tuner": tuner}, "optim": SHORT, "checkpoint": {"every_steps": 2}}
    together = train_on_npus(2, batch={"per_device": 1, "accumulate": 2}, **changes)
    assert together.run.read()["resolved"]["device"]["kind"] == "npu"
    assert {path.name for path in (together.run.checkpoint(2) / "rng").iterdir()} == {
        "rank_0.safetensors",
        "rank_1.safetensors",
    }
    assert_same(together, train_on_npu(**changes))


def test_weights_divided_over_two_npus_train_as_on_one(train_on_npu: Train, train_on_npus: Train) -> None:
    """FSDP over ProcessGroupHCCL, at rest in pinned host memory."""
    parallel = {"strategy": "fsdp", "fsdp": {"offload": True}}
    changes: dict[str, Any] = {"optim": SHORT, "checkpoint": {"every_steps": 2}}
    together = train_on_npus(2, batch={"per_device": 2}, parallel=parallel, **changes)
    assert_same(together, train_on_npu(**changes))


def test_fp16_gradients_of_which_a_rank_has_no_row(train_on_npu: Train, train_on_npus: Train) -> None:
    """The A of an adapter of rank 1 is on one of two ranks."""
    method = {"tuner": "lora", "lora": {"rank": 1}}
    changes: dict[str, Any] = {"optim": SHORT, "precision": "fp16", "method": method}
    together = train_on_npus(2, batch={"per_device": 2}, parallel={"strategy": "fsdp"}, **changes)
    assert together.losses() == pytest.approx(train_on_npu(**changes).losses(), rel=5e-3)


def test_the_command_line_starts_two_npus(
    node: Node, recipe: Callable[..., Recipe], train_on_npu: Train, tmp_path: Path
) -> None:
    """The real command, torchrun and the real worker, on a node that differs from others by its environment only."""
    from tests.integration.train.conftest import Trained

    changes: dict[str, Any] = {"optim": SHORT}
    (tmp_path / "recipe.yaml").write_text(recipe(name="two", batch={"per_device": 2}, **changes).to_yaml())
    command = [sys.executable, "-m", "ascendtune", "train", "recipe.yaml", "--devices", "2"]
    # As the job room sets it for NPUs, which it counts by device files that are not here.
    env = simulated_environment({**os.environ, "TASK_QUEUE_ENABLE": "2"})
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    assert "SIMULATED NPU" in ended.stderr and "Ascend910B2 (npu × 2)" in ended.stderr
    together = Trained(RunDir(tmp_path / "runs/two"))
    assert_same(together, train_on_npu(**changes))
