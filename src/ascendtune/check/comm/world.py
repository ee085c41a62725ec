"""The process group of the ranks and its key-value store, from one rank."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from ascendtune.core.records import LineWriter
from ascendtune.machine.peers import init_method, require_own_peers
from ascendtune.machine.torch_backend.device import Device


class AbsentRanksError(Exception):
    """Some ranks did not arrive within the time limit."""

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(f"ranks {', '.join(map(str, ranks))} did not arrive")
        self.ranks = list(ranks)


@dataclass
class World:
    """The ranks, synchronised through the job's key-value store, beside the process group under test.

    The store does not use the devices or their links, so it shows which ranks are missing if a collective hangs.
    """

    rank: int
    size: int
    device: Device
    store: dist.Store
    notes: LineWriter
    limit: timedelta
    _meetings: int = field(default=0, init=False)

    @classmethod
    def join(cls, device: Device, notes: LineWriter, limit: timedelta) -> World:
        """Wait for all ranks, given by torchrun's variables, then create the process group.

        Raises:
            AbsentRanksError: some ranks did not arrive.
        """
        rendezvous_store, rank, size = next(
            rendezvous(init_method(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), timeout=limit)
        )
        # A file store has its own time-out.
        rendezvous_store.set_timeout(limit)
        store = dist.PrefixStore("ascendtune-comm", rendezvous_store)
        world = cls(rank, size, device, store, notes, limit)
        world.begin("the start")
        dist.init_process_group(
            device.collective_backend,
            store=dist.PrefixStore("group", rendezvous_store),
            rank=rank,
            world_size=size,
            timeout=limit,
            device_id=device.torch_device if device.binds_process_group else None,
        )
        require_own_peers()
        return world

    def begin(self, place: str) -> None:
        """Write a note on the next piece of work, and wait for all ranks.

        Raises:
            AbsentRanksError: some ranks did not arrive.
        """
        self.notes.write({"at": place})
        self.exchange("")

    def exchange(self, word: str) -> list[str]:
        """Return the words of all ranks, ordered by rank.

        Raises:
            AbsentRanksError: some ranks did not send a word.
        """
        self.restart_watchdog()
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

    def restart_watchdog(self) -> None:
        """Restart the watchdog: if it is not called within twice the limit, the process exits with a
        traceback in its log.

        This ends processes that hang below Python, in a driver or a collective library.
        """
        faulthandler.dump_traceback_later(2 * self.limit.total_seconds(), exit=True)

    def rest(self) -> None:
        """Stop the watchdog until its next restart."""
        faulthandler.cancel_dump_traceback_later()

    def leave(self) -> None:
        self.begin("the end")
        dist.destroy_process_group()
        self.rest()
