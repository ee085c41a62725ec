"""Work of the main rank alone: the others wait in many collectives, not in one that times out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.train.strategy import base
from ascendtune.train.strategy.base import GroupStrategy, Strategy


class RankOf(GroupStrategy):
    """A rank whose sums are what `answer` makes of its values."""

    def __init__(self, rank: int, answer: Callable[[list[torch.Tensor | float]], list[float]]) -> None:
        Strategy.__init__(self, CpuDevice())
        self.rank, self.world_size = rank, 2
        self._answer = answer

    def sum(self, values: list[torch.Tensor | float]) -> list[float]:
        return self._answer(values)


def test_main_rank_gives_signs_until_its_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_GOES_ON_SECONDS", 0.01)
    is_told, signs = threading.Event(), list[Any]()

    def answer(values: list[torch.Tensor | float]) -> list[float]:
        signs.append(values[0])
        if len(signs) == 3:
            is_told.set()
        return [float(values[0])]

    def work() -> None:
        assert is_told.wait(10)

    RankOf(0, answer).on_main(work)
    assert signs[:3] == [0.0, 0.0, 0.0] and signs[-1] == 1.0 and 1.0 not in signs[:-1]


def test_other_ranks_wait_and_do_nothing() -> None:
    signs = iter([0.0, 0.0, 1.0])

    def fail() -> None:
        raise AssertionError("another rank did it")

    RankOf(1, lambda values: [next(signs)]).on_main(fail)
    assert not list(signs)


def test_failure_is_the_main_ranks_and_is_not_told_as_an_end() -> None:
    signs = list[Any]()

    def fail() -> None:
        raise OSError("full")

    def answer(values: list[torch.Tensor | float]) -> list[float]:
        signs.append(values[0])
        return [0.0]

    with pytest.raises(OSError, match="full"):
        RankOf(0, answer).on_main(fail)
    assert 1.0 not in signs
