"""A barrier for ranks of several nodes after work that may take one host hours longer than another.

A process group's time-out is meant for lost ranks. So before the next collective, the ranks of several nodes meet in
torchrun's store: each sends heartbeats there, and the main rank releases all when the last one is done.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta

import torch.distributed as dist

from ascendtune.core.errors import MachineError
from ascendtune.core.log import say
from ascendtune.core.units import format_duration
from ascendtune.train.phases import Phases
from ascendtune.train.strategy.base import node_count

_HEARTBEAT_SECONDS = 10.0
_POLL_SECONDS = 1.0
_LOST_SECONDS = 300.0
"""A rank without a heartbeat for this long is considered lost."""
_START_SECONDS = 1800.0
"""The same for a rank that has sent none yet: it imports torch, perhaps from a slow file system."""
_LOG_AFTER_SECONDS = 15.0
_LOG_EVERY_SECONDS = 60.0
_MOST_NAMED = 3
_DONE, _ALL_DONE = "done", "all_done"


class PatientBarrier:
    """`work` is a context for work of different duration; it ends on all ranks at the same time.

    Args:
        store: shared by all ranks; None if the job has one node, whose ranks work equally fast.
        phases: this rank's phases; they show that it waits.
        needs_store: whether a lost store is an error.
    """

    def __init__(
        self, store: dist.Store | None, rank: int, ranks: int, phases: Phases, *, needs_store: bool = True
    ) -> None:
        self._store, self._rank, self._ranks, self._phases = store, rank, ranks, phases
        self._needs_store = needs_store
        self._heartbeat: dict[str, object] = {}
        self._meetings = 0
        """Number of times that the ranks have met here."""
        self._logged_at = -_LOG_EVERY_SECONDS

    @classmethod
    def of_this_job(cls, phases: Phases) -> PatientBarrier:
        rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        if node_count() == 1:
            return cls(None, rank, ranks, phases)
        store, *_ = next(dist.rendezvous("env://", timeout=timedelta(seconds=_START_SECONDS)))
        # A launcher that restarts the ranks may keep its store.
        start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return cls(dist.PrefixStore(f"patient_barrier_{start}", store), rank, ranks, phases)

    def for_thread(self, name: str) -> PatientBarrier:
        """Another barrier, for a thread that works while the training goes on; the process group exists already.

        If the store is lost, because the torchrun that holds it was killed, its ranks do not wait for each other: their
        collectives do not need the store.
        """
        store = None if self._store is None else dist.PrefixStore(name, self._store)
        return PatientBarrier(store, self._rank, self._ranks, Phases(None), needs_store=False)

    @contextmanager
    def work(self, doing: str) -> Iterator[None]:
        """Context of work between two collectives. All ranks must enter it at about the same time.

        Args:
            doing: this rank's work, for the messages of ranks that wait for it: "loads the model".

        Raises:
            MachineError: a rank has stopped sending heartbeats.
            RuntimeError: the store cannot be reached: the node of the main rank is lost. Not raised by a barrier that
                `for_thread` returned.
        """
        if self._store is None:
            yield
            return
        self._heartbeat = {"host": socket.gethostname(), "number": 0, "doing": doing, "meetings": self._meetings}
        finished = threading.Event()
        thread = threading.Thread(
            target=self._send_heartbeats, args=(self._store, finished), name="heartbeats", daemon=True
        )
        thread.start()
        try:
            yield
            with nullcontext() if self._needs_store else suppress(RuntimeError):
                self._wait(self._store)
        finally:
            finished.set()
            # The thread may hang for long in a store that does not answer.
            thread.join(_POLL_SECONDS)

    def show(self, what: str, done: int, total: int) -> None:
        """Note the progress of this rank's data, for its log and for the ranks that wait."""
        self._heartbeat["doing"] = f"is {what}" + (f": {done / total:.0%}" if total else "")
        if time.monotonic() - self._logged_at > _LOG_EVERY_SECONDS:
            self._logged_at = time.monotonic()
            say(f"the tokens of this run are not in the cache of this host, which {self._heartbeat['doing']}")

    def _wait(self, store: dist.Store) -> None:
        self._meetings += 1
        self._heartbeat |= {"doing": "", "meetings": self._meetings}
        self._send_heartbeat(store)
        store.add(_DONE, 1)
        awaited = _AwaitedRanks(store, range(1, self._ranks) if self._rank == 0 else [0], self._meetings)
        phase = self._phases.current
        while not self._all_are_done(store):
            self._phases.enter("rendezvous")
            awaited.check()
            time.sleep(_POLL_SECONDS)
        self._phases.enter(phase)

    def _all_are_done(self, store: dist.Store) -> bool:
        if self._rank != 0:
            return store.add(_ALL_DONE, 0) >= self._meetings
        if store.add(_DONE, 0) < self._meetings * self._ranks:
            return False
        store.add(_ALL_DONE, 1)
        return True

    def _send_heartbeats(self, store: dist.Store, finished: threading.Event) -> None:
        while not finished.is_set():
            try:
                self._send_heartbeat(store)
            except RuntimeError:
                # The store cannot be reached; `_wait` raises for that.
                return
            finished.wait(_HEARTBEAT_SECONDS)

    def _send_heartbeat(self, store: dist.Store) -> None:
        self._heartbeat["number"] = time.monotonic_ns()
        store.set(_key(self._rank), json.dumps(self._heartbeat))


