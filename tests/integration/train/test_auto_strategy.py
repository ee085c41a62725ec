"""The choice of `parallel.strategy: auto` on devices of several sizes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.errors import MachineError, RecipeError
from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.strategy.choose import make_strategy, resolve_auto

# The tiny model has 125,504 parameters (32,832 of them outside its two blocks), 16 bytes each in fp32 with AdamW.
FITS, DIVIDED, TOO_SMALL = 16 * 125_504 / 0.7 + 2, 16 * 125_504 / 0.7 - 2, 1_000_000


class Accelerator(CpuDevice):
    """A device with memory of its own."""

    def __init__(self, memory_bytes: float) -> None:
        super().__init__()
        self._memory_bytes = memory_bytes

    @property
    def shares_host_memory(self) -> bool:
        return False

    @property
    def memory_total_bytes(self) -> int:
        return int(self._memory_bytes)


@pytest.mark.parametrize(
    ("memory", "changes", "expected"),
    [
        (FITS, {}, ("ddp", False)),
        (DIVIDED, {}, ("fsdp", False)),
        (TOO_SMALL, {}, ("fsdp", True)),
        (TOO_SMALL, {"method": {"tuner": "lora", "lora": {"rank": 1}}}, ("ddp", False)),
        (DIVIDED, {"optim": {"optimizer": "sgd"}}, ("ddp", False)),
        (TOO_SMALL, {"optim": {"optimizer": "adafactor"}}, ("ddp", False)),
    ],
)
def test_auto_strategy_is_the_simplest_that_fits(
    recipe: Callable[..., Recipe], tiny_model: Path, memory: float, changes: dict[str, Any], expected: tuple[str, bool]
) -> None:
    section, _ = resolve_auto(recipe(**changes), Accelerator(memory), tiny_model, ranks=4)
    assert (section.strategy, section.fsdp.offload) == expected


def test_one_device_and_one_host_need_no_division(recipe: Callable[..., Recipe], tiny_model: Path) -> None:
    assert resolve_auto(recipe(), Accelerator(TOO_SMALL), tiny_model, ranks=1)[0].strategy == "ddp"
    section, reason = resolve_auto(recipe(), CpuDevice(), tiny_model, ranks=2)
    assert section.strategy == "ddp" and "share one memory" in reason


@pytest.mark.parametrize("strategy", ["fsdp", "deepspeed"])
def test_adafactor_is_not_divided(recipe: Callable[..., Recipe], strategy: str) -> None:
    with pytest.raises(RecipeError, match="Adafactor keeps means over rows and columns"):
        recipe(optim={"optimizer": "adafactor"}, parallel={"strategy": strategy})


def test_devices_for_which_auto_is_another_strategy_are_refused(
    recipe: Callable[..., Recipe], on_ranks: Callable[..., None], tiny_model: Path
) -> None:
    """A rank of ddp would wait in sums that one of fsdp never makes, until the time-out."""

    def start() -> None:
        with pytest.raises(MachineError, match=r"auto is ddp on rank 0 and fsdp.* on rank 1") as caught:
            make_strategy(recipe(), Accelerator(FITS if os.environ["RANK"] == "0" else DIVIDED), tiny_model)
        assert caught.value.code == "strategies-differ"

    on_ranks(2, start)
