"""The comparison in one sentence, in English or Chinese."""

from __future__ import annotations

import math

import numpy as np

from ascendtune.check.align.parting import Place
from ascendtune.check.align.side import Side
from ascendtune.check.align.stages import Comparison
from ascendtune.core.language import Phrases, current

say = Phrases(__package__)


def verdict(comparison: Comparison, reference: Side, candidate: Side) -> str:
    """One sentence; the Chinese one leaves details to the findings."""
    sides = {"candidate": candidate.name, "reference": reference.name}
    parted, dumps = comparison.parted, comparison.dumps
    if parted is not None and dumps.place is not None and dumps.place.stage == parted.code:
        place = _place_in_chinese(dumps.place) if current() == "zh" else parted.measured
        return say("{candidate} and {reference} part at {place}", place=place, **sides)
    if parted is not None:
        return say(
            "{candidate} and {reference} part at step {step}, {stage}: {reason}",
            step=comparison.step,
            stage=say(parted.code),
            reason=parted.measured,
            **sides,
        )
    if not len(comparison.pair.steps):
        return say(
            "{candidate} and {reference} are aligned: {count:,} dumped tensors agree within rounding; "
            "no losses were compared",
            count=dumps.compared,
            **sides,
        )
    if not np.nanmax(comparison.pair.difference, initial=0.0):
        count = len(comparison.pair.steps)
        return say(
            "{candidate} and {reference} are aligned: {count:,} losses are equal to the last digit",
            count=count,
            **sides,
        )
    return say(
        "{candidate} and {reference} are aligned within the noise of {basis}", basis=comparison.noise.basis, **sides
    )


def _place_in_chinese(place: Place) -> str:
    difference = place.row.difference
    return say(
        "step {step}, {phase}, {module}, rank {ranks}: {size}",
        step=place.step,
        phase=say(place.row.key.phase),
        module=place.module or say("the whole model"),
        ranks=", ".join(map(str, place.ranks)),
        size=say("{difference:.2g} apart", difference=difference) if math.isfinite(difference) else say("NaN or Inf"),
    )
