"""The ranks that were started together, as one of them sees them."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from ascendtune.check.comm.notes import NoteWriter
from ascendtune.machine.peers import init_method, require_own_peers
from ascendtune.machine.torch_backend.device import Device


class AbsentRanksError(Exception):
    """Some ranks have not come to a meeting within the time limit."""

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(f"ranks {', '.join(map(str, ranks))} have not come")
        self.ranks = list(ranks)


@dataclass
class World:
    """Besides the process group that is looked at there is the job's key-value store, in which ranks meet.

    The store needs nothing of the devices and their links, so it can say who is missing where a collective only hangs.
    """

    rank: int
    size: int
    device: Device
    store: dist.Store
    notes: NoteWriter
    limit: timedelta
    _meetings: int = field(default=0, init=False)

    @classmethod
    def join(cls, device: Device, notes: NoteWriter, limit: timedelta) -> World:
        """Meet the ranks that torchrun's variables name, then connect the devices.

        Raises:
            AbsentRanksError: not all have come.
        """
        found, rank, size = next(
            rendezvous(init_method(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), timeout=limit)
        )
        # A store in a file has a limit of its own.
        found.set_timeout(limit)
        store = dist.PrefixStore("ascendtune-comm", found)
        world = cls(rank, size, device, store, notes, limit)
        world.begin("the start")
        dist.init_process_group(
            device.collective_backend,
            store=dist.PrefixStore("group", found),
            rank=rank,
            world_size=size,
            timeout=limit,
            device_id=device.torch_device if device.binds_process_group else None,
        )
        require_own_peers()
        return world

    def begin(self, place: str) -> None:
        """Note what comes next, and wait until all ranks are there.

        Raises:
            AbsentRanksError: not all have come.
        """
        self.notes.write({"at": place})
        self.exchange("")

    def exchange(self, word: str) -> list[str]:
        """The words of all ranks, by rank.

        Raises:
            AbsentRanksError: not all have said theirs.
        """
        self.pulse()
        self._meetings += 1
        keys = [f"{self._meetings}/{rank}" for rank in range(self.size)]
        self.store.set(keys[self.rank], word)
        try:
            self.store.wait(keys, self.limit)
        except RuntimeError:
            absent = [rank for rank, key in enumerate(keys) if not self.store.check([key])]
            if not absent:
                raise
            raise AbsentRanksError(absent) from None
        return [self.store.get(key).decode() for key in keys]

    def pulse(self) -> None:
        """A sign of life. Without another one for twice the limit this process ends, with a traceback in the log.

        So ends what hangs below Python, in a driver or a collective library.
        """
        faulthandler.dump_traceback_later(2 * self.limit.total_seconds(), exit=True)

    def rest(self) -> None:
        """Until the next sign of life any time may pass."""
        faulthandler.cancel_dump_traceback_later()

    def leave(self) -> None:
        self.begin("the end")
        dist.destroy_process_group()
        self.rest()
