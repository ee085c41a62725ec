"""Losses of two trainings are aligned to the same steps, for every kind and interval of records."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ascendtune.check.align.curve import Curve, Reading
from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.paired_losses import pair_losses
from ascendtune.check.align.stages import compare_trainings
from ascendtune.check.align.training_record import TrainingRecord
from ascendtune.check.align.verdict import verdict
from ascendtune.core import language
from ascendtune.core.errors import NoVerdict

NAMES = {"step": "step", "loss": "loss"}


def curve(losses: dict[int, object]) -> Curve:
    records = [{"step": step, "loss": loss} for step, loss in losses.items()]
    return Curve.of_records(records, NAMES, rounded=False, source="test")


def test_common_steps_are_compared() -> None:
    pair = pair_losses(curve({1: 4.0, 2: 3.0, 3: 2.0}), curve({2: 3.0, 3: 2.5, 4: 1.0}))
    assert pair.steps.tolist() == [2, 3]
    assert pair.difference.tolist() == [0.0, 0.25]


@pytest.mark.parametrize("swapped", [False, True])
def test_single_steps_are_averaged_over_the_windows_of_the_other_side(swapped: bool) -> None:
    dense = curve({step: float(step) for step in range(1, 8)})
    sparse = curve({3: 2.0, 6: 5.0, 9: 8.0})
    pair = pair_losses(dense, sparse) if swapped else pair_losses(sparse, dense)
    # Steps 8 and 9 were not recorded: the third window is left out.
    assert pair.steps.tolist() == [3, 6]
    assert pair.difference.tolist() == [0.0, 0.0]


def test_nan_spoils_its_own_window_alone() -> None:
    dense = curve({1: 1.0, 2: None, 3: 3.0, 4: 5.0})
    pair = pair_losses(curve({2: 1.0, 4: 4.0}), dense)
    assert pair.steps.tolist() == [4] and pair.candidate.tolist() == [4.0]


def test_difference_is_absolute_below_a_loss_of_one() -> None:
    pair = pair_losses(curve({1: 0.01, 2: 10.0}), curve({1: 0.02, 2: 11.0}))
    assert np.allclose(pair.difference, [0.01, 0.1])


def test_number_that_is_not_finite_has_no_difference() -> None:
    assert math.isnan(pair_losses(curve({1: 1.0}), curve({1: None})).difference[0])


def test_steps_of_one_curve_alone_are_named() -> None:
    pair = pair_losses(curve({1: 4.0, 2: 3.0}), curve({2: 3.0, 3: 2.5, 4: 1.0}))
    assert (pair.reference_alone.tolist(), pair.candidate_alone.tolist()) == ([1], [3, 4])


@pytest.mark.parametrize("swapped", [False, True])
def test_windows_and_steps_that_are_not_compared_are_alone(swapped: bool) -> None:
    dense, sparse = curve(dict.fromkeys((1, 2, 3, 5, 6, 7, 8), 1.0)), curve({2: 1.0, 4: 1.0, 6: 1.0})
    pair = pair_losses(dense, sparse) if swapped else pair_losses(sparse, dense)
    alone = [pair.reference_alone.tolist(), pair.candidate_alone.tolist()]
    # The window of steps 3 and 4 lacks step 4; steps 7 and 8 follow the last window.
    assert pair.steps.tolist() == [2, 6] and (alone[::-1] if swapped else alone) == [[4], [3, 7, 8]]


STEPS = 60
RANDOM = np.random.default_rng(0)
LOSSES = 3 - 0.02 * np.arange(STEPS) + RANDOM.normal(0, 0.2, STEPS)
TOKENS = RANDOM.integers(50, 500, STEPS).astype(float)


def logged(every: int, reading: Reading, *, knows: bool = False, offset: int = 0, fault: float = 0.0) -> Curve:
    """The records of one training by a tool that writes one at every multiple of `every`.

    Args:
        knows: the log says what a record is, and how many tokens it is about if it is a mean over them.
        offset: the last step before the first record.
        fault: what the losses of the last steps are too large by.
    """
    ends = np.arange(offset + every, STEPS + 1, every)
    losses = LOSSES + fault * (np.arange(STEPS) >= STEPS // 2)
    weights = TOKENS if reading == "tokens" else np.ones(STEPS)
    parts = [slice(end - 1 if reading == "single" else end - every, end) for end in ends.tolist()]
    columns = {
        "step": ends.astype(float),
        "loss": np.array([np.average(losses[part], weights=weights[part]) for part in parts]),
    }
    if reading == "tokens" and (knows or every == 1):
        columns["labelled_tokens"] = np.array([TOKENS[part].sum() for part in parts])
    found = Curve.of_columns(columns, [None] * len(ends), resolution=0.0, source="test")
    return replace(found, readings=(reading,)) if knows else found


def side(name: str, of: Curve) -> TrainingRecord:
    return TrainingRecord(name, Path(name), "CSV", of, precision="fp32")


def outcome(one: Curve, other: Curve) -> str:
    """`aligned`, the stage that parts, or the code of the error."""
    sides = side("one", one), side("other", other)
    try:
        found = compare_trainings(*sides, expected_noise(*sides))
    except NoVerdict as error:
        return error.code
    return "aligned" if found.divergence is None else found.divergence.code


@pytest.mark.parametrize("reading", ["steps", "tokens", "single"])
@pytest.mark.parametrize("every", [(1, 10), (10, 10), (10, 20), (20, 15), (7, 7)])
@pytest.mark.parametrize("knows", [(True, True), (True, False), (False, False)])
def test_same_training_never_parts_whatever_its_records_are(
    reading: Reading, every: tuple[int, int], knows: tuple[bool, bool]
) -> None:
    one, other = (logged(each, reading, knows=known) for each, known in zip(every, knows, strict=True))
    expected = {"aligned"} if knows[0] == knows[1] or 1 in every else {"aligned", "records-of-different-kinds"}
    if reading == "tokens" and not all(knows) and every[0] != every[1] and 1 not in every:
        # A log that is averaged may not say how many tokens a record is about.
        expected |= {"records-of-different-kinds"}
    assert {outcome(one, other), outcome(other, one)} <= expected


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("readings", [("steps", "tokens"), ("steps", "single"), ("tokens", "single")])
@pytest.mark.parametrize("every", [(10, 10), (10, 20), (20, 10)])
def test_unlike_records_of_the_same_training_do_not_part(
    readings: tuple[Reading, Reading], every: tuple[int, int], knows: bool
) -> None:
    one, other = (logged(each, reading, knows=True) for each, reading in zip(every, readings, strict=True))
    other = other if knows else replace(other, readings=curve({1: 1.0}).readings)
    assert outcome(one, other) in ("records-of-different-kinds", "no-common-steps")


@pytest.mark.parametrize("reading", ["steps", "tokens", "single"])
@pytest.mark.parametrize("every", [(1, 10), (10, 10), (10, 20), (20, 15)])
def test_fault_parts_records_of_the_same_kind(reading: Reading, every: tuple[int, int]) -> None:
    one, other = logged(every[0], reading, knows=True), logged(every[1], reading, knows=True, fault=0.5)
    assert outcome(one, other) == "later"


def test_logs_of_unknown_means_diverge_at_a_fault_and_the_assumption_is_evidence() -> None:
    one, other = side("one", logged(10, "steps")), side("other", logged(10, "steps", fault=0.5))
    found = compare_trainings(one, other, expected_noise(one, other))
    assert found.divergence is not None and any(
        "neither log specifies this" in each for each in found.divergence.evidence
    )
    assert "diverge at steps 31 to 40, later" in verdict(found, one, other)
    with language.using("zh"):
        assert "在第 31 至 40 步的" in verdict(found, one, other)


def of_ours(seed: int, fault: float = 0.0, weight: str = "labelled_tokens") -> Curve:
    """Of a run of ours: records at multiples of two numbers, as with `track` and `checkpoint.every_steps`."""
    random = np.random.default_rng(seed)
    often, rarely = random.integers(2, 12, 2)
    ends = [step for step in range(1, STEPS + 1) if not step % often or not step % rarely or step == STEPS]
    losses = LOSSES + fault * (np.arange(STEPS) >= 30)
    records, before = [], 0
    for step in ends:
        tokens = TOKENS[before:step]
        loss = (losses[before:step] * tokens).sum() / tokens.sum()
        records.append(
            {"step": step, "loss": loss, "labelled_tokens": step - before, weight: tokens.sum(),
             "tokens": 2 * tokens.sum(), "tokens_seen": 2 * TOKENS[:step].sum()}
        )  # fmt: skip
        before = step
    names = {name: name for name in records[0]}
    return replace(Curve.of_records(records, names, rounded=False, source="test"), readings=("tokens",))


@pytest.mark.parametrize("weight", ["labelled_tokens", "groups"])
@pytest.mark.parametrize("seed", range(20))
def test_records_of_our_runs_are_read_as_means_from_the_first_step_on_however_they_are_spread(
    seed: int, weight: str
) -> None:
    one, other, faulty = of_ours(seed, 0.0, weight), of_ours(seed + 1, 0.0, weight), of_ours(seed + 1, 0.1, weight)
    assert outcome(one, other) == "aligned"
    assert outcome(one, faulty) != "aligned"


def test_log_that_begins_late_has_a_first_window_as_long_as_the_others() -> None:
    """Of a resumed training, whose earlier log is lost."""
    assert outcome(logged(10, "steps", knows=True, offset=20), logged(1, "steps")) == "aligned"


def test_first_record_of_logging_first_step_is_about_one_step() -> None:
    log = {1: LOSSES[0], 10: LOSSES[1:10].mean(), 20: LOSSES[10:20].mean()}
    assert outcome(curve(log), logged(1, "steps")) == "aligned"
    assert outcome(curve(log), logged(10, "steps")) == "aligned"


def test_last_digits_of_a_single_record_are_kept() -> None:
    large = curve({1: 1e15, 2: 1 / 3})
    assert pair_losses(large, large).reference.tolist() == [1e15, 1 / 3]


@pytest.mark.parametrize(("fault", "expected"), [(0.001, "ok"), (0.15, "warning"), (0.6, "failure")])
def test_mean_beyond_what_others_accept_is_not_aligned_however_wide_the_band(fault: float, expected: str) -> None:
    """In bf16 the band of the last steps is wider than the losses are high."""
    one, other = (
        replace(side(name, logged(20, "steps", fault=each)), precision="bf16")
        for name, each in (("one", 0.0), ("other", fault))
    )
    noise = expected_noise(one, other)
    found = compare_trainings(one, other, noise)
    later = next(each for each in found.findings if each.code == "later")
    assert later.status == expected and (found.divergence is not None) == (expected == "failure")
    assert not (found.pair.difference > noise.band(found.pair.steps)).any()
