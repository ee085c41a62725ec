"""Batches that a thread makes ahead are those of the plan, and an error in it ends the step that needs the batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from tests.unit.train.table_model import plan_of, write_dataset

from ascendtune.data.plan import PackedSequence
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.train.batch import Batches, DeviceBatch
from ascendtune.train.batch_feed import BatchFeed
from ascendtune.train.strategy.base import Strategy


class NotedBatches(Batches):
    """Counts the micro-batches that are made; `bad`, one of them, cannot be made."""

    made = 0
    bad = -1
    changed = threading.Condition()

    def make(self, sequences: list[PackedSequence], *, mismatched: bool = False) -> DeviceBatch:
        kind = type(self)
        with kind.changed:
            kind.made += 1
            kind.changed.notify_all()
        if kind.made == kind.bad:
            raise OSError("the tokens cannot be read")
        return super().make(sequences, mismatched=mismatched)


@pytest.fixture
def batches(tmp_path: Path) -> Iterator[NotedBatches]:
    dataset = write_dataset(tmp_path / "tokens")
    strategy = Strategy(find_device())
    NotedBatches.made, NotedBatches.bad = 0, -1
    yield NotedBatches(dataset, plan_of(dataset, 3, seed=1), strategy, 1, padding_free=False, pad_id=0)
    assert not [each for each in threading.enumerate() if each.name == "batches"]


@pytest.fixture
def open_feed(batches: Batches) -> Iterator[Callable[[int, int], BatchFeed]]:
    feeds: list[BatchFeed] = []

    def start(first: int, end: int) -> BatchFeed:
        feeds.append(BatchFeed(batches, first, end))
        return feeds[-1]

    yield start
    for feed in feeds:
        feed.close()


OpenFeed = Callable[[int, int], BatchFeed]


def test_feed_gives_the_batches_of_the_plan_from_any_step_on(batches: Batches, open_feed: OpenFeed) -> None:
    # Three steps an epoch.
    feed = open_feed(2, 8)
    for step in range(2, 8):
        sequences, found = feed.of_step(step, context=nullcontext)
        of_plan, expected = batches.of_step(step)
        assert sequences == of_plan
        for ours, reference in zip(found, expected, strict=True):
            for field in fields(DeviceBatch):
                one, other = getattr(ours, field.name), getattr(reference, field.name)
                assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_feed_makes_at_most_two_batches_more_than_the_one_it_waits_with(
    batches: NotedBatches, open_feed: OpenFeed
) -> None:
    feed = open_feed(0, 6)
    with NotedBatches.changed:
        assert NotedBatches.changed.wait_for(lambda: NotedBatches.made == 3, timeout=60)
    feed.close()
    assert NotedBatches.made == 3


def test_error_of_the_thread_is_raised_in_the_step_that_needs_the_batch(
    batches: NotedBatches, open_feed: OpenFeed
) -> None:
    NotedBatches.bad = 5
    feed = open_feed(0, 6)
    assert len(list(feed.of_step(0, context=nullcontext)[1])) == 3
    _, found = feed.of_step(1, context=nullcontext)
    next(found)
    with pytest.raises(OSError, match="the tokens cannot be read"):
        next(found)
