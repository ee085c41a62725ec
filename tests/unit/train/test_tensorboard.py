"""TensorBoard events, read back with TensorBoard's own reader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.rundir import RunDir
from ascendtune.train.report.callback import RunFacts
from ascendtune.train.report.tensorboard import TensorBoardWriter


def record(step: int, loss: float, **others: Any) -> dict[str, Any]:
    return {"step": step, "loss": loss, "learning_rate": 1e-4, "tokens_per_second": 100.0, "mfu": None, **others}


def write(run: RunDir, attempt: int, start_step: int, losses: list[float]) -> TensorBoardWriter:
    writer = TensorBoardWriter(run)
    writer.on_start(RunFacts("run", 100, start_step, attempt))
    for step, loss in enumerate(losses, start_step + 1):
        writer.on_step(record(step, loss))
    return writer


def events_of(run: RunDir, tag: str) -> list[Any]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return events.Scalars(tag) if tag in events.Tags()["scalars"] else []


def read(run: RunDir, tag: str) -> list[tuple[int, float]]:
    return [(event.step, round(event.value, 4)) for event in events_of(run, tag)]


def wall_times(run: RunDir, tag: str) -> list[float]:
    return [event.wall_time for event in events_of(run, tag)]


def test_scalars_are_there_while_the_run_continues(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    writer = write(run, 1, 0, [3.0, 2.0])
    writer.on_evaluation({"step": 2, "loss": 2.5})
    assert read(run, "train/loss") == [(1, 3.0), (2, 2.0)]
    assert read(run, "eval/loss") == [(2, 2.5)]
    assert read(run, "train/mfu") == []
    writer.on_end()
    assert read(run, "train/loss") == [(1, 3.0), (2, 2.0)]


def test_short_steps_are_written_together_with_the_times_at_which_they_were_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: moment[0])
    monkeypatch.setattr("time.time", lambda: moment[0])
    run = RunDir(tmp_path)
    writer = write(run, 1, 0, [3.0])
    assert read(run, "train/loss") == [(1, 3.0)]
    moment[0] += 0.5
    writer.on_step(record(2, 2.9))
    assert read(run, "train/loss") == [(1, 3.0)]
    moment[0] += 0.5
    writer.on_step(record(3, 2.8))
    assert read(run, "train/loss") == [(1, 3.0), (2, 2.9), (3, 2.8)]
    assert wall_times(run, "train/loss") == [1000.0, 1000.5, 1001.0]
    writer.on_end()


def test_an_attempt_after_the_clock_was_set_back_is_read_after_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = [9000.0]
    monkeypatch.setattr("time.time", lambda: moment[0])
    run = RunDir(tmp_path)
    write(run, 1, 0, [3.0, 2.9, 2.8]).on_end()
    moment[0] -= 3600
    write(run, 2, 2, [2.7, 2.6]).on_end()
    assert read(run, "train/loss") == [(1, 3.0), (2, 2.9), (3, 2.7), (4, 2.6)]
    assert wall_times(run, "train/loss")[-1] == 5400.0


def test_a_stages_own_numbers_are_drawn_too(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    writer = TensorBoardWriter(run)
    writer.on_start(RunFacts("run", 100, 0, 1))
    writer.on_step(record(1, 0.7, accuracy=0.5, seconds={"step": 1.0}, batch_hash="ab", tokens=9))
    of_dataset = {"a.json": {"loss": 0.5, "margin": None, "labelled_tokens": 9}}
    writer.on_evaluation(
        {"attempt": 1, "step": 1, "loss": 0.6, "accuracy": 0.75, "margin": None, "datasets": of_dataset, "seconds": 0.1}
    )
    writer.on_end()
    assert read(run, "eval/a.json/loss") == [(1, 0.5)]
    assert not read(run, "eval/a.json/labelled_tokens")
    assert read(run, "train/accuracy") == [(1, 0.5)]
    assert read(run, "eval/accuracy") == [(1, 0.75)]
    assert not any(read(run, tag) for tag in ("eval/margin", "eval/seconds", "train/tokens", "train/step"))


@pytest.mark.parametrize("checkpoint", [0, 2])
def test_no_step_stands_twice_after_a_resume(tmp_path: Path, checkpoint: int) -> None:
    run = RunDir(tmp_path)
    writer = write(run, 1, 0, [3.0, 2.9, 2.8, 2.7])
    writer.on_evaluation({"step": 4, "loss": 2.5})  # Never ended: killed.
    [events] = (tmp_path / "tensorboard").iterdir()
    with events.open("r+b") as file:
        file.truncate(events.stat().st_size - 5)
    write(run, 2, checkpoint, [1.0, 1.1, 1.2]).on_end()
    kept = [(step, loss) for step, loss in [(1, 3.0), (2, 2.9)] if step <= checkpoint]
    resumed = [(checkpoint + 1, 1.0), (checkpoint + 2, 1.1), (checkpoint + 3, 1.2)]
    assert read(run, "train/loss") == kept + resumed


def test_nothing_is_imported_before_the_first_step_is_behind(tmp_path: Path) -> None:
    code = (
        "import sys; from ascendtune.core.rundir import RunDir;"
        "from ascendtune.train.report.callback import RunFacts;"
        "from ascendtune.train.report.tensorboard import TensorBoardWriter;"
        f"w = TensorBoardWriter(RunDir({str(tmp_path)!r})); w.on_start(RunFacts('r', 9, 0, 1));"
        "assert 'tensorboard' not in sys.modules;"
        "w.on_step({'step': 1, 'loss': 1.0});"
        "assert 'tensorboard' in sys.modules and not {'torch', 'tensorflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_tensorboard_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr("ascendtune.train.report.tensorboard.warn", warnings.append)
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    write(RunDir(tmp_path), 1, 0, [3.0, 2.0]).on_end()
    assert len(warnings) == 1
    assert "track.tensorboard: false" in warnings[0]
