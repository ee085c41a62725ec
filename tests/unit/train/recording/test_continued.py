"""A recording that continues with a resumed training."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.stages import compare_trainings
from ascendtune.check.align.training_record import read_training_record
from ascendtune.core.errors import InputError
from ascendtune.train.recording.continued import continue_recording
from ascendtune.train.recording.recording import Recording
from ascendtune.train.recording.request import RecordRequest

STEPS = 6


class Loop:
    """A training of a small model, whose state can be saved and loaded."""

    def __init__(self, kind: type[torch.optim.Optimizer] = torch.optim.AdamW, *, overflow_at: int = 0) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = kind(self.model.parameters(), lr=0.01)  # type: ignore[call-arg]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=bool(overflow_at))
        self.overflow_at = overflow_at

    def load(self, other: Loop) -> None:
        self.model.load_state_dict(other.model.state_dict())
        self.optimizer.load_state_dict(deepcopy(other.optimizer.state_dict()))

    def train(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            x = torch.randn(4, 4, generator=torch.Generator().manual_seed(step))
            loss = (self.model(x) - 1).square().mean()
            self.scaler.scale(loss * (math.inf if step == self.overflow_at else 1)).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()


def recorded(
    loop: Loop, first: int, last: int, directory: Path, *, start: Loop | None = None, steps: str = "1"
) -> None:
    """Record `loop`, as a command does that has loaded the state of `start`."""
    request = RecordRequest(str(directory), steps, "statistics", resumes=True)
    request.prepare()
    with Recording(request, []).active():
        if start is not None:
            loop.load(start)
        loop.train(first, last)


def rows(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """The recording of an uninterrupted training of AdamW."""
    recorded(Loop(), 1, STEPS, tmp_path / "whole", steps="1,5")
    return tmp_path / "whole"


def test_resumed_training_continues_with_its_recording(tmp_path: Path, whole: Path) -> None:
    parts, first, second = tmp_path / "parts", Loop(), Loop()
    recorded(first, 1, 3, parts)
    recorded(second, 4, STEPS, parts, start=first, steps="5")
    assert rows(parts) == rows(whole)
    assert sorted(each.name for each in (parts / "dump").iterdir()) == ["step-0000001", "step-0000005"]
    dumps = [(each / "dump" / "step-0000005" / "rank_0.jsonl").read_bytes() for each in (parts, whole)]
    assert dumps[0] == dumps[1]
    assert json.loads((parts / "recorded.json").read_text())["resumed_at"] == [4]
    sides = read_training_record(whole), read_training_record(parts)
    comparison = compare_trainings(*sides, expected_noise(*sides))
    assert comparison.divergence is None and len(comparison.pair.steps) == STEPS


def test_steps_after_the_checkpoint_are_recorded_again(
    tmp_path: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parts, first, second = tmp_path / "parts", Loop(), Loop()
    recorded(first, 1, 2, parts)
    checkpoint = Loop()
    checkpoint.load(first)
    recorded(second, 3, 5, parts, start=first, steps="4")
    third = Loop()
    recorded(third, 3, STEPS, parts, start=checkpoint, steps="3")
    assert rows(parts) == rows(whole)
    assert sorted(each.name for each in (parts / "dump").iterdir()) == ["step-0000001", "step-0000003"]
    assert "steps 3 to 5 are recorded again" in caplog.text


def test_steps_that_were_not_recorded_are_an_error(tmp_path: Path) -> None:
    first, second = Loop(), Loop()
    recorded(first, 1, 2, tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    first.train(3, 3)
    with pytest.raises(InputError) as caught:
        recorded(second, 4, STEPS, tmp_path, start=first)
    assert caught.value.code == "recorded-steps-missing"
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_training_that_begins_again_replaces_the_recording(tmp_path: Path, whole: Path) -> None:
    recorded(Loop(), 1, 2, tmp_path / "parts")
    recorded(Loop(), 1, STEPS, tmp_path / "parts", steps="1,5")
    assert rows(tmp_path / "parts") == rows(whole)


def test_optimizer_that_counts_no_updates_follows_on_the_last_step(tmp_path: Path) -> None:
    recorded(Loop(torch.optim.SGD), 1, STEPS, tmp_path / "whole")
    first, second = Loop(torch.optim.SGD), Loop(torch.optim.SGD)
    recorded(first, 1, 3, tmp_path / "parts")
    recorded(second, 4, STEPS, tmp_path / "parts", start=first)
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")


@pytest.mark.parametrize("overflow_at", [2, 3])
def test_steps_that_a_scaler_skipped_count(tmp_path: Path, overflow_at: int) -> None:
    recorded(Loop(overflow_at=overflow_at), 1, STEPS, tmp_path / "whole")
    first, second = Loop(overflow_at=overflow_at), Loop(overflow_at=overflow_at)
    recorded(first, 1, 3, tmp_path / "parts")
    recorded(second, 4, STEPS, tmp_path / "parts", start=first)
    assert [each["step"] for each in rows(tmp_path / "parts")] == list(range(1, STEPS + 1))
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")


def test_skipped_steps_are_not_added_to_a_count_that_has_them(tmp_path: Path) -> None:
    norms = [None, None, 1.0, 1.0, 1.0]
    lines = [json.dumps({"step": at, "loss": 1.0, "grad_norm": norm}) for at, norm in enumerate(norms, 1)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert continue_recording(tmp_path, 3, "", counts_skipped=True) == 4
    assert [each["step"] for each in rows(tmp_path)] == [1, 2, 3]


def test_second_training_of_the_resumed_command_is_not_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Loop(), Loop()
    recorded(first, 1, 3, tmp_path)
    request = RecordRequest(str(tmp_path), "1", "statistics", resumes=True)
    request.prepare()
    with Recording(request, []).active():
        second.load(first)
        second.train(4, 5)
    with Recording(request, []).active():
        Loop().train(1, 2)
    assert [each["step"] for each in rows(tmp_path)] == [1, 2, 3, 4, 5]
    assert "second training is not recorded" in caplog.text


def test_run_of_ours_is_not_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError) as caught:
        RecordRequest(str(tmp_path), "1", "statistics", resumes=True).prepare()
    assert caught.value.code == "path-exists"