class _AwaitedRanks:
    """The ranks that this rank waits for, with their last heartbeats and the times since which these are unchanged."""

    def __init__(self, store: dist.Store, ranks: range | list[int], meetings: int) -> None:
        self._store, self._ranks, self._meetings = store, ranks, meetings
        self._start = self._checked_at = time.monotonic()
        self._logged_at = self._start + _LOG_AFTER_SECONDS - _LOG_EVERY_SECONDS
        self._heartbeats: dict[int, tuple[str, float]] = {}

    def check(self) -> None:
        now = time.monotonic()
        if now - self._checked_at < _HEARTBEAT_SECONDS:
            return
        self._checked_at = now
        for rank in self._ranks:
            heartbeat = self._store.get(_key(rank)).decode() if self._store.check([_key(rank)]) else ""
            before, since = self._heartbeats.setdefault(rank, (heartbeat, now))
            if heartbeat != before:
                self._heartbeats[rank] = heartbeat, now
            elif now - since > (_LOST_SECONDS if heartbeat else _START_SECONDS):
                raise _lost(rank, heartbeat, now - since)
        if now - self._logged_at > _LOG_EVERY_SECONDS and (missing := self._missing()):
            self._logged_at = now
            more = f", and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
            say(f"waiting for {', '.join(missing[:_MOST_NAMED])}{more}")

    def _missing(self) -> list[str]:
        """The hosts that are not done, each with its work."""
        by_host = dict[str, str]()
        for heartbeat, _ in self._heartbeats.values():
            facts = json.loads(heartbeat or '{"host": "hosts that start", "doing": "", "meetings": 0}')
            if facts["meetings"] < self._meetings:
                # Only one rank of a host prepares the data: its text is longer than that of the others.
                by_host[facts["host"]] = max(by_host.get(facts["host"], ""), facts["doing"], key=len)
        return [f"{host}, which {doing}" if doing else host for host, doing in by_host.items()]


def _lost(rank: int, heartbeat: str, seconds: float) -> MachineError:
    rank_text = f"rank {rank}" + (f" on {json.loads(heartbeat)['host']}" if heartbeat else "")
    return MachineError(
        f"{rank_text} has sent no heartbeat for {format_duration(seconds)}, while the others wait for it",
        code="ranks-not-met",
        remedy="look at its log and whether its host is up; then run the same command again",
    )


def _key(rank: int) -> str:
    return f"heartbeat_{rank}"
