"""Dumps are read with checked types; files from other sources end in a message."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ascendtune.check.align.dump import TensorKey, find_dump, read_rank, read_values
from ascendtune.core.errors import AscendtuneError, DataError
from dump_writer import DumpWriter

HEADER = {"format": 2, "step": 1, "rank": 0, "world_size": 1, "level": "module", "content": "statistics"}
LINE = {
    "order": 0,
    "phase": "forward",
    "micro_batch": 0,
    "name": "a.b",
    "slot": "output",
    "kind": "Linear",
    "shape": [2, 3],
    "dtype": "float32",
    "min": -1.0,
    "max": 2,
    "mean": 0.5,
    "l2": 3.0,
    "nan": 0,
    "inf": 0,
    "hash": "00",
    "samples": [1.0, None],
}


def written(place: Path, *lines: Any, header: dict[str, Any] = HEADER) -> Path:
    file = place / "dump" / "step-0000001" / "rank_0.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(each) + "\n" for each in (header, *lines)))
    return file


def test_tensor_is_read_as_written(tmp_path: Path) -> None:
    found = read_rank(written(tmp_path, LINE, LINE))
    first, second = found.tensors
    assert (first, second.nth) == (TensorKey("forward", 0, "a.b", "output", 0), 1)
    tensor = found.tensors[first]
    assert (tensor.shape, tensor.highest, tensor.l2, tensor.numel) == ((2, 3), 2.0, 3.0, 6)
    assert tensor.samples[0] == 1.0 and np.isnan(tensor.samples[1])


def test_many_tensors_of_one_key_take_one_step_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = []
    replace = TensorKey._replace

    def counting(key: TensorKey, **changes: Any) -> TensorKey:
        replaced.append(changes)
        return replace(key, **changes)

    monkeypatch.setattr(TensorKey, "_replace", counting)
    found = read_rank(written(tmp_path, *[LINE] * 300))
    assert sorted(key.nth for key in found.tensors) == list(range(300)) and len(replaced) < 300


@pytest.mark.parametrize(
    ("field", "value"),
    [("step", 2), ("rank", 1), ("step", None), ("row_begins", "1"), ("row_begins", [None]), ("row_begins", [1.5])],
)
def test_header_of_another_file_or_with_begins_that_are_not_whole_numbers_is_refused(
    tmp_path: Path, field: str, value: Any
) -> None:
    with pytest.raises(DataError) as caught:
        read_rank(written(tmp_path, LINE, header={**HEADER, field: value}))
    assert caught.value.code == "dump-damaged"


DAMAGED: dict[str, Any] = {
    "phase": "sideways",
    "micro_batch": -1,
    "name": "x" * 600,
    "shape": [1 << 60],
    "dtype": 3,
    "min": "small",
    "samples": [0.0] * 100,
    "nan": 1.5,
    "hash": ["00"],
}


@pytest.mark.parametrize(("field", "value"), DAMAGED.items(), ids=DAMAGED)
def test_field_of_another_kind_is_refused_with_its_line(tmp_path: Path, field: str, value: Any) -> None:
    file = written(tmp_path, LINE, {**LINE, field: value})
    with pytest.raises(DataError) as caught:
        read_rank(file)
    assert caught.value.code == "dump-damaged" and caught.value.where == f"{file}:3"


def test_dump_of_another_version_is_not_called_damaged(tmp_path: Path) -> None:
    file = tmp_path / "rank_0.jsonl"
    file.write_text(json.dumps({**HEADER, "format": 1}) + "\n")
    with pytest.raises(DataError) as caught:
        read_rank(file)
    assert caught.value.code == "dump-format-unsupported" and "format 1" in str(caught.value)


@pytest.mark.parametrize("text", ["[1]\n", "{\n", "", '{"format": 2}\n', "[" * 100_000 + "\n"])
def test_file_that_is_not_a_dump_is_refused(tmp_path: Path, text: str) -> None:
    file = written(tmp_path)
    file.write_text(text)
    with pytest.raises(DataError) as caught:
        read_rank(file)
    assert caught.value.code == "dump-damaged"


def test_pipe_is_not_waited_for(tmp_path: Path) -> None:
    file = written(tmp_path)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(AscendtuneError) as caught:
        read_rank(file)
    assert caught.value.code == "not-a-regular-file"


def test_steps_and_ranks_are_found_by_name(tmp_path: Path) -> None:
    written(tmp_path, LINE)
    (tmp_path / "dump" / "step-0000012").mkdir()
    for name in ("rank_3.jsonl", "rank_x.jsonl", ".rank_4.jsonl.tmp", "rank_3.safetensors"):
        (tmp_path / "dump" / "step-0000012" / name).write_text("")
    (tmp_path / "dump" / "step-zero").mkdir()
    found = find_dump(tmp_path / "dump")
    assert found is not None
    assert {step: list(ranks) for step, ranks in found.files.items()} == {1: [0], 12: [3]}
    assert find_dump(tmp_path / "absent") is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_whole_tensors_are_read_in_their_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    writer = DumpWriter(nn.Identity(), 1, tensors=True)
    values = torch.tensor([[1.5, -0.3], [3e-5, 7.0]], dtype=dtype)
    writer.add("forward", "a", "output", "Identity", values)
    writer.write(tmp_path)
    dump = find_dump(tmp_path / "dump")
    assert dump is not None
    read = dump.read(dump.files[1][0])
    (tensor,) = read.tensors.values()
    found = read_values(read, tensor)
    assert found is not None and found.tolist() == values.double().flatten().tolist()
