"""The file of a dump: complete or absent, and valid JSON for any values."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ascendtune.core.errors import MachineError
from ascendtune.train.dump.record import StepRecord, header_of, tensors_in


def new_record(**options: Any) -> StepRecord:
    header = header_of(writer="test", step=12, rank=3, world_size=4, level="module", keeps_tensors=False)
    return StepRecord(header, torch.float64, **options)


def test_file_holds_the_header_and_a_line_for_each_tensor(tmp_path: Path) -> None:
    record = new_record()
    record.add("forward", "model.norm", "output", "Norm", torch.tensor([[1.0, math.nan]]), micro_batch=0)
    record.add("gradient", "weight", "gradient", "", torch.ones(2, 3, dtype=torch.bfloat16))
    file = record.write(tmp_path / "dump")
    assert file == tmp_path / "dump" / "step-0000012" / "rank_3.jsonl"
    assert [each.name for each in file.parent.iterdir()] == [file.name]

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    header, first, second = (json.loads(line, parse_constant=refuse) for line in file.read_text().splitlines())
    assert header == {
        "format": 2, "writer": "test", "step": 12, "rank": 3, "world_size": 4, "level": "module",
        "content": "statistics", "complete": True,
    }  # fmt: skip
    assert list(first) == [
        "order", "phase", "micro_batch", "name", "slot", "kind", "shape", "dtype",
        "min", "max", "mean", "l2", "nan", "inf", "hash", "samples",
    ]  # fmt: skip
    assert (first["shape"], first["dtype"], first["nan"], first["samples"]) == ([1, 2], "float32", 1, [1.0, None])
    assert (second["order"], second["micro_batch"], second["dtype"]) == (1, None, "bfloat16")


def test_whole_tensors_are_written_beside(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    record = new_record(keeps_tensors=True)
    tensor = torch.randn(4, 3).t()
    record.add("forward", "a", "output", "", tensor)
    tensor.zero_()
    (kept,) = load_file(record.write(tmp_path).with_suffix(".safetensors")).values()
    assert kept.shape == (3, 4) and bool(kept.any())


def test_changed_tensor_is_measured_again() -> None:
    record, tensor = new_record(), torch.ones(3)
    for _ in range(2):
        record.add("forward", "a", "output", "", tensor)
        tensor.add_(1)
    assert [json.loads(line)["mean"] for line in record.lines()] == [1.0, 2.0]


def test_integers_are_passed_over() -> None:
    record = new_record()
    record.add("forward", "a", "output", "", torch.arange(3))
    assert record.lines() == []


def test_place_that_cannot_be_written_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "dump").write_text("in the way")
    with pytest.raises(MachineError) as caught:
        new_record().write(tmp_path / "dump")
    assert caught.value.code and "dump" in str(caught.value.where)


def test_tensors_in_nested_results_are_named_by_their_place() -> None:
    one = torch.ones(1)
    assert [slot for slot, _ in tensors_in({"logits": one, "rest": (one, None, [one])}, "output")] == [
        "output.logits", "output.rest.0", "output.rest.2.0",
    ]  # fmt: skip
    assert [slot for slot, _ in tensors_in(one, "output")] == ["output"]
