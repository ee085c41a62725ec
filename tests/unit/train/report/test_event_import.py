"""TensorBoard events, from the real writers, imported as runs."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from ascendtune.core.errors import AscendtuneError
from ascendtune.train.report.event_import import find_event_directories, read_events, write_run


def _event(step: int, *values: Any) -> Event:
    return Event(wall_time=1e9 + step, step=step, summary=Summary(value=values))


def _simple(tag: str, value: float) -> Any:
    return Summary.Value(tag=tag, simple_value=value)


def _write(place: Path, *events: Event) -> Path:
    before = set(place.glob("*"))
    writer = EventFileWriter(str(place))
    for event in events:
        writer.add_event(event)
    writer.close()
    (file,) = set(place.glob("*")) - before
    return file


def test_scalars_of_both_kinds_become_records_with_our_names(tmp_path: Path) -> None:
    tensors = [
        TensorProto(dtype=1, float_val=[0.25]),
        TensorProto(dtype=1, tensor_content=struct.pack("<f", 0.5)),
        TensorProto(dtype=2, tensor_content=struct.pack("<d", 0.75)),
        TensorProto(dtype=7, string_val=[b"a text"]),
        TensorProto(dtype=1, float_val=[1.0, 2.0]),
    ]
    _write(
        tmp_path / "log",
        _event(1, _simple("train/loss", 2.0), _simple("train/lr", 1e-3), _simple("eval/loss", 3.0), _simple("step", 9)),
        _event(2, _simple("train/loss", float("nan")), _simple("loss", 7.0), _simple("eval_accuracy", 0.5)),
        *(_event(3, Summary.Value(tag=f"t{number}", tensor=each)) for number, each in enumerate(tensors)),
    )
    found = read_events(tmp_path / "log")
    assert found.training[1] == {
        "attempt": 1, "step": 1, "time": 1e9 + 1, "loss": 2.0, "learning_rate": pytest.approx(1e-3), "tag/step": 9.0,
    }  # fmt: skip
    assert found.training[2]["loss"] != found.training[2]["loss"] and found.training[2]["tag/loss"] == 7.0
    assert {name: found.training[3].get(name) for name in ("t0", "t1", "t2", "t3", "t4")} == {
        "t0": 0.25, "t1": 0.5, "t2": 0.75, "t3": None, "t4": None,
    }  # fmt: skip
    assert found.evaluation[1]["loss"] == 3.0 and found.evaluation[2]["eval_accuracy"] == 0.5
    assert found.points == 10 and not found.damaged and not found.unfinished


def test_each_directory_is_a_run_and_a_later_file_wins(tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = _write(log / "a", *(_event(step, _simple("loss", step)) for step in range(5)))
    first.rename(first.with_name("events.out.tfevents.0000000001.x"))
    _write(log / "a", *(_event(step, _simple("loss", -step)) for step in range(3, 7)))
    _write(log / "b", _event(1, _simple("loss", 1.0)))
    assert find_event_directories(log) == [log / "a", log / "b"]
    losses = {step: record["loss"] for step, record in read_events(log / "a").training.items()}
    assert losses == {0: 0, 1: 1, 2: 2, 3: -3, 4: -4, 5: -5, 6: -6}


def test_file_that_is_being_written_is_not_damaged(tmp_path: Path) -> None:
    file = _write(tmp_path / "log", *(_event(step, _simple("loss", step)) for step in range(10)))
    whole = file.read_bytes()
    for cut in (1, 5, 20):
        file.write_bytes(whole[:-cut])
        found = read_events(tmp_path / "log")
        assert len(found.training) == 9 and found.unfinished == [file.name] and not found.damaged


def test_damage_is_named_with_its_byte_and_what_comes_before_is_kept(tmp_path: Path) -> None:
    file = _write(tmp_path / "log", *(_event(step, _simple("loss", step)) for step in range(10)))
    whole = file.read_bytes()
    for position in range(len(whole) // 2, len(whole) // 2 + 60):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        found = read_events(tmp_path / "log")
        assert 0 < found.damaged[file.name] <= position and 0 < len(found.training) < 10
    file.write_bytes(b"\xff" * 100)
    assert read_events(tmp_path / "log").damaged == {file.name: 0}


def test_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.out.tfevents.1")
    assert read_events(tmp_path).damaged == {"events.out.tfevents.1": 0}


def test_importing_again_replaces_and_another_run_is_left_alone(tmp_path: Path) -> None:
    _write(tmp_path / "log", _event(1, _simple("loss", 1.0)))
    write_run(read_events(tmp_path / "log"), tmp_path / "run")
    _write(tmp_path / "log", _event(2, _simple("loss", 2.0)))
    run = write_run(read_events(tmp_path / "log"), tmp_path / "run")
    assert [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()] == [1, 2]
    assert run.read()["state"] == "imported" and run.read()["imported"]["points"] == 2
    (tmp_path / "other").mkdir()
    _write(tmp_path / "other", _event(1, _simple("loss", 1.0)))
    with pytest.raises(AscendtuneError) as caught:
        write_run(read_events(tmp_path / "other"), tmp_path / "run")
    assert caught.value.code == "path-exists"


def test_directory_without_events_is_told(tmp_path: Path) -> None:
    with pytest.raises(AscendtuneError) as caught:
        find_event_directories(tmp_path)
    assert caught.value.code == "no-training-records"
