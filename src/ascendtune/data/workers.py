"""Forked processes that work on numbered pieces. A killed process is an error, and no process is left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import TypeVar

from ascendtune.core.errors import MachineError

Result = TypeVar("Result")


def run_in_workers(
    work: Callable[[int], Result], pieces: int, processes: int
) -> Generator[tuple[int, Result], None, None]:
    """(number, work(number)) for every piece, in the order of completion.

    Args:
        work: runs in a forked child, so it can use everything that exists here; its result is pickled.
        processes: with 1, everything is done in this process.

    Raises:
        MachineError: a child was killed.
        Exception: the exception of `work`, with the same type.
    """
    if min(processes, pieces) <= 1:
        for number in range(pieces):
            yield number, work(number)
        return
    context = multiprocessing.get_context("fork")
    children: dict[Connection, ForkProcess] = {}
    remaining = iter(range(pieces))
    try:
        for number in islice(remaining, min(processes, pieces)):
            end, child_end = context.Pipe()
            child = context.Process(target=_serve, args=(work, child_end, end, os.getpid()), daemon=True)
            with _interrupts_blocked():
                child.start()
            child_end.close()
            children[end] = child
            end.send(number)
        yield from _collect(children, remaining)
    finally:
        for child in children.values():
            child.kill()
        for connection, child in children.items():
            child.join()
            connection.close()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT for children forked in this context: the terminal sends Ctrl-C to all, and this process ends
    them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _collect(
    children: dict[Connection, ForkProcess], remaining: Iterator[int]
) -> Generator[tuple[int, Result], None, None]:
    working = dict(children)
    while working:
        for connection in wait(list(working)):
            assert isinstance(connection, Connection)
            try:
                number, result, failure = connection.recv()
                if failure is not None:
                    raise failure
                following = next(remaining, None)
                connection.send(following)
            except (EOFError, ConnectionError):
                raise _died(working[connection]) from None
            if following is None:
                del working[connection]
            yield number, result


def _serve(work: Callable[[int], Result], connection: Connection, parents_end: Connection, parent: int) -> None:
    # This copy of the parent's end would keep the pipe open after the parent's end.
    parents_end.close()
    try:
        while (number := connection.recv()) is not None and os.getppid() == parent:
            answer: tuple[int, Result | None, BaseException | None]
            try:
                answer = (number, work(number), None)
            except Exception as failure:  # noqa: BLE001  # It is raised again in the parent.
                answer = (number, None, failure)
            connection.send(answer)
    except (EOFError, OSError, KeyboardInterrupt):
        # The parent has ended, or is ending this process.
        return


def _died(child: ForkProcess) -> MachineError:
    child.join()
    code = child.exitcode or 0
    cause = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return MachineError(
        f"a worker process of the data preparation {cause}",
        code="data-process-died",
        remedy="if memory ran out (see `dmesg`), set data.processes: 1, or read less with `limit`; then start again",
    )
