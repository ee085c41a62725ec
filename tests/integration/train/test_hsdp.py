"""Copies of a sharded model (HSDP), types of reduction, and when gradients are reduced: the numbers of one device."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from tests.integration.train.test_equivalence import SHORT, assert_same
from torch import nn
from torch.distributed import device_mesh
from torch.distributed import distributed_c10d as c10d
from torch.utils._python_dispatch import TorchDispatchMode

from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.precision import Precision
from ascendtune.train.strategy.base import RootModule
from ascendtune.train.strategy.ddp import DdpStrategy
from ascendtune.train.strategy.fsdp import FsdpStrategy
from matrix.cells import WAYS, Way, asked, attempt, write_rows

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train

FP32 = Precision("fp32", "fp32", "as asked", "cpu")
HSDP: dict[str, Any] = {"strategy": "fsdp", "fsdp": {"replicas": 2}}


def test_two_copies_on_two_ranks_each_are_one_device_and_resume_on_other_ranks(
    train: Train, train_on_ranks: Train
) -> None:
    changes: dict[str, Any] = {
        "optim": {**SHORT, "max_steps": 5},
        "checkpoint": {"every_steps": 2, "keep": 9, "resume": "auto"},
    }
    together = train_on_ranks(4, **changes, batch={"per_device": 1, "accumulate": 2}, parallel=HSDP)
    reason = together.run.read()["resolved"]["strategy"]["reason"]
    assert reason == "as asked; 2 copies of the model, each divided among 2"
    alone = train(**changes, name="alone", batch={"per_device": 8})
    assert_same(together, alone)
    hashes = [json.loads(each.run.start_weights.read_text()) for each in (together, alone)]
    assert hashes[0]["hash"] == hashes[1]["hash"] and hashes[0]["ranks"] == 4 * hashes[1]["ranks"]
    sizes = [each.stat().st_size for each in together.run.checkpoint(4).glob("tensors_rank_*")]
    assert len(sizes) == 4 and max(sizes) < 1.5 * min(sizes), "one copy alone would write it, and need the host memory"
    together.run.remove_checkpoints_after(2)
    shutil.rmtree(together.run.model)
    together.run.update(state="running")
    resumed = train_on_ranks(2, **changes, batch={"per_device": 4}, parallel={"strategy": "fsdp"})
    assert resumed.run.path == together.run.path and resumed.curve("attempt") == [1, 1, 2, 2, 2]
    assert_same(resumed, alone)


def test_groups_of_copies_serve_the_host_on_a_device_that_is_bound(
    on_ranks: Callable[..., None], recipe: Callable[..., Recipe]
) -> None:
    """torch 2.6 to 2.8 split groups off that only NCCL serves, or refuse to: offloaded weights are in host memory."""
    on_ranks(4, partial(_sum_on_host, recipe(parallel=HSDP)))


def _sum_on_host(recipe: Recipe) -> None:
    strategy = FsdpStrategy(CpuDevice(), recipe)
    c10d._get_default_group().bound_device_id = torch.device("cuda", 0)
    torch.accelerator.is_available = lambda: True
    # What NCCL alone has.
    c10d._get_split_source = lambda _: None
    device_mesh.split_group = _refuse
    mesh = strategy._make_mesh()
    assert mesh["shard"].size() == mesh["replicate"].size() == 2
    for name, ranks in (("shard", [[0, 1], [2, 3]]), ("replicate", [[0, 2], [1, 3]])):
        total = torch.tensor([strategy.rank])
        dist.all_reduce(total, group=mesh.get_group(name))
        assert int(total) == next(sum(each) for each in ranks if strategy.rank in each)
    strategy.close()


def _refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("Unknown c10d backend type CPU:GLOO,CUDA:NCCL")


@pytest.mark.parametrize("tuner", ["full", "lora"])
def test_gradients_that_are_reduced_once_a_step_train_the_same_model(
    train: Train, train_on_ranks: Train, tuner: str
) -> None:
    changes: dict[str, Any] = {"optim": {**SHORT, "max_steps": 3}, "method": {"tuner": tuner}}
    parallel = {"strategy": "fsdp", "fsdp": {"sync_each_batch": False}}
    together = train_on_ranks(2, **changes, batch={"per_device": 1, "accumulate": 3}, parallel=parallel)
    assert "reduced once a step" in together.run.read()["resolved"]["strategy"]["reason"]
    assert_same(together, train(**changes, batch={"per_device": 6}))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_gradients_reduced_in_bf16_are_the_rounded_ones(
    on_ranks: Callable[..., None], recipe: Callable[..., Recipe], tmp_path: Path, strategy: str
) -> None:
    start = recipe(parallel={"strategy": strategy, "reduce_dtype": "bf16"})
    on_ranks(2, partial(_reduce, start, tmp_path))
    for found, each in torch.load(tmp_path / "0.pt"):
        # Of two numbers the sum is rounded once; halves are exact.
        assert torch.equal(found, ((each[0].bfloat16() + each[1].bfloat16()) / 2).float())
        assert not torch.equal(found, (each[0] + each[1]) / 2)
        torch.testing.assert_close(found, (each[0] + each[1]) / 2, rtol=2**-7, atol=float(found.abs().max()) * 2**-8)


def _reduce(recipe: Recipe, directory: Path) -> None:
    """Save (gradient, those of both ranks), of each weight of a small model."""
    kind = {"ddp": DdpStrategy, "fsdp": FsdpStrategy}[recipe.parallel.strategy]
    strategy = kind(find_device(), recipe)
    torch.manual_seed(0)
    model = _Blocks()
    batches = torch.randn(2, 5, 8)
    alone = [torch.autograd.grad(model(batch).square().sum(), list(model.parameters())) for batch in batches]
    root = RootModule(model)
    strategy.shard(root, FP32)
    module, _ = strategy.prepare(root, FP32, lambda: torch.optim.SGD(root.parameters()))
    for is_last in (False, True):
        # Half of the loss twice: halves are exact.
        with nullcontext() if is_last else strategy.no_sync(module):
            strategy.backward(module, module(root.model, batches[strategy.rank]).square().sum() / 2)
    found = [strategy.full_gradient(each) for each in root.parameters()]
    if strategy.is_main:
        torch.save(list(zip(found, zip(*alone, strict=True), strict=True)), directory / "0.pt")
    strategy.close()


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(hidden))


class _Blocks(nn.Module):
    """Four blocks, as a decoder has them."""

    _no_split_modules: ClassVar = ["_Block"]

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Block() for _ in range(4))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for each in self.layers:
            hidden = each(hidden)
        return hidden


class _Asynchronous(CpuDevice):
    @property
    def runs_asynchronously(self) -> bool:
        return True


class _Order(TorchDispatchMode):
    """Notes `+` for each all-gather, beside what others note."""

    def __init__(self) -> None:
        super().__init__()
        self.events = ""

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if function.name() == "c10d::_allgather_base_":
            self.events += "+"
        return function(*arguments, **(options or {}))


def test_next_block_is_gathered_before_this_one_computes_on_asynchronous_devices(
    on_ranks: Callable[..., None], recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    on_ranks(2, partial(_record_order, recipe(parallel={"strategy": "fsdp"}), tmp_path))
    at_once, ahead = json.loads((tmp_path / "order.json").read_text())
    assert at_once["forward"] == "+.+.+.+." and ahead["forward"] == "++.+.+.."
    # torch gathers ahead in the backward pass; the last block is kept from the forward pass on.
    assert at_once["backward"] == ahead["backward"]
    assert at_once["gradients"] == ahead["gradients"] and any(at_once["gradients"])


def _record_order(recipe: Recipe, directory: Path) -> None:
    """Save in which order blocks are gathered (`+`) and computed (`.`), and the gradients."""
    strategy, found = FsdpStrategy(CpuDevice(), recipe), []
    for device in (CpuDevice(), _Asynchronous()):
        strategy.device = device
        torch.manual_seed(0)
        root, order = RootModule(_Blocks()), _Order()

        def note(*_: Any, order: _Order = order) -> None:
            order.events += "."

        for each in root.model.layers:
            each.layer.register_forward_pre_hook(note)
        strategy.shard(root, FP32)
        with order:
            loss = root(root.model, torch.ones(2, 8)).square().sum()
            forward = order.events
            loss.backward()
        gradients = [strategy.full_gradient(each) for each in root.parameters()]
        found.append({
            "forward": forward, "backward": order.events.removeprefix(forward),
            "gradients": [each.tolist() for each in gradients if each is not None],
        })  # fmt: skip
    if strategy.is_main:
        (directory / "order.json").write_text(json.dumps(found))
    strategy.close()


def test_reference_answers_of_two_copies_are_those_of_one_device(tiny_model: Path, tmp_path: Path) -> None:
    """DPO's relative with an adapter that is switched off for the reference."""
    files = write_rows(tmp_path)
    curves = []
    for way in (WAYS[0], Way(4, HSDP)):
        outcome = attempt(asked("ipo", "lora", way, files, tiny_model, tmp_path), way.ranks)
        assert outcome.curve is not None, outcome.failed or outcome.refused
        curves.append(outcome.curve)
    assert curves[1] == pytest.approx(curves[0], rel=1e-5)
