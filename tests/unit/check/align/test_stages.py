"""The step that the verdict names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ascendtune.check.align import input_findings
from ascendtune.check.align.curve import Curve
from ascendtune.check.align.dump import PHASES, TensorKey, TensorStatistics
from ascendtune.check.align.dump_comparison import DumpComparison, FirstDifference
from ascendtune.check.align.language import Sentence, percent
from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.stages import compare_trainings, require_repetitions
from ascendtune.check.align.tensor_row import TensorRow
from ascendtune.check.align.training_record import TrainingRecord
from ascendtune.check.align.verdict import say, verdict
from ascendtune.core import language
from ascendtune.core.errors import NoVerdict


def side(name: str, rates: list[float]) -> TrainingRecord:
    steps = np.arange(1.0, len(rates) + 1)
    columns = {"step": steps, "loss": np.full(len(rates), 2.0), "learning_rate": np.array(rates)}
    curve = Curve.of_columns(columns, [None] * len(rates), resolution=0.0, source=name)
    return TrainingRecord(name, Path(name), "ascendtune", curve, recipe={"method.stage": "sft"}, precision="fp32")


def test_learning_rates_that_part_before_the_losses_give_the_step() -> None:
    one, other = side("one", [1e-3] * 8), side("other", [1e-3] * 6 + [5e-4] * 2)
    found = compare_trainings(one, other, expected_noise(one, other))
    assert found.divergence is not None and (found.divergence.code, found.step) == ("update", 7)
    assert verdict(found, one, other).startswith("one and other diverge at step 7, update: learning rate of step 7")


def test_learning_rates_of_recorded_loops_part_too() -> None:
    one, other = (
        replace(side(name, rates), kind="recorded", recipe=None)
        for name, rates in (("one", [1e-3] * 8), ("other", [1e-3 * (1 + 1e-8)] * 7 + [2e-3]))
    )
    found = compare_trainings(one, other, expected_noise(one, other))
    assert found.divergence is not None and (found.divergence.code, found.step) == ("update", 8)
    # Ours is the rate of the schedule, theirs that of the first group of parameters.
    ours = side("ours", [1e-3] * 8)
    assert compare_trainings(ours, other, expected_noise(ours, other)).divergence is None


def test_other_inputs_whose_effect_rounding_hides_are_in_the_verdict() -> None:
    one, other = side("one", [1e-3] * 8), side("other", [1e-3] * 8)
    apart = replace(other, curve=replace(other.curve, losses=other.curve.losses * (1 + 1e-9)))
    rows = [replace(each, curve=replace(each.curve, batch_hashes=(each.name,) * 8)) for each in (one, apart)]
    weights = [replace(each, start_weights={"parameters": {"head.weight": each.name}}) for each in (one, apart)]
    for (first, second), told in (
        (rows, "differ in rows, tokens or order"),
        (weights, "1 of 1 parameter differs before"),
    ):
        found = compare_trainings(first, second, expected_noise(first, second))
        assert found.divergence is None
        assert told in verdict(found, first, second)
    same = compare_trainings(one, apart, expected_noise(one, apart))
    assert verdict(same, one, apart).endswith("labelled tokens a step")


def test_verdict_is_chinese_where_it_is_asked_for() -> None:
    one, other = side("one", [1e-3] * 8), side("other", [1e-3] * 6 + [5e-4] * 2)
    with language.using("zh"):
        found = compare_trainings(one, other, expected_noise(one, other))
        same = compare_trainings(one, one, expected_noise(one, one))
        assert verdict(found, one, other) == (
            "one 与 other 在第 7 步的“参数更新”阶段出现差异：第 7 步的学习率：0.001 与 0.0005"
        )
        assert verdict(same, one, one) == "one 与 one 一致：8 个损失逐位相同"


def test_every_stage_and_phase_has_a_chinese_name() -> None:
    one = side("one", [1e-3] * 3)
    stages = {each.code for each in compare_trainings(one, one, expected_noise(one, one)).findings}
    assert sorted((stages | PHASES) - say.chinese.keys()) == []


def test_jump_of_the_losses_is_not_amplified_rounding() -> None:
    steps = np.arange(1.0, 30.0)
    curves = [
        Curve.of_columns({"step": steps, "loss": losses}, [None] * 29, resolution=0.0, source="x")
        for losses in (2 / steps**0.1, 2 / steps**0.1 + 0.3 * (steps > 5))
    ]
    one, other = (
        TrainingRecord(name, Path(name), "CSV", curve) for name, curve in zip(("one", "other"), curves, strict=True)
    )
    found = compare_trainings(one, other, expected_noise(one, other))
    assert found.divergence is not None and (found.divergence.code, found.step) == ("later", 6)


def test_parameters_that_one_side_alone_has_are_evidence_of_the_start() -> None:
    one, other = (
        replace(side(name, [1e-3] * 3), start_weights={"parameters": dict.fromkeys(parameters, "0")})
        for name, parameters in (("tied", ["embed", "norm"]), ("untied", ["embed", "head", "norm"]))
    )
    start = next(
        each for each in compare_trainings(one, other, expected_noise(one, other)).findings if each.code == "start"
    )
    assert start.status == "ok" and start.evidence == ("only in untied (1): head",)


def test_loss_that_is_nan_on_one_side_is_named_as_such() -> None:
    steps = np.arange(1.0, 9.0)
    curves = [
        Curve.of_columns({"step": steps, "loss": losses}, [None] * 8, resolution=0.0, source="x")
        for losses in (2 / steps, np.where(steps == 5, np.nan, 2 / steps))
    ]
    one, other = (
        TrainingRecord(name, Path(name), "CSV", curve) for name, curve in zip(("one", "other"), curves, strict=True)
    )
    found = compare_trainings(one, other, expected_noise(one, other))
    assert found.divergence is not None and (found.divergence.code, found.step) == ("later", 5)
    assert "NaN or infinite on one side" in found.divergence.measured


def csv_side(name: str, losses: list[float]) -> TrainingRecord:
    columns = {"step": np.arange(1.0, len(losses) + 1), "loss": np.array(losses)}
    return TrainingRecord(
        name, Path(name), "CSV", Curve.of_columns(columns, [None] * len(losses), resolution=0.0, source=name)
    )


def test_verdict_names_records_that_were_not_compared() -> None:
    one, other = csv_side("one", [2.0] * 20), csv_side("other", [2.0] * 5)
    found = compare_trainings(one, other, expected_noise(one, other))
    alone = "records of one without a counterpart: 15 (step 6 to 20)"
    assert found.divergence is None and verdict(found, one, other).endswith(
        f"5 losses are equal to the last digit; {alone}"
    )
    assert alone in next(each for each in found.findings if each.code == "later").evidence


def test_stage_without_evidence_names_the_side_that_lacks_it() -> None:
    one, other = side("ours", [1e-3] * 3), csv_side("log", [2.0])
    measured = {each.code: each.measured for each in compare_trainings(one, other, expected_noise(one, other)).findings}
    assert measured["question"] == "log (CSV) recorded no recipe that can be compared"
    assert measured["start"] == "ours (ascendtune) and log (CSV) recorded no weights"
    assert measured["update"] == "log (CSV) recorded no loss of steps 2 and 3"


def test_remedy_of_unrecorded_batches_is_for_the_side_that_lacks_them() -> None:
    ours, log = side("ours", [1e-3] * 3), csv_side("log", [2.0] * 3)
    recording = replace(log, kind="recorded", run={"world_size": 1})
    remedies = []
    for other in (ours, log, recording):
        one = other if other is ours else replace(ours, curve=replace(ours.curve, batch_hashes=("0",) * 3))
        found = compare_trainings(one, other, expected_noise(one, other)).findings
        remedies.append(next(each.remedy for each in found if each.code == "data"))
    assert remedies == [
        "train with align.batch_hash: true on both sides",
        "record the other trainer: ascendtune align record -- COMMAND",
        None,
    ]


def test_loss_that_is_nan_from_the_first_step_parts() -> None:
    one, other = csv_side("one", [2.0] * 3), csv_side("other", [np.nan] * 3)
    found = compare_trainings(one, other, expected_noise(one, other))
    assert found.divergence is not None and (found.divergence.code, found.step) == ("forward", 1)


def test_tensors_that_part_after_the_losses_are_a_consequence() -> None:
    """Their weights have differed before, and the step that made them differ was not dumped."""
    steps = np.arange(1.0, 13.0)
    one, other = (
        TrainingRecord(
            name, Path(name), "ascendtune", Curve.of_columns(
                {"step": steps, "loss": losses}, [None] * 12, resolution=0.0, source="x"
            ), recipe={"method.stage": "sft"}, precision="fp32",
        )
        for name, losses in (("one", 2 / steps**0.1), ("other", 2 / steps**0.1 + 0.01 * (steps > 5)))
    )  # fmt: skip
    tensor = TensorStatistics(1, "Linear", (2, 2), "float32", -1.0, 1.0, 0.0, 2.0, 0, 0, "", ())
    row = TensorRow(
        10, 0, TensorKey("forward", 0, "model.layers.0.self_attn.o_proj", "output", 0), tensor, tensor, 0.1, 1e-3, 1.0
    )
    place = FirstDifference(10, "forward", row, (0,), weight_difference=0.03)
    dumps = DumpComparison(steps=(10,), place=place, rows=(row,), compared=1)
    noise = expected_noise(one, other)
    found = compare_trainings(one, other, noise, dumps)
    assert found.divergence is not None and (found.divergence.code, found.step) == ("later", 6)
    assert "step 10, forward, model.layers.0.self_attn" in found.divergence.evidence[0]
    assert "before step 10" in (found.divergence.remedy or "")
    # What the weights cannot explain is the module's own.
    own = replace(dumps, place=replace(place, row=replace(row, difference=5.0)))
    found = compare_trainings(one, other, noise, own)
    assert found.divergence is not None and (found.divergence.code, found.step) == ("forward", 10)


def test_verdict_gives_the_first_of_the_steps() -> None:
    steps = np.arange(1.0, 9.0)
    curves = [
        Curve.of_columns(
            {"step": steps, "loss": losses, "learning_rate": np.where(steps == 1, first, 1e-3)},
            [None] * 8, resolution=0.0, source="x",
        )
        for losses, first in ((2 / steps, 1e-3), (2 / steps + 0.1 * (steps > 6), 2e-3))
    ]  # fmt: skip
    one, other = (
        TrainingRecord(name, Path(name), "ascendtune", curve, recipe={"method.stage": "sft"}, precision="fp32")
        for name, curve in zip(("one", "other"), curves, strict=True)
    )
    found = compare_trainings(one, other, expected_noise(one, other))
    assert found.divergence is not None and (found.divergence.code, found.step, found.decisive_step) == ("update", 1, 7)


def test_losses_that_are_nan_on_both_sides_are_not_called_equal() -> None:
    one, other = (csv_side(name, [2.0, 1.9, np.nan, np.nan]) for name in ("one", "other"))
    found = compare_trainings(one, other, expected_noise(one, other))
    said = "losses that are NaN or infinite on both sides: 2 (step 3 to 4)"
    assert verdict(found, one, other) == f"one and other are aligned: 2 losses are equal to the last digit; {said}"
    later = next(each for each in found.findings if each.code == "later")
    assert later.measured.startswith("2 losses") and said in later.evidence


def test_run_that_does_not_repeat_the_reference_measures_no_noise() -> None:
    one = side("one", [1e-3] * 4)
    again, other = replace(one, name="again"), replace(one, recipe={"method.stage": "sft", "seed": 1})
    require_repetitions(one, [again, replace(one, recipe={"method.stage": "sft", "batch.per_device": 1})])
    with pytest.raises(NoVerdict) as refused:
        require_repetitions(one, [again, other])
    assert refused.value.code == "not-a-repetition" and "seed" in refused.value.what
    rows = [replace(one, curve=replace(one.curve, batch_hashes=(each,) * 4)) for each in "ab"]
    with pytest.raises(NoVerdict):
        require_repetitions(rows[0], rows[1:])


def test_rows_in_another_order_are_not_blamed_for_a_loss_that_parts() -> None:
    one, other = side("one", [1e-3] * 8), side("other", [1e-3] * 7 + [2e-3])
    one, other = (replace(each, curve=replace(each.curve, batch_hashes=(each.name,) * 8)) for each in (one, other))
    noise = expected_noise(one, other)
    found = compare_trainings(one, other, noise)
    assert found.divergence is not None and found.divergence.code == "data"
    order = Sentence("order", "the {rows:,} rows of the batch are the same, in another order", {"rows": 4})
    found = compare_trainings(one, other, noise, DumpComparison(steps=(1,), obstacle=order, compared=1))
    assert found.divergence is not None and (found.divergence.code, found.step) == ("update", 8)
    assert "another order" in next(each.measured for each in found.findings if each.code == "data")


def test_steps_between_those_that_were_dumped_do_not_count_as_compared() -> None:
    sides = side("gpu", [1e-3] * 3), side("npu", [1e-3] * 3)
    dumps = DumpComparison(steps=(1, 2, 3, 10), agreeing=frozenset({"forward"}), compared=4)
    [found] = [
        each for each in compare_trainings(*sides, expected_noise(*sides), dumps).findings if each.code == "forward"
    ]
    assert found.status == "ok" and found.measured.endswith("dumped tensors of 4 steps (1 to 10) agree")


@pytest.mark.parametrize(
    ("tuner", "precisions", "status"),
    [
        ("lora", ("fp32", "bf16"), "warning"),
        ("lora", ("fp32", "fp32"), "failure"),
        ("full", ("fp32", "bf16"), "failure"),
    ],
)
def test_weights_that_differ_where_the_sides_hold_them_in_other_types_prove_nothing(
    tuner: str, precisions: tuple[str, str], status: str
) -> None:
    one, other = (
        replace(
            side(precision, [1e-3] * 4),
            recipe={"method.stage": "sft", "method.tuner": tuner},
            precision=precision,
            start_weights={"parameters": {"layers.0.lora_A": digest}},
        )
        for precision, digest in zip(precisions, "ab", strict=True)
    )
    found = input_findings.start(one, other)
    assert found.status == status, found
    # Losses that part are not put down to rounded weights.
    other = replace(other, curve=replace(other.curve, losses=other.curve.losses * 2))
    divergence = compare_trainings(one, other, expected_noise(one, other)).divergence
    assert divergence is not None and divergence.code == ("forward" if status == "warning" else "start")


@pytest.mark.parametrize(("share", "text"), [(0.0, "0.00%"), (3e-7, "3e-05%"), (0.0123, "1.23%")])
def test_small_percentages_keep_a_digit(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(("apart", "is_named"), [(1e-5, True), (0.1, False)])
def test_first_losses_as_far_apart_as_tf32_makes_them_name_the_settings(apart: float, is_named: bool) -> None:
    one, other = (side(name, [1e-3] * 4) for name in ("one", "other"))
    other = replace(other, curve=replace(other.curve, losses=other.curve.losses * (1 + apart)))
    divergence = compare_trainings(one, other, expected_noise(one, other)).divergence
    assert divergence is not None and divergence.code == "forward"
    assert any("allow_tf32" in each for each in divergence.evidence) is is_named
