"""The history of past runs: its file, and the speed that it leads to expect."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ascendtune.train.plan import history
from ascendtune.train.plan.history import (
    Features,
    PastRun,
    add_to_history,
    distance,
    errors_of,
    new_run,
    past_speed,
    read_history,
    safe_name,
)

_FEATURES = Features("llama", 1_000_000, 1_000_000, "sft", "full", "bf16", "single", False, 1024, 1)


def _run(speed: float = 1e12, features: Features = _FEATURES, device: str = "card") -> PastRun:
    return new_run(
        device, "cuda", features, flops_per_second=speed, step_seconds=1.0, predicted_seconds=1.1, peak_bytes=100,
        predicted_bytes=None,
    )  # fmt: skip


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = _run()
    add_to_history(run, tmp_path / "state")
    assert read_history(tmp_path / "state") == [run]
    assert (tmp_path / "state" / "plan_history.jsonl").stat().st_mode & 0o777 == 0o600


def test_the_oldest_runs_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MOST_RUNS", 3)
    for speed in range(1, 6):
        add_to_history(_run(speed), tmp_path)
    assert [each.flops_per_second for each in read_history(tmp_path)] == [3, 4, 5]


def test_runs_that_end_together_are_all_kept(tmp_path: Path) -> None:
    threads = [threading.Thread(target=add_to_history, args=(_run(speed), tmp_path)) for speed in range(1, 9)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(each.flops_per_second for each in read_history(tmp_path)) == list(range(1, 9))


@pytest.mark.parametrize("line", ["not json", "[]", "{}", "null", '{"features": 3}', "[" * 3000, "x" * 10_000])
def test_a_damaged_line_is_left_out(tmp_path: Path, line: str) -> None:
    add_to_history(_run(), tmp_path)
    file = tmp_path / "plan_history.jsonl"
    file.write_text(f"{line}\n{file.read_text()}")
    assert read_history(tmp_path) == [replace(_run(), written=read_history(tmp_path)[0].written)]


@pytest.mark.parametrize(
    "values",
    [
        {"device": "\x1b]0;title\x07"}, {"step_seconds": -1}, {"flops_per_second": 1e400}, {"peak_bytes": "much"},
        {"peak_bytes": True}, {"flops_per_second": 0}, {"written": float("nan")},
    ],
)  # fmt: skip
def test_a_line_with_an_impossible_value_is_left_out(tmp_path: Path, values: dict[str, object]) -> None:
    add_to_history(_run(), tmp_path)
    file = tmp_path / "plan_history.jsonl"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}) + "\n")
    assert read_history(tmp_path) == []


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    add_to_history(_run(), tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "plan_history.jsonl").symlink_to(tmp_path / "plan_history.jsonl")
    assert read_history(tmp_path / "other") == []


def test_names_lose_what_a_terminal_would_obey() -> None:
    assert safe_name("\x1b[31mNVIDIA\u202e H200\n") == "[31mNVIDIA H200".replace("[", "")
    assert len(safe_name("x" * 500)) == 80


def test_one_equal_run_gives_its_speed() -> None:
    found = past_speed("card", _FEATURES, [_run(2e12)])
    assert found is not None and found.runs == 1
    assert (found.low, found.expected, found.high) == pytest.approx((2e12 / 1.1, 2e12, 2e12 * 1.1))


def test_runs_of_other_devices_precisions_and_ranks_are_not_compared() -> None:
    others = [replace(_FEATURES, precision="fp32"), replace(_FEATURES, ranks=2), replace(_FEATURES, strategy="fsdp")]
    assert past_speed("card", _FEATURES, [_run(features=each) for each in others]) is None
    assert past_speed("card", _FEATURES, [_run(device="other")]) is None


def test_a_nearer_run_counts_more_and_distance_widens_the_interval() -> None:
    far = replace(_FEATURES, parameters=4_000_000)
    assert distance(_FEATURES, far) == 2
    both = past_speed("card", _FEATURES, [_run(1e12), _run(16e12, far)])
    assert both is not None and both.expected == pytest.approx(math.exp((math.log(1e12) + math.log(16e12) / 4) / 1.25))
    alone = past_speed("card", _FEATURES, [_run(1e12, far)])
    assert alone is not None and alone.high == pytest.approx(1.4e12)


def test_errors_leave_out_what_was_not_predicted() -> None:
    found = errors_of([(110, 100), (95, 100), (None, 100), (5, None)])
    assert found is not None
    assert (found.runs, found.median, found.worst, found.low) == pytest.approx((2, 0.075, 0.1, -0.05))
    assert errors_of([(None, 1)]) is None
