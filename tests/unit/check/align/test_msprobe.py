"""Dumps of msprobe: a real one beside our own of the same steps, and malicious ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascendtune.check.align.dump import TensorKey
from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.msprobe import find_msprobe, read_msprobe
from ascendtune.check.align.stages import TrainingComparison, compare_trainings
from ascendtune.check.align.training_record import read_training_record
from ascendtune.core.errors import DataError
from bare_loop import Bare, model_of

REAL = Path(__file__).parents[3] / "fixtures" / "msprobe"
SAME = Bare(model=lambda: model_of(num_hidden_layers=1), steps=2)


def align(reference: Path, candidate: Path) -> TrainingComparison:
    one, other = read_training_record(reference), read_training_record(candidate)
    return compare_trainings(one, other, expected_noise(one, other))


@pytest.mark.parametrize("swapped", [False, True])
def test_dump_of_msprobe_is_aligned_with_ours_of_the_same_steps(tmp_path: Path, swapped: bool) -> None:
    sides = [REAL, SAME.run(tmp_path / "run")]
    found = align(*sides[::-1]) if swapped else align(*sides)
    assert found.divergence is None and found.dumps.steps == (1, 2)
    assert {"start", "forward", "backward"} <= found.dumps.agreeing
    assert found.dumps.compared > 100


def test_fault_is_named_beside_a_dump_of_msprobe(tmp_path: Path) -> None:
    faulty = replace(SAME, model=lambda: model_of(num_hidden_layers=1, rms_norm_eps=1e-5))
    place = align(REAL, faulty.run(tmp_path / "run")).dumps.place
    assert place is not None
    assert (place.step, place.stage, place.module) == (1, "forward", "model.layers.0.input_layernorm")


@pytest.mark.parametrize(
    "path", [REAL, REAL / "step0", REAL / "step0" / "proc1", REAL / "step0" / "proc1" / "dump.json"]
)
def test_dump_is_found_from_the_file_up(path: Path) -> None:
    found = find_msprobe(path)
    assert found is not None and found.files[1][0] == REAL / "step0" / "proc1" / "dump.json"


def _of(place: Path, data: Any, construct: dict[str, str | None] | None = None) -> Path:
    file = place / "dump.json"
    file.write_text(json.dumps({"task": "statistics", "data": data}))
    (place / "construct.json").write_text(json.dumps(construct or {}))
    return file


def _tensor(**changes: Any) -> dict[str, Any]:
    numbers = {"Max": 1.0, "Min": -1.0, "Mean": 0.0, "Norm": 2.0}
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 2], **numbers, **changes}


def test_operator_is_named_with_the_module_that_calls_it(tmp_path: Path) -> None:
    call = "Functional.linear.3.forward"
    data = {call: {"input_args": [_tensor(), {"type": "int", "value": 1}], "output": [_tensor()]}}
    file = _of(tmp_path, data, {call: "Module.model.layers.0.q_proj.Linear.forward.0"})
    assert [*read_msprobe(file).tensors] == [
        TensorKey("forward", 0, "model.layers.0.q_proj/Functional.linear.3", "output", 0)
    ]


@pytest.mark.parametrize("value", ["NaN", float("nan")])
def test_statistics_that_are_not_numbers_count_as_nan(tmp_path: Path, value: Any) -> None:
    data = {"Module.a.Linear.forward.0": {"output": [_tensor(Max=value, Min=value, Mean=value, Norm=value)]}}
    (tensor,) = read_msprobe(_of(tmp_path, data)).tensors.values()
    assert (tensor.nan, tensor.inf) == (1, 0)


STRANGE: dict[str, Any] = {
    "no object": [],
    "a call that is a text": {"Module.a.Linear.forward.0": "x"},
    "a shape that is a text": {"Module.a.Linear.forward.0": {"output": [_tensor(shape="2x2")]}},
    "a statistic that is a list": {"Module.a.Linear.forward.0": {"output": [_tensor(Max=[1])]}},
    "outputs that are a number": {"Module.a.Linear.forward.0": {"output": 3}},
    "parameters that are a list": {"Module.a.Linear.forward.0": {"parameters": [1]}},
}


@pytest.mark.parametrize("data", STRANGE.values(), ids=STRANGE)
def test_strange_dump_is_refused(tmp_path: Path, data: Any) -> None:
    with pytest.raises(DataError) as caught:
        read_msprobe(_of(tmp_path, data))
    assert caught.value.code == "dump-damaged"
