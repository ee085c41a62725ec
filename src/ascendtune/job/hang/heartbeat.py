"""Heartbeats that workers write to a run directory, RUN/heartbeat/rank_N.json: the current phase and its start.

Workers before their first heartbeat, and programs that are not ours, are known only as processes.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ascendtune.core.errors import MachineError
from ascendtune.core.procfs import Stat, boot_id, is_alive, pid_namespace, stat_of
from ascendtune.core.records import read_json_record
from ascendtune.core.rundir import RunDir

STARTUP = "startup"
"""Phase of a worker before its first heartbeat: its interpreter starts, torch is imported."""
RUNNING = "running"
"""Phase of a program without heartbeats."""


@dataclass(frozen=True)
class RankHeartbeat:
    """The last heartbeat of a rank: it entered `phase` of `step` at `monotonic`."""

    rank: int
    phase: str
    step: int
    monotonic: float
    """Seconds since the host was started."""
    attempt: int
    pid: int
    start_ticks: int
    """Start time of the process; a process that has reused the pid has another one."""
    host: str
    boot_id: str
    pid_namespace: str

    @property
    def place(self) -> str:
        """The phase and step of the rank, for messages."""
        if self.phase == RUNNING:
            return self.phase
        return f"{self.phase} of step {self.step:,}" if self.step else f"{self.phase}, before the first step"

    def process(self) -> Stat | None:
        """The process, if it runs on this machine."""
        is_here = is_alive(self.pid, self.start_ticks, boot=self.boot_id, namespace=self.pid_namespace, host=self.host)
        return stat_of(self.pid) if is_here else None


def newest_beats(run_dir: Path, among: Iterable[int] | None = None) -> list[RankHeartbeat]:
    """The heartbeats of the newest attempt, sorted by rank, of all hosts; empty for a program without heartbeats.

    Args:
        among: read only those of these ranks; by default all.
    """
    place = RunDir(run_dir).heartbeats
    paths = place.glob("rank_*.json") if among is None else (place / f"rank_{rank}.json" for rank in among)
    beats = [beat for path in paths if (beat := _read(path, path.stem[5:])) is not None]
    newest = max((beat.attempt for beat in beats), default=0)
    return sorted((beat for beat in beats if beat.attempt == newest), key=lambda beat: beat.rank)


def beats_of(run_dir: Path, workers: Mapping[int, Stat], among: Iterable[int] | None = None) -> list[RankHeartbeat]:
    """`newest_beats`, with a heartbeat at its start for each process of this machine without one.

    Args:
        workers: rank -> process.
    """
    beats = newest_beats(run_dir, among)
    beating = {beat.pid for beat in beats if beat.process()}
    silent = {rank: stat for rank, stat in workers.items() if stat.pid not in beating}
    if silent and not beating:
        # The existing ones are of an earlier attempt.
        beats = []
    attempt = max((beat.attempt for beat in beats), default=0)
    phase = STARTUP if RunDir(run_dir).heartbeats.is_dir() else RUNNING
    began = [
        RankHeartbeat(
            rank=rank,
            phase=phase,
            step=0,
            monotonic=time.monotonic() - stat.age_seconds,
            attempt=attempt,
            pid=stat.pid,
            start_ticks=stat.start_ticks,
            host=socket.gethostname(),
            boot_id=boot_id(),
            pid_namespace=pid_namespace(),
        )
        for rank, stat in silent.items()
    ]
    return sorted([*(beat for beat in beats if beat.rank not in silent), *began], key=lambda beat: beat.rank)


def _read(path: Path, rank: str) -> RankHeartbeat | None:
    # A heartbeat is overwritten in place: one that is being written is read again the next time.
    with suppress(OSError, MachineError, ValueError, KeyError, TypeError):
        content = read_json_record(path)
        return RankHeartbeat(
            rank=int(rank),
            phase=str(content["phase"]),
            step=int(content["step"]),
            monotonic=float(content["monotonic"]),
            attempt=int(content["attempt"]),
            pid=int(content["pid"]),
            start_ticks=int(content["start_ticks"]),
            host=str(content["host"]),
            boot_id=str(content["boot_id"]),
            pid_namespace=str(content["pid_namespace"]),
        )
    return None
