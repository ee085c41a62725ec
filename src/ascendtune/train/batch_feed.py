"""Batches of the steps to come, collated and sent to the device by one thread beside the training."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

from ascendtune.data.plan import PackedSequence
from ascendtune.train.batch import Batches, DeviceBatch

_AHEAD = 2
"""Micro-batches that are made before they are needed."""


class _Made(NamedTuple):
    step: int
    sequences: list[PackedSequence]
    """Of the whole step."""
    batch: DeviceBatch


class BatchFeed:
    """A bounded queue of micro-batches, in the order in which training takes them.

    Which batch a step gets depends on its number alone: nothing of this queue belongs to the state of a run.

    Args:
        first: the step to begin with, counted from 0.
        end: the step after the last one.
    """

    def __init__(self, batches: Batches, first: int, end: int) -> None:
        self._batches = batches
        self._steps = range(first, end)
        self._made: deque[_Made | BaseException] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)
        self._thread.start()

    def of_step(
        self, step: int, *, context: Callable[[], AbstractContextManager[None]]
    ) -> tuple[list[PackedSequence], Iterator[DeviceBatch]]:
        """As `Batches.of_step`; `step` must be the next one.

        Raises:
            Exception: what making the first micro-batch raised; the iterator raises it for the others.
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
        """End the thread; what it has made is dropped."""
        with self._changed:
            self._closed = True
            self._made.clear()
            self._changed.notify_all()
        self._thread.join()

    def _next(self, step: int, *, take: bool) -> _Made:
        with self._changed:
            self._changed.wait_for(lambda: self._made)
            made = self._made[0]
            if isinstance(made, BaseException):
                raise made
            assert made.step == step
            if take:
                self._made.popleft()
                self._changed.notify_all()
            return made

    def _run(self) -> None:
        try:
            self._batches.strategy.device.use_in_thread()
            for step in self._steps:
                sequences = self._batches.plan.batch(step)
                for batch in self._batches.micro_batches(sequences):
                    if not self._put(_Made(step, sequences, batch)):
                        return
        except BaseException as error:  # noqa: BLE001  # raised again in the step that needs the batch
            self._put(error)

    def _put(self, made: _Made | BaseException) -> bool:
        """Add to the queue when it has room; False when the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._made) < _AHEAD)
            if not self._closed:
                self._made.append(made)
                self._changed.notify_all()
            return not self._closed
