"""A step never waits for the device: nothing is read from it before a record, and only batches are copied to it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.train.pairs import write_pairs, write_singles
from torch.utils._python_dispatch import TorchDispatchMode

# What waits for the device, and how a tensor comes from values of the host.
WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal"}
COPIES = {"aten::lift_fresh"}

METHODS = {
    "sft": {},
    "lora": {"tuner": "lora"},
    "reward": {"stage": "reward"},
    "sigmoid": {"stage": "preference", "preference": {"loss": "sigmoid"}},
    "kto": {"stage": "preference", "preference": {"loss": "kto"}},
}


class Watch(TorchDispatchMode):
    """Notes operations that wait for the device, and files from which values of the host are copied."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.copies: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name
        if name in WAITS:
            self.waits.append(name)
        if name in COPIES:
            files = [frame.filename for frame in traceback.extract_stack() if "/ascendtune/" in frame.filename]
            self.copies.add(Path(files[-1]).name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_unrecorded_step_copies_only_its_batch(
    make_loop: Callable[..., Any], tmp_path: Path, name: str, packing: bool
) -> None:
    method, data = METHODS[name], {"packing": packing}
    if "stage" in method:
        write = write_singles if name == "kto" else write_pairs
        data["train"] = str(write(tmp_path / "rows.jsonl", 12))
    changes = {"batch": {"per_device": 2, "accumulate": 2}, "track": {"every_steps": 100}, "optim": {"max_steps": 9}}
    loop = make_loop(method=method, data=data, **changes)
    loop.module.train()
    loop._step(loop.batches)  # the first makes the optimizer's state
    with Watch() as watch:
        loop._step(loop.batches)
    assert not watch.waits and watch.copies == {"batch.py"}


class WeightCasts(TorchDispatchMode):
    """Notes the weights that are cast, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.cast: list[int] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if function is torch.ops.aten._to_copy.default and isinstance(args[0], torch.nn.Parameter):
            self.cast.append(id(args[0]))
        return function(*args, **named)


def test_micro_batches_of_a_step_share_the_casts_of_blocks(make_loop: Callable[..., Any]) -> None:
    batch = {"per_device": 1, "accumulate": 3}
    loop = make_loop(precision="bf16", batch=batch, track={"every_steps": 100}, optim={"max_steps": 9})
    loop.module.train()
    with WeightCasts() as watch:
        loop._step(loop.batches)
    blocks = {id(each) for name, each in loop.root.named_parameters() if "_proj.weight" in name}
    assert blocks and {each: watch.cast.count(each) for each in blocks} == dict.fromkeys(blocks, 1)
