"""Ranks that are done with work of their own wait for those of slower hosts, for hours where these live.

A process group gives up after a time that is meant for lost ranks. So before the next collective the ranks of several
nodes meet in torchrun's store: each gives signs of life there, and the main rank lets all go on when the last is done.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from ascendtune.core.errors import MachineError
from ascendtune.core.log import say
from ascendtune.core.units import format_duration
from ascendtune.train.strategy.base import node_count
from ascendtune.train.supervision import Phases

_SIGN_EVERY_SECONDS = 10.0
_LOOK_EVERY_SECONDS = 1.0
_SILENT_SECONDS = 300.0
"""Without a sign, after which a rank is taken for lost."""
_START_SECONDS = 1800.0
"""The same for one that has given none: it imports torch, perhaps from a slow file system."""
_TELL_AFTER_SECONDS = 15.0
_TELL_EVERY_SECONDS = 60.0
_MOST_NAMED = 3
_DONE, _ALL_DONE = "done", "all_done"


class PatientBarrier:
    """`work` is a context for work that may take one host hours longer than another; it ends on all ranks at once.

    Args:
        store: shared by all ranks; None where the job has one node, whose ranks work equally fast.
        phases: of this rank, which are told that it waits.
    """

    def __init__(self, store: dist.Store | None, rank: int, ranks: int, phases: Phases) -> None:
        self._store, self._rank, self._ranks, self._phases = store, rank, ranks, phases
        self._sign: dict[str, object] = {}
        self._met = 0
        """How often the ranks have met here."""
        self._told = -_TELL_EVERY_SECONDS

    @classmethod
    def of_this_job(cls, phases: Phases) -> PatientBarrier:
        rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        if node_count() == 1:
            return cls(None, rank, ranks, phases)
        store, *_ = next(dist.rendezvous("env://", timeout=timedelta(seconds=_START_SECONDS)))
        # A launcher that starts the ranks again may keep its store.
        start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return cls(dist.PrefixStore(f"patient_barrier_{start}", store), rank, ranks, phases)

    def beside(self, name: str) -> PatientBarrier:
        """Another one, for a thread beside the training."""
        store = None if self._store is None else dist.PrefixStore(name, self._store)
        return PatientBarrier(store, self._rank, self._ranks, Phases(None))

    @contextmanager
    def work(self, doing: str) -> Iterator[None]:
        """Context of work between two collectives. All ranks must enter it, and about at the same time.

        Args:
            doing: as the others tell of this host while they wait for it: "loads the model".

        Raises:
            MachineError: a rank gives no sign of life any more.
            RuntimeError: the store is gone, and with it the main rank's node.
        """
        if self._store is None:
            yield
            return
        self._sign = {"host": socket.gethostname(), "number": 0, "doing": doing, "met": self._met}
        over = threading.Event()
        living = threading.Thread(target=self._live, args=(self._store, over), name="signs of life", daemon=True)
        living.start()
        try:
            yield
            self._wait(self._store)
        finally:
            over.set()
            # In a store that does not answer it may hang for long.
            living.join(_LOOK_EVERY_SECONDS)

    def show(self, what: str, done: int, total: int) -> None:
        """Note how far this rank is with its data, for the log and for those that wait."""
        self._sign["doing"] = f"is {what}" + (f": {done / total:.0%}" if total else "")
        if time.monotonic() - self._told > _TELL_EVERY_SECONDS:
            self._told = time.monotonic()
            say(f"the tokens of this run are not in the cache of this host, which {self._sign['doing']}")

    def _wait(self, store: dist.Store) -> None:
        self._met += 1
        self._sign |= {"doing": "", "met": self._met}
        self._give_sign(store)
        store.add(_DONE, 1)
        watched = _Watched(store, range(1, self._ranks) if self._rank == 0 else [0], self._met)
        phase = self._phases.current
        while not self._all_are_done(store):
            self._phases.enter("rendezvous")
            watched.look()
            time.sleep(_LOOK_EVERY_SECONDS)
        self._phases.enter(phase)

    def _all_are_done(self, store: dist.Store) -> bool:
        if self._rank != 0:
            return store.add(_ALL_DONE, 0) >= self._met
        if store.add(_DONE, 0) < self._met * self._ranks:
            return False
        store.add(_ALL_DONE, 1)
        return True

    def _live(self, store: dist.Store, over: threading.Event) -> None:
        while not over.is_set():
            try:
                self._give_sign(store)
            except RuntimeError:
                # The store is gone, which this rank notices as soon as it waits.
                return
            over.wait(_SIGN_EVERY_SECONDS)

    def _give_sign(self, store: dist.Store) -> None:
        self._sign["number"] = time.monotonic_ns()
        store.set(_key(self._rank), json.dumps(self._sign))


class _Watched:
    """The ranks that this one waits for, and since when their last signs have been the same."""

    def __init__(self, store: dist.Store, ranks: range | list[int], met: int) -> None:
        self._store, self._ranks, self._met = store, ranks, met
        self._began = self._looked = time.monotonic()
        self._told = self._began + _TELL_AFTER_SECONDS - _TELL_EVERY_SECONDS
        self._signs: dict[int, tuple[str, float]] = {}

    def look(self) -> None:
        now = time.monotonic()
        if now - self._looked < _SIGN_EVERY_SECONDS:
            return
        self._looked = now
        for rank in self._ranks:
            sign = self._store.get(_key(rank)).decode() if self._store.check([_key(rank)]) else ""
            before, since = self._signs.setdefault(rank, (sign, now))
            if sign != before:
                self._signs[rank] = sign, now
            elif now - since > (_SILENT_SECONDS if sign else _START_SECONDS):
                raise _lost(rank, sign, now - since)
        if now - self._told > _TELL_EVERY_SECONDS and (missing := self._missing()):
            self._told = now
            more = f", and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
            say(f"waiting for {', '.join(missing[:_MOST_NAMED])}{more}")

    def _missing(self) -> list[str]:
        """The hosts that are not done, each with what it does."""
        found = dict[str, str]()
        for sign, _ in self._signs.values():
            told = json.loads(sign or '{"host": "hosts that start", "doing": "", "met": 0}')
            if told["met"] < self._met:
                # Of the ranks of a host one prepares the data, and tells more than the others.
                found[told["host"]] = max(found.get(told["host"], ""), told["doing"], key=len)
        return [f"{host}, which {doing}" if doing else host for host, doing in found.items()]


def _lost(rank: int, sign: str, seconds: float) -> MachineError:
    who = f"rank {rank}" + (f" on {json.loads(sign)['host']}" if sign else "")
    return MachineError(
        f"{who} has given no sign of life for {format_duration(seconds)}, while the others wait for it",
        code="ranks-not-met",
        remedy="look at its log and whether its host is up; then run the same command again",
    )


def _key(rank: int) -> str:
    return f"sign_{rank}"
