"""A part of `make matrix`: every loss with every tuner, and each strategy where it has the most to get wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from matrix.cells import LOSSES, STEPS, WAYS, Way, asked, attempt, write_rows

_ALONE = WAYS[0]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_rows(tmp_path_factory.mktemp("rows"))


@pytest.mark.parametrize("tuner", ["full", "freeze", "lora", "oft"])
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_trains_with_every_tuner(
    files: dict[str, Path], tiny_model: Path, tmp_path: Path, loss: str, tuner: str
) -> None:
    outcome = attempt(asked(loss, tuner, _ALONE, files, tiny_model, tmp_path), ranks=1)
    assert outcome.curve is not None, outcome.failed or outcome.refused
    assert len(outcome.curve) == 2 * STEPS and all(map(math.isfinite, outcome.curve))


@pytest.fixture(scope="module")
def alone(files: dict[str, Path], tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """The curve of a loss on one device."""

    @cache
    def curve(loss: str) -> Any:
        runs = tmp_path_factory.mktemp("alone")
        outcome = attempt(asked(loss, "lora, pissa", _ALONE, files, tiny_model, runs), _ALONE.ranks)
        assert outcome.curve is not None, outcome.failed or outcome.refused
        return outcome.curve

    return curve


@pytest.mark.parametrize("way", [way for way in WAYS if way.parallel.get("strategy") in ("ddp", "fsdp")], ids=str)
@pytest.mark.parametrize("loss", ["kto", "ipo"])
def test_a_strategy_gives_the_curve_of_one_device(
    files: dict[str, Path], tiny_model: Path, tmp_path: Path, alone: Callable[[str], Any], loss: str, way: Way
) -> None:
    """With a frozen adapter beside the trained one, and a reference that switches both off and on again."""
    shared = attempt(asked(loss, "lora, pissa", way, files, tiny_model, tmp_path), way.ranks)
    assert shared.curve is not None, shared.failed or shared.refused
    assert shared.curve == pytest.approx(alone(loss), rel=1e-5)
