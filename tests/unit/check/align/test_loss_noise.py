"""Limits of differences: closed forms of the number format, depth and tokens; and what repeated runs show."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ascendtune.check.align.curve import Curve
from ascendtune.check.align.loss_noise import expected_noise, measured_noise
from ascendtune.check.align.training_record import TrainingRecord
from ascendtune.core.errors import NoVerdict


def side(
    losses: list[float], *, precision: str | None = "fp32", layers: int | None = 4, tokens: float = 100.0
) -> TrainingRecord:
    steps = np.arange(1, len(losses) + 1)
    missing = np.full(len(losses), np.nan)
    labelled, hashes = np.full(len(losses), tokens), (None,) * len(losses)
    numbers = Curve(steps, np.array(losses), missing, missing, labelled, missing, hashes, 0.0)
    return TrainingRecord("run", Path("run"), "ascendtune", numbers, recipe={}, precision=precision, layers=layers)


def test_limit_of_the_first_loss_is_the_documented_formula() -> None:
    noise = expected_noise(side([2.0], precision="bf16"), side([2.0], precision="fp32"))
    sigma = 2.0**-8 * math.sqrt(4 * 4)
    assert noise.loss == pytest.approx(4 * sigma / 10 + sigma**2 + 8 * 2.0**-24)
    assert noise.grad_norm == pytest.approx(4 * sigma)


@pytest.mark.parametrize(
    ("recipe", "share"),
    [
        # 100 labelled tokens in 4 groups.
        ({"method.stage": "preference", "method.preference.loss": "sigmoid"}, 0.5 * 0.3 * math.sqrt(200) / 4),
        ({"method.stage": "preference", "method.preference.loss": "hinge"}, 0.3 * math.sqrt(200) / 4),
        ({"method.stage": "preference", "method.preference.loss": "kto"}, 0.5 * 0.3 * math.sqrt(200) / 4),
        ({"method.stage": "preference", "method.preference.loss": "simpo"}, 0.1),
        ({"method.stage": "reward"}, math.sqrt(1 / 8)),
        ({"method.stage": "sft"}, 0.1),
    ],
)
def test_limit_of_a_loss_over_whole_answers_counts_what_adds_up_in_them(recipe: dict[str, str], share: float) -> None:
    ours = replace(side([2.0]), recipe={**recipe, "method.preference.beta": 0.3}, run={"global_batch": 4})
    sigma = 2.0**-24 * math.sqrt(4 * 4)
    for pair in ((ours, ours), (replace(side([2.0]), recipe=None), ours)):
        assert expected_noise(*pair).loss == pytest.approx(4 * sigma * share + sigma**2 + 8 * 2.0**-24)


def test_pairs_of_the_first_record_count_where_they_are_recorded() -> None:
    recipe = {"method.stage": "reward"}
    packed = replace(side([2.0]), recipe=recipe, run={"global_batch": 4})
    packed = replace(packed, curve=replace(packed.curve, groups=np.array([16.0])))
    one = replace(side([2.0]), recipe=recipe, run={"global_batch": 16})
    assert expected_noise(packed, side([2.0])).loss == expected_noise(one, side([2.0])).loss


def test_limit_follows_the_coarser_of_both_precisions() -> None:
    limits = [expected_noise(side([2.0], precision=each), side([2.0])).loss for each in ("fp32", "fp16", "bf16")]
    assert limits == sorted(limits) and len(set(limits)) == 3


def test_unknown_precision_counts_as_bf16_and_is_said() -> None:
    noise = expected_noise(side([2.0], precision=None), side([2.0]))
    assert noise.loss == expected_noise(side([2.0], precision="bf16"), side([2.0])).loss
    assert "assumed" in str(noise.basis)


def test_limit_grows_with_the_steps() -> None:
    noise = expected_noise(side([2.0]), side([2.0]))
    band = noise.band(np.array([1, 3, 101]))
    assert np.allclose(band / noise.loss, [1, 2, 51])


def test_measured_noise_is_three_times_the_largest_difference_so_far() -> None:
    reference = side([2.0, 2.0, 2.0, 2.0])
    noise = measured_noise(
        reference, [side([2.0, 2.2, 2.0, 2.0]), side([2.0, 2.0, 2.0, 2.4])], expected_noise(reference, reference)
    )
    assert np.allclose(noise.band(np.array([2, 3, 4, 9])), [0.3, 0.3, 0.6, 0.6])
    assert noise.band(np.array([1]))[0] == noise.loss


def test_equal_repeated_runs_measure_no_noise() -> None:
    reference = side([2.0] * 60)
    expected, steps = expected_noise(reference, reference), np.arange(1, 61)
    noise = measured_noise(reference, [side([2.0] * 60)], expected)
    assert noise.measured is None and np.array_equal(noise.band(steps), expected.band(steps))
    assert "show no noise" in str(noise.basis)


def test_expected_limits_hold_behind_the_last_measured_step() -> None:
    reference = side([2.0] * 60)
    expected, steps = expected_noise(reference, reference), np.array([40, 60])
    noise = measured_noise(reference, [side([2.0, 2.0 + 1e-9])], expected)
    assert np.array_equal(noise.band(steps), expected.band(steps))


def test_steps_of_repeated_runs_may_be_large_and_must_be_common() -> None:
    far, missing = 10**12, np.full(1, np.nan)

    def at(step: int, loss: float = 2.0) -> TrainingRecord:
        one = Curve(np.array([step]), np.array([loss]), missing, missing, missing, missing, (None,), 0.0)
        return TrainingRecord("run", Path("run"), "CSV", one)

    noise = measured_noise(at(far), [at(far, 2.2)], expected_noise(at(far), at(far)))
    assert np.allclose(noise.band(np.array([far])), 0.3)
    with pytest.raises(NoVerdict):
        measured_noise(at(far), [at(1)], noise)
