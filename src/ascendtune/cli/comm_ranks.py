"""What `comm test` and `comm bench` have in common: which ranks are started, where they write, and the waiting."""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import typer

from ascendtune.check.comm.notes import notes_path
from ascendtune.check.comm.start import Ran, Ranks, run_ranks
from ascendtune.cli.complain import warn
from ascendtune.cli.device_choice import choose
from ascendtune.cli.node_choice import choose_nodes
from ascendtune.cli.progress import Progress
from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.files import removed_on_failure, require_writable
from ascendtune.machine.vendor.find import vendor_of
from ascendtune.machine.visible import cpu_count, visible_devices

_LOOK_SECONDS = 0.2
_FEWEST = 2


def choose_ranks(devices: int | None, device_ids: str | None, nodes: str | None) -> Ranks:
    """A rank for each device that was asked for, by default for each that is visible; two on the CPU.

    Args:
        nodes: `--nodes`: hosts on which `devices` are each host's; on the CPU one rank each.

    Raises:
        InputError: fewer than two were asked for.
        MachineError: there are not as many.
    """
    if nodes is not None:
        return _ranks_on_hosts(devices, device_ids, nodes)
    visible = visible_devices()
    count = _FEWEST if not visible.vendor.is_accelerator and devices is None and device_ids is None else devices
    chosen = choose(visible, count=count, ids=device_ids, cores=cpu_count())
    for message in (visible.note, chosen.warning):
        if message:
            warn(message)
    if chosen.count < _FEWEST:
        if devices is not None or device_ids is not None:
            raise InputError("one rank has no peer", remedy="ask for two devices or more")
        raise MachineError("only one device is visible: a rank needs a peer", remedy="make a second one visible")
    ids = chosen.ids or visible.ids[: chosen.count]
    names = tuple(f"{chosen.kind} {name}" for name in ids) if visible.vendor.is_accelerator else ()
    return Ranks(chosen.kind, chosen.count, chosen.ids, names)


def _ranks_on_hosts(devices: int | None, device_ids: str | None, nodes: str) -> Ranks:
    where = choose_nodes(nodes, min_nodes=None, max_restarts=0, devices=devices, device_ids=device_ids, env={})
    found = where.inquire()
    assert found is not None
    if sum(found.nproc) < _FEWEST:
        raise InputError("one rank has no peer", remedy="name two hosts or more")
    per_host = zip(found.names, found.nproc, strict=True)
    unit = found.kind if vendor_of(found.kind).is_accelerator else "rank"
    names = tuple(f"{host} {unit} {number}" for host, nproc in per_host for number in range(nproc))
    return Ranks(found.kind, sum(found.nproc), None, names, where.hosts)


def run(work: dict[str, Any], ranks: Ranks, directory: Path | None, *, steps: int) -> Ran:
    """Let the ranks work. A directory of our own stays only where a rank failed: its log is there.

    Args:
        steps: how often each rank will note that it begins something.
    """
    place = directory or Path(tempfile.mkdtemp(prefix="ascendtune-comm-", dir=place_for(ranks)))
    with removed_on_failure(place) if directory is None else nullcontext(), _progress(place, steps):
        ran = run_ranks(work, ranks, place)
        if ran.outcome.exit_code >= 128 and ran.outcome.error is None:
            # Asked to stop, by Ctrl-C for instance: there is nothing to say.
            raise typer.Exit(ran.outcome.exit_code)
    if directory is None and ran.is_whole:
        shutil.rmtree(place, ignore_errors=True)
    return ran


def place_for(ranks: Ranks) -> Path:
    """Where every rank sees what is written: hosts share, if anything, the directory that the command is given in.

    Raises:
        MachineError: it cannot be written.
    """
    place = Path(tempfile.gettempdir()) if ranks.hosts is None else Path.cwd() / ".ascendtune"
    require_writable(place)
    place.mkdir(exist_ok=True)
    return place


@contextmanager
def _progress(directory: Path, steps: int) -> Iterator[None]:
    """Say how far rank 0 is; this thread waits for the job meanwhile."""
    ended = threading.Event()

    def watch() -> None:
        with Progress(sys.stderr) as progress:
            while not ended.wait(_LOOK_SECONDS):
                notes = notes_path(directory, 0)
                done = notes.read_bytes().count(b'{"at"') if notes.exists() else 0
                progress.show("collectives", min(done, steps), steps)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
