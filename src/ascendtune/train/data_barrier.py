"""Ranks whose data is ready wait for those whose hosts still prepare theirs, for hours where these live.

A process group gives up after a time that is meant for lost ranks. So the ranks of several nodes wait before they have
one: each gives signs of life in torchrun's store, and the main rank lets all go on when the last one is ready.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from ascendtune.core.errors import MachineError
from ascendtune.core.log import say
from ascendtune.core.units import format_duration
from ascendtune.train.strategy.base import node_count

_SIGN_EVERY_SECONDS = 10.0
_LOOK_EVERY_SECONDS = 1.0
_SILENT_SECONDS = 300.0
"""Without a sign, after which a rank is taken for lost."""
_START_SECONDS = 1800.0
"""The same for one that has given none: it imports torch, perhaps from a slow file system."""
_TELL_AFTER_SECONDS = 15.0
_TELL_EVERY_SECONDS = 60.0
_MOST_NAMED = 3
_READY, _ALL_READY = "ready", "all_ready"


class DataBarrier:
    """Gives signs of life from the beginning until `close`.

    Args:
        store: shared by all ranks; None where the job has one node, whose ranks take turns in one cache.
    """

    def __init__(self, store: dist.Store | None, rank: int, ranks: int) -> None:
        self._store, self._rank, self._ranks = store, rank, ranks
        self._sign: dict[str, object] = {
            "host": socket.gethostname(),
            "number": 0,
            "doing": "prepares its data",
            "is_ready": False,
        }
        self._told = -_TELL_EVERY_SECONDS
        self._over = threading.Event()
        if store is not None:
            threading.Thread(target=self._live, args=(store,), name="signs of life", daemon=True).start()

    @classmethod
    def of_this_job(cls) -> DataBarrier:
        rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        if node_count() == 1:
            return cls(None, rank, ranks)
        store, *_ = next(dist.rendezvous("env://", timeout=timedelta(seconds=_START_SECONDS)))
        # A launcher that starts the ranks again may keep its store.
        start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return cls(dist.PrefixStore(f"data_barrier_{start}", store), rank, ranks)

    def show(self, what: str, done: int, total: int) -> None:
        """Note how far this rank is with its data, for the log and for those that wait."""
        self._sign["doing"] = f"is {what}" + (f": {done / total:.0%}" if total else "")
        if time.monotonic() - self._told > _TELL_EVERY_SECONDS:
            self._told = time.monotonic()
            say(f"the tokens of this run are not in the cache of this host, which {self._sign['doing']}")

    def wait(self, pulse: Callable[[], None]) -> None:
        """Return when the data of every rank is ready.

        Args:
            pulse: called again and again meanwhile.

        Raises:
            MachineError: a rank gives no sign of life any more.
            RuntimeError: the store is gone, and with it the main rank's node.
        """
        if self._store is None:
            return
        self._sign |= {"doing": "", "is_ready": True}
        self._give_sign(self._store)
        self._store.add(_READY, 1)
        watched = _Watched(self._store, range(1, self._ranks) if self._rank == 0 else [0])
        while not self._all_are_ready(self._store):
            pulse()
            watched.look()
            time.sleep(_LOOK_EVERY_SECONDS)

    def close(self) -> None:
        self._over.set()

    def _all_are_ready(self, store: dist.Store) -> bool:
        if self._rank != 0:
            return bool(store.check([_ALL_READY]))
        if store.add(_READY, 0) < self._ranks:
            return False
        store.set(_ALL_READY, "")
        return True

    def _live(self, store: dist.Store) -> None:
        while not self._over.is_set():
            try:
                self._give_sign(store)
            except RuntimeError:
                # The store is gone, which this rank notices as soon as it waits.
                return
            self._over.wait(_SIGN_EVERY_SECONDS)

    def _give_sign(self, store: dist.Store) -> None:
        self._sign["number"] = time.monotonic_ns()
        store.set(_key(self._rank), json.dumps(self._sign))


class _Watched:
    """The ranks that this one waits for, and since when their last signs have been the same."""

    def __init__(self, store: dist.Store, ranks: range | list[int]) -> None:
        self._store, self._ranks = store, ranks
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
        """The hosts whose data is not ready, each with what it does."""
        found = dict[str, str]()
        for sign, _ in self._signs.values():
            told = json.loads(sign or '{"host": "hosts that start", "doing": "", "is_ready": false}')
            if not told["is_ready"]:
                # Of the ranks of a host one prepares the data, and tells more than the others.
                found[told["host"]] = max(found.get(told["host"], ""), told["doing"], key=len)
        return [f"{host}, which {doing}" if doing else host for host, doing in found.items()]


def _lost(rank: int, sign: str, seconds: float) -> MachineError:
    who = f"rank {rank}" + (f" on {json.loads(sign)['host']}" if sign else "")
    return MachineError(
        f"{who} has given no sign of life for {format_duration(seconds)}, while the others wait for its data",
        code="ranks-not-met",
        remedy="look at its log and whether its host is up; then run the same command again",
    )


def _key(rank: int) -> str:
    return f"sign_{rank}"
