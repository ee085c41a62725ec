"""Compute, communication, waiting: what is made of the steps of all ranks."""

from __future__ import annotations

from typing import Any

import pytest

from ascendtune.check.comm import step


def _notes(plain: list[float], apart: list[tuple[float, float, float]]) -> list[dict[str, Any]]:
    """`apart` are whole, waiting, communication."""
    return [
        *({"plain": {"all": seconds, "waiting": 0.0, "communication": 0.0}} for seconds in plain),
        *({"apart": {"all": a, "waiting": w, "communication": c}} for a, w, c in apart),
    ]


def test_the_parts_of_a_median_step_add_up(ran: Any) -> None:
    one = _notes([0.8, 9.0, 0.7], [(1.0, 0.5, 0.1), (5.0, 4.0, 0.1), (0.9, 0.3, 0.1)])
    (found,) = step.steps_of(ran(one, [{"at": "the start"}]))
    assert (found.plain_seconds, found.apart_seconds) == (0.8, 1.0)
    parts = (found.compute_seconds, found.communication_seconds, found.waiting_seconds)
    assert parts == pytest.approx((0.4, 0.1, 0.5)) and found.share("waiting") == 0.5


def test_the_slow_rank_is_named(ran: Any) -> None:
    told = ran(_notes([0.8], [(1.0, 0.6, 0.1)]), _notes([0.8], [(1.0, 0.0, 0.1)]), names=("npu 2", "npu 5"))
    steps = step.steps_of(told)
    assert step.sentence(steps, "2 ranks") == (
        "a step takes 0.8 s, 2 ranks; without overlap 1 s: compute 60%, communication 10%, waiting 30%; "
        "overlap saves 20% of it"
    )
    found = step.waiting(steps, told.ranks)
    assert found.status == "warning" and "rank 1 (npu 5) computes the longest, 0.9 s" in found.measured


def test_little_waiting_is_fine(ran: Any) -> None:
    told = ran(_notes([1.1], [(1.0, 0.1, 0.1)]), _notes([1.1], [(1.0, 0.0, 0.1)]))
    steps = step.steps_of(told)
    assert step.waiting(steps, told.ranks).status == "ok"
    assert step.sentence(steps, "2 ranks").endswith("overlap saves nothing")
