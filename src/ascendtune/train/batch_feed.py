"""Batches of the next steps, collated and sent to the device by one thread while the training computes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

from ascendtune.data.plan import PackedSequence
from ascendtune.train.batch import Batches, DeviceBatch

_AHEAD = 2
"""Number of micro-batches that are made in advance."""


class _QueueItem(NamedTuple):
    step: int
    sequences: list[PackedSequence]
    """All sequences of the step."""
    batch: DeviceBatch


class BatchFeed:
    """A bounded queue of micro-batches, in the order in which training uses them.

    The batch of a step depends on the step's number only, so the queue is not part of a run's state.

    Args:
        first: the first step, counted from 0.
        end: the step after the last one.
    """

    def __init__(self, batches: Batches, first: int, end: int) -> None:
        self._batches = batches
        self._steps = range(first, end)
        self._queue: deque[_QueueItem | BaseException] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)
        self._thread.start()

    def of_step(
        self, step: int, *, context: Callable[[], AbstractContextManager[None]]
    ) -> tuple[list[PackedSequence], Iterator[DeviceBatch]]:
        """As `Batches.of_step`; `step` must be the next one.

        Raises:
            Exception: raised while the first micro-batch was made; the iterator raises those of the others.
        """
        with context():
            sequences = self._next(step, take=False).sequences
        return sequences, self._micro_batches(step, context)

    def _micro_batches(self, step: int, context: Callable[[], AbstractContextManager[None]]) -> Iterator[DeviceBatch]:
        is_last = False
        while not is_last:
            with context():
                batch = self._next(step, take=True).batch
            is_last = batch.is_last
            yield batch

    def close(self) -> None:
        """End the thread and drop the batches that were not used."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
        self._thread.join()

    def _next(self, step: int, *, take: bool) -> _QueueItem:
        with self._changed:
            self._changed.wait_for(lambda: self._queue)
            item = self._queue[0]
            if isinstance(item, BaseException):
                raise item
            assert item.step == step
            if take:
                self._queue.popleft()
                self._changed.notify_all()
            return item

    def _run(self) -> None:
        try:
            self._batches.strategy.device.use_in_thread()
            for step in self._steps:
                sequences = self._batches.plan.batch(step)
                for batch in self._batches.micro_batches(sequences):
                    if not self._put(_QueueItem(step, sequences, batch)):
                        return
        except BaseException as error:  # noqa: BLE001  # raised again in the step that needs the batch
            self._put(error)

    def _put(self, item: _QueueItem | BaseException) -> bool:
        """Wait until the queue has room and add to it; False if the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._queue) < _AHEAD)
            if not self._closed:
                self._queue.append(item)
                self._changed.notify_all()
            return not self._closed
