"""Records of hooks: every module once, in the order of execution."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ascendtune.train.dump.hooks import ModuleHooks
from ascendtune.train.dump.record import StepRecord, header_of


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    """Two blocks, each recomputed in the backward pass if `reentrant` is not None."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return {"logits": x}


def new_record(level: str = "module") -> StepRecord:
    header = header_of(writer="test", step=1, rank=0, world_size=1, level=level, keeps_tensors=False)
    return StepRecord(header, torch.float64)


def rows_of(record: StepRecord) -> list[dict[str, Any]]:
    return [json.loads(line) for line in record.lines()]


def recorded(model: nn.Module, batches: int = 1, level: str = "module", **options: Any) -> list[dict[str, Any]]:
    record = new_record(level)
    hooks = ModuleHooks(model, record, **options)
    for number in range(batches):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(number), requires_grad=True)
        model(x)["logits"].square().sum().backward()
    hooks.remove()
    return rows_of(record)


def test_every_module_is_recorded_in_the_order_of_execution() -> None:
    rows = recorded(Net())
    outputs = [(row["name"], row["slot"]) for row in rows if row["phase"] == "forward" and "input" not in row["slot"]]
    assert outputs == [
        ("blocks.0.up", "output"), ("blocks.0.down", "output"), ("blocks.0", "output"),
        ("blocks.1.up", "output"), ("blocks.1.down", "output"), ("blocks.1", "output"), ("", "output.logits"),
    ]  # fmt: skip
    gradients = [row["name"] for row in rows if row["phase"] == "backward"]
    assert gradients.index("blocks.1.up") < gradients.index("blocks.0.down") < gradients.index("blocks.0.up")
    assert sorted(gradients) == sorted(name for name, _ in outputs)
    assert [row["order"] for row in rows] == list(range(len(rows)))
    assert {row["kind"] for row in rows if row["name"] == "blocks.0.up"} == {"Linear"}


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_modules_are_recorded_once_with_the_same_values(reentrant: bool) -> None:
    def by_name(rows: list[dict[str, Any]]) -> dict[tuple[str, ...], str]:
        keys = [(row["phase"], row["name"], row["slot"], row["micro_batch"]) for row in rows]
        assert len(set(keys)) == len(keys)
        return dict(zip(keys, (row["hash"] for row in rows), strict=True))

    assert by_name(recorded(Net(reentrant), batches=2)) == by_name(recorded(Net(), batches=2))


def test_micro_batches_are_counted_and_passes_without_gradients_left_out() -> None:
    model, record = Net(), new_record()
    hooks = ModuleHooks(model, record)
    with torch.no_grad():
        model(torch.randn(3, 4))
    assert not record.lines()
    for _ in range(2):
        model(torch.randn(3, 4))["logits"].sum().backward()
    hooks.remove()
    results = [row for row in rows_of(record) if (row["phase"], row["slot"]) == ("forward", "output.logits")]
    assert [row["micro_batch"] for row in results] == [0, 1]


def test_removed_hooks_leave_nothing_behind() -> None:
    model, record = Net(), new_record()
    ModuleHooks(model, record).remove()
    model(torch.randn(3, 4))["logits"].sum().backward()
    assert not record.lines()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_modules_left_out_are_not_recorded() -> None:
    model = Net()
    names = {row["name"] for row in recorded(model, left_out=[model.blocks[1]])}
    assert "blocks.0.up" in names and not any(name.startswith("blocks.1") for name in names)


def test_tensor_that_two_modules_return_is_measured_once() -> None:
    model, record = Net(), new_record()
    hooks = ModuleHooks(model, record)
    model(torch.randn(3, 4))
    hooks.remove()
    # Of eight inputs and outputs of leaves and three of the others, six are different tensors.
    places = {(row["name"], row["slot"]): at for row, at in zip(rows_of(record), record._statistics_of, strict=True)}
    assert places["blocks.0", "output"] == places["blocks.0.down", "output"] == places["blocks.1.up", "input.0"]
    assert places["", "output.logits"] == places["blocks.1.down", "output"]


def test_memory_without_content_is_not_recorded_as_an_operator() -> None:
    class Filled(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            permuted = torch.empty_permuted(x.shape, (1, 0)).copy_(x)
            return {"logits": torch.empty_like(x).copy_(permuted) + x.new_empty(x.shape).zero_()}

    slots = [row["slot"] for row in recorded(Filled(), level="op") if row["slot"].startswith("op.")]
    assert slots == ["op.0.copy_", "op.1.copy_", "op.2.zero_", "op.3.add"]


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_operators_are_recorded_below_their_module_where_asked(reentrant: bool | None) -> None:
    rows = recorded(Net(reentrant), level="op")
    operators = [(row["name"], row["slot"]) for row in rows if row["slot"].startswith("op.")]
    assert operators == [
        (f"blocks.{block}{name}", slot)
        for block in (0, 1)
        for name, slot in ((".up", "op.0.addmm"), ("", "op.0.relu"), (".down", "op.0.addmm"))
    ]
    found = {(row["name"], row["slot"]): row["hash"] for row in rows if row["phase"] == "forward"}
    assert found["blocks.0.up", "op.0.addmm"] == found["blocks.0.up", "output"]
    without = [row["hash"] for row in rows if not row["slot"].startswith("op.")]
    assert without == [row["hash"] for row in recorded(Net(reentrant))]


def test_operators_are_watched_during_the_step_only() -> None:
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    recorded(Net(), level="op")
    assert _get_current_dispatch_mode() is None


def test_rows_of_token_ids_are_known_by_their_hashes_whatever_their_order(tmp_path: Path) -> None:
    def hashes(*batches: torch.Tensor) -> list[str]:
        model, record = nn.Sequential(nn.Embedding(50, 4), nn.Linear(4, 4)), new_record()
        hooks = ModuleHooks(model, record)
        for ids in batches:
            model(ids).sum().backward()
        hooks.remove()
        header = json.loads(record.write(tmp_path).read_text().splitlines()[0])
        return [str(each) for each in header["row_hashes"]]

    ids = torch.arange(12).view(4, 3)
    together = hashes(ids)
    assert len(set(together)) == 4
    assert hashes(ids[:2], ids[2:]) == together and hashes(ids.flip(0)) == together[::-1]
    assert hashes(ids.flip(1)) != together
