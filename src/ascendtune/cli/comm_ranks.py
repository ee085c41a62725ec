"""Chooses and starts the ranks of `comm test` and `comm bench`, and shows their progress."""

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
from ascendtune.check.comm.start import RankGroup, RankResults, run_ranks
from ascendtune.cli.device_choice import choose
from ascendtune.cli.messages import warn
from ascendtune.cli.node_choice import choose_nodes
from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.files import removed_on_failure, require_writable
from ascendtune.core.progress_bar import ProgressBar
from ascendtune.machine.vendor.find import vendor_of
from ascendtune.machine.visible import cpu_count, visible_devices

_LOOK_SECONDS = 0.2
_FEWEST = 2
_TOO_FEW = "at least two ranks are needed"


def choose_ranks(devices: int | None, device_ids: str | None, nodes: str | None) -> RankGroup:
    """One rank for each requested device (default: each visible one; on the CPU two ranks).

    Args:
        nodes: the value of `--nodes`. `devices` counts per host; the default on the CPU is one rank per host.

    Raises:
        InputError: fewer than two ranks were requested.
        MachineError: fewer devices are visible.
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
            raise InputError(_TOO_FEW, code="too-few-ranks", remedy="request two devices or more")
        raise MachineError(
            f"{_TOO_FEW}: one device is visible", code="too-few-ranks", remedy="make a second one visible"
        )
    ids = chosen.ids or visible.ids[: chosen.count]
    names = tuple(f"{chosen.kind} {name}" for name in ids) if visible.vendor.is_accelerator else ()
    return RankGroup(chosen.kind, chosen.count, chosen.ids, names)


def _ranks_on_hosts(devices: int | None, device_ids: str | None, nodes: str) -> RankGroup:
    chosen_nodes = choose_nodes(nodes, min_nodes=None, max_restarts=0, devices=devices, device_ids=device_ids, env={})
    resources = chosen_nodes.query_resources()
    assert resources is not None
    if sum(resources.nproc) < _FEWEST:
        raise InputError(_TOO_FEW, code="too-few-ranks", remedy="give two hosts or more")
    per_host = zip(resources.names, resources.nproc, strict=True)
    unit = resources.kind if vendor_of(resources.kind).is_accelerator else "rank"
    names = tuple(f"{host} {unit} {number}" for host, nproc in per_host for number in range(nproc))
    return RankGroup(resources.kind, sum(resources.nproc), None, names, chosen_nodes.hosts)


def run(work: dict[str, Any], ranks: RankGroup, directory: Path | None, *, steps: int) -> RankResults:
    """Run the ranks. A temporary directory is kept only if a rank failed, because its log is there.

    Args:
        steps: number of notes that each rank writes before a piece of work, for the progress bar.
    """
    place = directory or Path(tempfile.mkdtemp(prefix="ascendtune-comm-", dir=scratch_directory(ranks)))
    with removed_on_failure(place) if directory is None else nullcontext(), _progress(place, steps):
        ran = run_ranks(work, ranks, place)
        if ran.outcome.exit_code >= 128 and ran.outcome.error is None:
            # Stopped by a signal, for instance Ctrl-C: no message is needed.
            raise typer.Exit(ran.outcome.exit_code)
    if directory is None and ran.is_whole:
        shutil.rmtree(place, ignore_errors=True)
    return ran


def scratch_directory(ranks: RankGroup) -> Path:
    """A directory that every rank can write: with several hosts one in the working directory, which they may share.

    Raises:
        MachineError: the directory is not writable.
    """
    place = Path(tempfile.gettempdir()) if ranks.hosts is None else Path.cwd() / ".ascendtune"
    require_writable(place)
    place.mkdir(exist_ok=True)
    return place


@contextmanager
def _progress(directory: Path, steps: int) -> Iterator[None]:
    """Show the progress of rank 0 from a thread, while the caller waits for the job."""
    ended = threading.Event()

    def watch() -> None:
        with ProgressBar(sys.stderr) as progress:
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
