"""torchrun with a rendezvous that unpickles nothing and listens on one address at most.

    python -m ascendtune.job.torchrun OPTIONS OF TORCHRUN

torchrun's own stores listen on all interfaces, and its elastic rendezvous unpickles a key of the store: any process
that reaches the port can run code as this user. Two other rendezvous replace it:

    --rdzv-backend file       One host. The ranks use a file that exists in this process only and that only processes
                              of the same user can open. Nothing listens.
    --rdzv-backend address    The ranks use a TCPStore, which listens on one address of node 0: that of --local-addr.
                              The keys that torchrun itself reads from it are JSON.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType

from torch.distributed import HashStore, PrefixStore, Store, TCPStore, run
from torch.distributed.elastic.multiprocessing import api
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from ascendtune.core.errors import MachineError
from ascendtune.core.log import error, set_up
from ascendtune.machine.peers import INIT_METHOD

_LOOPBACK = "127.0.0.1"
_PATIENCE_SECONDS = 10.0
"""Longer than the store's own time-out, which ends all other cases with a better message."""


class OneRendezvous(RendezvousHandler):
    """A single rendezvous: nodes neither join nor leave a job that has begun."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._name = parameters.backend
        self._run_id = parameters.run_id
        self.rank = parameters.get_as_int("rank", 0) or 0
        self.nnodes = parameters.max_nodes

    def get_backend(self) -> str:
        return self._name

    def get_run_id(self) -> str:
        return self._run_id

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        return True

    def _info(self, store: Store, master_addr: str, master_port: int) -> RendezvousInfo:
        return RendezvousInfo(store, self.rank, self.nnodes, RendezvousStoreInfo(master_addr, master_port))


class FileRendezvous(OneRendezvous):
    """Passes a file in memory to the ranks as `init_method`; torchrun itself, on one host, does not need their
    store."""

    def next_rendezvous(self) -> RendezvousInfo:
        descriptor = os.memfd_create("rendezvous")
        # The kernel lets only this user's processes use /proc/PID/fd, and the file ends with this process.
        os.environ[INIT_METHOD] = f"file:///proc/{os.getpid()}/fd/{descriptor}"
        return self._info(HashStore(), _LOOPBACK, 0)


class AddressRendezvous(OneRendezvous):
    """A TCPStore on node 0 that all nodes and all ranks use (MASTER_ADDR, MASTER_PORT)."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        super().__init__(parameters)
        host, _, port = parameters.endpoint.rpartition(":")
        self._master = host.strip("[]"), int(port)
        self._own_address = parameters.local_addr
        self._timeout = timedelta(seconds=parameters.get_as_int("timeout", 600) or 600)
        self._store: Store | None = None

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        # Set if a job was started inside another one's rank.
        os.environ.pop(INIT_METHOD, None)
        host, port = self._master
        listening = None
        if self.rank == 0:
            # The name of node 0 may mean another address here than elsewhere, such as 127.0.1.1 on Debian.
            host = self._own_address or host
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            with socket.create_server((host, port), family=family) as server:
                port = server.getsockname()[1]
                listening = server.detach()
        with _ended_without_answer(f"{host}:{port}", self._timeout.total_seconds() + _PATIENCE_SECONDS):
            self._store = TCPStore(
                host, port, self.nnodes, is_master=self.rank == 0, timeout=self._timeout, master_listen_fd=listening
            )
        # One node needs no shared store for torchrun's own keys, and other processes cannot write a local one.
        own = HashStore() if self.nnodes == 1 else PrefixStore(self.get_run_id(), self._store)
        return self._info(own, host, port)


@contextmanager
def _ended_without_answer(address: str, seconds: float) -> Iterator[None]:
    """End this process if the block takes longer: a store waits for ever for a program that accepts and never
    answers."""

    def end() -> None:
        error(
            f"{address} accepts connections and does not answer: another program listens there, or node 0 hangs; "
            "choose another MASTER_PORT, or end that program on node 0"
        )
        os._exit(MachineError.exit_code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _leave_signals_to_the_launcher() -> None:
    """Ignore signals that ask this process to end as long as its parent, the launcher, lives.

    A scheduler sends them to every process of a job. The launcher passes them on to the ranks; torchrun would kill the
    ranks 30 s later, in the middle of a large checkpoint.
    """
    launcher, end = os.getppid(), api._terminate_process_handler

    def end_without_launcher(signum: int, frame: FrameType | None) -> None:
        if os.getppid() != launcher:
            error(
                f"the process that started the job (pid {launcher}) has ended, and so the ranks are stopped\n"
                "   do: it was killed (kill -9, out of host memory, a container that was removed): see "
                "`dmesg | grep -i oom`; then start the job again"
            )
            end(signum, frame)

    api._terminate_process_handler = end_without_launcher


def main(arguments: list[str]) -> None:
    set_up()
    _leave_signals_to_the_launcher()
    rendezvous_handler_registry.register("file", FileRendezvous)
    rendezvous_handler_registry.register("address", AddressRendezvous)
    run.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
