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

from ascendtune.core.errors import AscendtuneError, MachineError
from ascendtune.train.report import event_import
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
    events = [_event(step, _simple("loss", step)) for step in range(10)]
    file = _write(tmp_path / "log", *events)
    whole = file.read_bytes()
    # A record is its length, the event, and a checksum of each.
    for cut in range(1, 16 + events[-1].ByteSize()):
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


@pytest.mark.parametrize("error", [MachineError("full", code="disk-full", remedy="x"), KeyboardInterrupt()])
def test_an_interrupted_import_leaves_no_run_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    _write(tmp_path / "log", _event(1, _simple("loss", 1.0)))
    found, target = read_events(tmp_path / "log"), tmp_path / "runs/log"

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(event_import, "write_json", fail)
        with pytest.raises(type(error)):
            write_run(found, target)
    assert list((tmp_path / "runs").iterdir()) == []

    # What a killed import leaves.
    (tmp_path / "runs/.log.importing").mkdir()
    (tmp_path / "runs/.log.importing/metrics.jsonl").touch()
    assert write_run(found, target).read()["state"] == "imported"
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["log"]


def test_directory_without_events_is_told(tmp_path: Path) -> None:
    with pytest.raises(AscendtuneError) as caught:
        find_event_directories(tmp_path)
    assert caught.value.code == "no-training-records"


def test_times_that_are_not_dates_are_recorded_as_zero(tmp_path: Path) -> None:
    events = [_event(step, _simple("loss", 1.0)) for step in range(3)]
    for event, time in zip(events, (float("nan"), 1e300, 5.0), strict=True):
        event.wall_time = time
    _write(tmp_path / "log", *events)
    found = read_events(tmp_path / "log")
    assert [found.training[step]["time"] for step in range(3)] == [0.0, 0.0, 5.0]
    run = write_run(found, tmp_path / "run")
    assert run.read()["created"] == 5.0


def test_many_tags_get_different_names_and_a_long_tag_is_damage(tmp_path: Path) -> None:
    tags = ["tag/x/loss", "tag/tag/x/loss", "loss", "x/loss", "step", "tag/step", *map(str, range(3000))]
    _write(tmp_path / "log", _event(1, *(_simple(tag, 1.0) for tag in tags)), _event(2, _simple("t" * 1001, 1.0)))
    found = read_events(tmp_path / "log")
    assert len({name for _, name in found.names.values()}) == len(tags) == len(found.names)
    assert len(found.damaged) == 1 and found.points == len(tags)


def test_directories_with_the_same_or_a_long_name_become_runs_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ascendtune.cli.track import import_events

    log = tmp_path / "log"
    places = [log / "a/b", log / "a-b", log.joinpath(*["x" * 60] * 6), log / "c\x1b[31m\nd"]
    for number, place in enumerate(places):
        _write(place, _event(number, _simple("loss", 1.0)))
    for _ in range(2):
        import_events(log, to=tmp_path / "runs", as_json=True)
        results = json.loads(capsys.readouterr().out)
        assert {each["from"] for each in results} == set(map(str, places))
    names = [path.name for path in (tmp_path / "runs").iterdir()]
    assert len(names) == 4 and "log-c_[31m_d" in names and max(map(len, names)) < 220
