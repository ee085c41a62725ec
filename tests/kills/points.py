"""Faults at every operation on files: a process is killed, stopped or finds the disk full at the N-th one.

What runs is forked, so it needs no time to start; Python's audit hooks see its operations, and there is nothing for
them in the program. Operations of the libraries that write by themselves (safetensors) are not seen, what follows is.
"""

from __future__ import annotations

import errno
import importlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ascendtune.core import log
from ascendtune.recipe.recipe import Recipe
from ascendtune.train import attempt
from ascendtune.train.prepare import PreparedRun, prepare_run

Kind = Literal["kill", "stop", "full"]
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
_LIBRARIES = {"torch", "transformers", "peft", "safetensors", "pyarrow", "tokenizers", "deepspeed", "numpy", "jinja2"}
_PATIENCE_SECONDS = 120


@dataclass(frozen=True)
class Fault:
    """What happens, and when."""

    kind: Kind
    at: int
    """The operation before which it happens, from 1; 0: never."""
    rank: int = 0


class _Counter:
    def __init__(self, below: Path, fault: Fault, count: Path) -> None:
        self._below, self._fault, self._count = below, fault, count
        self._seen: list[str] = []
        self._pid = os.getpid()

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES):
            self._note(arguments[0])

    def fsync(self, descriptor: Any) -> None:
        self._note(descriptor)
        self._really_fsync(descriptor)

    def install(self) -> None:
        self._really_fsync, os.fsync = os.fsync, self.fsync
        sys.addaudithook(self.audit)

    def close(self) -> None:
        seen, self._pid = self._seen, 0
        self._count.write_text(json.dumps({"operations": seen, "modules": list(sys.modules)}))

    def _note(self, what: Any) -> None:
        if os.getpid() != self._pid:
            return
        try:
            path = Path(f"/proc/self/fd/{what}").readlink() if isinstance(what, int) else Path(os.fsdecode(what))
        except (OSError, TypeError):
            return
        if not path.is_relative_to(self._below):
            return
        self._seen.append(str(path.relative_to(self._below)))
        if self._fault.kind == "full" and self._fault.at and len(self._seen) >= self._fault.at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if len(self._seen) == self._fault.at:
            os.kill(os.getpid(), signal.SIGKILL if self._fault.kind == "kill" else signal.SIGTERM)


def seen_operations(count: Path) -> list[str]:
    """The paths of a whole run's operations, in order. This process imports what that one has imported.

    The processes that are forked later are spared the time.
    """
    content = json.loads(count.read_text())
    for name in content["modules"]:
        if name.partition(".")[0] in _LIBRARIES and name not in sys.modules:
            # Some stand for parts of others, under names that cannot be imported.
            with suppress(ImportError):
                importlib.import_module(name)
    operations: list[str] = content["operations"]
    return operations


def forked(action: Callable[[], None], below: Path, fault: Fault, count: Path) -> int:
    """Run `action` in a forked process; returns its exit code, negative for a signal. 77: it raised."""
    process = multiprocessing.get_context("fork").Process(target=_be_child, args=(action, below, fault, count))
    process.start()
    process.join(_PATIENCE_SECONDS)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"hung at {fault}")
    assert process.exitcode is not None
    return process.exitcode


def _be_child(action: Callable[[], None], below: Path, fault: Fault, count: Path) -> None:
    # What it says is only of use where it fails.
    output = os.open(count.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    sys.stdout = sys.stderr = os.fdopen(output, "w", buffering=1)
    log.set_up()
    counter = _Counter(below, fault, count)
    if fault.rank == int(os.environ.get("RANK", "0")):
        counter.install()
    try:
        action()
    except BaseException:  # noqa: BLE001
        import traceback

        traceback.print_exc()
        os._exit(77)
    counter.close()
    os._exit(0)


def train(recipe: Recipe, ranks: int, fault: Fault, count: Path) -> int:
    """One start, as `ascendtune train` makes it; returns the exit code of the process in which the fault happens."""
    below = recipe.run_directory().parent
    if ranks == 1:
        return forked(lambda: _train_alone(recipe, count), below, fault, count)
    return forked(lambda: _launch(recipe, ranks, fault, count), below, Fault("kill", 0), count.with_name("launcher"))


def _train_alone(recipe: Recipe, count: Path) -> None:
    start = _prepared(recipe, count)
    assert start.run is not None and start.claim is not None
    with start.claim:
        attempt.train(start.run, start.run.read())


def _prepared(recipe: Recipe, count: Path) -> PreparedRun:
    start = prepare_run(recipe, {})
    assert start.run is not None
    count.with_name("resumed").write_text(str(start.run.read().get("resume_from")))
    return start


def _launch(recipe: Recipe, ranks: int, fault: Fault, count: Path) -> None:
    """As torchrun does: when a rank has ended otherwise than well, the others are killed."""
    start = _prepared(recipe, count)
    run = start.run
    assert run is not None and start.claim is not None
    with start.claim, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        os.environ |= {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        context = multiprocessing.get_context("fork")
        processes = []
        for rank in range(ranks):
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            at = count if rank == fault.rank else count.with_name(f"rank_{rank}")
            processes.append(
                context.Process(target=_be_child, args=(lambda: attempt.train(run, run.read()), run.path, fault, at))
            )
            processes[-1].start()
        deadline = time.monotonic() + _PATIENCE_SECONDS - 10
        while any(each.exitcode is None for each in processes):
            if any(each.exitcode for each in processes) or time.monotonic() > deadline:
                # Ranks that are stopped end together, after their checkpoint.
                time.sleep(0 if fault.kind == "kill" else 5)
                for each in processes:
                    each.kill()
            time.sleep(0.005)
    codes = [each.exitcode for each in processes]
    if any(codes):
        os._exit(next(256 + code if code < 0 else code for code in codes if code))
