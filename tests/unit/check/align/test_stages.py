"""The step that the verdict names."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ascendtune.check.align.curve import Curve
from ascendtune.check.align.noise import expected_noise
from ascendtune.check.align.side import Side
from ascendtune.check.align.stages import compare, verdict


def side(name: str, rates: list[float]) -> Side:
    steps = np.arange(1.0, len(rates) + 1)
    columns = {"step": steps, "loss": np.full(len(rates), 2.0), "learning_rate": np.array(rates)}
    curve = Curve.of_columns(columns, [None] * len(rates), resolution=0.0, source=name)
    return Side(name, Path(name), "ascendtune", curve, recipe={"method.stage": "sft"}, precision="fp32")


def test_learning_rates_that_part_before_the_losses_give_the_step() -> None:
    one, other = side("one", [1e-3] * 8), side("other", [1e-3] * 6 + [5e-4] * 2)
    found = compare(one, other, expected_noise(one, other))
    assert found.parted is not None and (found.parted.code, found.step) == ("update", 7)
    assert verdict(found, one, other).startswith("other and one part at step 7, update: learning rate of step 7")
