"""The window of a profile, on a device that is behind the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.recipe.sections import ProfileSection
from ascendtune.train.phases import Phases
from ascendtune.train.profile.step_profile import StepProfile
from ascendtune.train.strategy.base import Strategy


class LaggingDevice(CpuDevice):
    """Notes when the host waits for it, and what its profiler does."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def synchronize(self) -> None:
        self.calls.append("wait")

    def profiler(self, *_: Any, **__: Any) -> Any:
        return self

    def start(self) -> None:
        self.calls.append("start")

    def step(self) -> None:
        self.calls.append("step")

    def stop(self) -> None:
        self.calls.append("stop")

    def add_metadata_json(self, *_: str) -> None:
        pass


def test_window_holds_the_work_of_its_own_steps_and_all_of_it(tmp_path: Path) -> None:
    device = LaggingDevice()
    section = ProfileSection(steps="3-4")
    profile = StepProfile(tmp_path / "profile", section, Strategy(device), nn.Identity(), None, Phases(None), {})
    for number in range(1, 6):
        profile.begin_step(number, last=5)
        profile.end_step(number)
    assert device.calls == ["start", "wait", "step", "step", "wait", "stop"]
