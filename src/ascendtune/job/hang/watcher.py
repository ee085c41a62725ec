"""Watches the ranks of a run that this machine started, and applies the recipe's `on_hang` when they hang."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendtune.core.errors import AscendtuneError, CheckFailed
from ascendtune.core.exit_cause import exit_cause
from ascendtune.core.foreign_json import value_at
from ascendtune.core.locks import file_lock
from ascendtune.core.log import say, warn
from ascendtune.core.procfs import Stat
from ascendtune.core.rundir import RunDir
from ascendtune.core.units import format_duration
from ascendtune.job.hang import flight_recorder
from ascendtune.job.hang.hang_report import HangReport
from ascendtune.job.hang.heartbeat import STARTUP, RankHeartbeat, beats_of
from ascendtune.job.hang.judge import Hang, Judge, Limits
from ascendtune.job.hang.stacks import collect
from ascendtune.job.spec import OnHang

LOOK_EVERY_SECONDS = 2.0
_DEFAULT = Limits()
# A watcher that was inactive for so long was stopped or suspended, and probably the workers, too.
_ASLEEP_SECONDS = 30.0
_LIST_EVERY_SECONDS = 60.0


@dataclass(frozen=True)
class StopMethods:
    """The functions that end workers."""

    send_signal: Callable[[signal.Signals], None]
    kill: Callable[[], None]
    patience_seconds: float = 15.0
    """Between SIGINT and SIGTERM, and between SIGTERM and SIGKILL: time for a rank to stop by itself."""


def has_hung(run_dir: Path) -> bool:
    """Whether the newest attempt was ended because it hung."""
    return bool(value_at(RunDir(run_dir).read_if_any(), "exit_cause", "kind") == "hang")


class Watcher:
    """Call `look` repeatedly; it returns at once unless a look is due, and never raises."""

    def __init__(
        self,
        run_dir: Path,
        on_hang: OnHang,
        ways: StopMethods | None = None,
        workers: Callable[[], Mapping[int, Stat]] = dict,
        *,
        limits: Limits = _DEFAULT,
        look_every_seconds: float = LOOK_EVERY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch `run_dir`, where its workers write heartbeats.

        Args:
            ways: functions that end a hanging run; None: a hang is only reported.
            workers: returns rank -> process of the workers on this machine; without it, a worker that hangs before its
                first heartbeat is not detected.
        """
        self._run = RunDir(run_dir)
        self._on_hang = on_hang
        self._ways = ways if on_hang != "warn" else None
        self._find_workers = workers
        self._workers: Mapping[int, Stat] = {}
        self._limits = limits
        self._judge = Judge(limits)
        self._look_every = look_every_seconds
        self._clock = clock
        self._looked = -math.inf
        self._awake_since = -math.inf
        self._ranks_here: list[int] = []
        self._list_at = -math.inf
        self._reported_since: float | None = None
        self._ending: list[tuple[float, Callable[[], None]]] = []
        self._odd: tuple[int, ...] = ()
        self._error: CheckFailed | None = None
        self._step = 0

    def look(self) -> None:
        now = self._clock()
        if self._error:
            while self._ending and self._ending[0][0] <= now:
                self._ending.pop(0)[1]()
            return
        if now - self._looked < self._look_every:
            return
        if now - self._looked > _ASLEEP_SECONDS:
            self._awake_since = now
        self._looked = now
        beats = self._own_beats(now)
        hang = self._judge.look(beats, now)
        if hang and now - self._awake_since < self._limits.least_seconds:
            return
        if hang and self._reported_since is None:
            self._reported_since = now - hang.silent_seconds
            self._act(hang, now)
        elif beats and not hang and self._reported_since is not None:
            say(f"the run continues, after {format_duration(now - self._reported_since)} without a heartbeat")
            self._reported_since = None

    def close(self) -> None:
        """Record the hang, if there was one, in run.json. Call it when the workers have ended."""
        flight_recorder.remove_stale_pipes(self._run.path)
        if self.cause is None:
            return
        with suppress(AscendtuneError, OSError), file_lock(self._run.path / ".cause.lock", wait=True):
            # Each host knows only whether its own ranks are stopped: a cause with an odd rank is kept.
            if self._odd or not (self._run.read().get("exit_cause") or {}).get("odd_ranks"):
                self._run.end_attempt("failed", self.cause)

    @property
    def cause(self) -> dict[str, Any] | None:
        """The reason for run.json why the ranks are being ended; None if none hangs."""
        if self._error is None:
            return None
        return {**exit_cause("hang", self._error, step=self._step), "odd_ranks": list(self._odd)}

    def _own_beats(self, now: float) -> list[RankHeartbeat]:
        """Heartbeats of this machine. Those of others, perhaps hundreds on a shared disk, are read rarely."""
        if not self._run.heartbeats.is_dir():
            return []
        is_time = now >= self._list_at
        if is_time:
            self._workers = self._find_workers()
        beats = beats_of(self._run.path, self._workers, None if is_time else self._ranks_here)
        own_beats = [beat for beat in beats if beat.process()]
        if is_time or not own_beats:
            self._ranks_here = [beat.rank for beat in own_beats]
            have_begun = own_beats and all(beat.phase != STARTUP for beat in own_beats)
            self._list_at = now + (_LIST_EVERY_SECONDS if have_begun else 0)
        return own_beats

    def _act(self, hang: Hang, now: float) -> None:
        verdict = self._examine()
        sentence = f"the run hangs: no heartbeat for {format_duration(hang.silent_seconds)}{_pace(hang)}"
        warn("\n  ".join([sentence, *verdict.lines()]))
        if self._ways is None:
            return
        say(f"on_hang: {self._on_hang}: ending all ranks, within {2 * self._ways.patience_seconds:.0f} s")
        self._odd, self._step = verdict.odd, hang.step or 0
        blamed = f"{verdict.odd_ranks_text()} differed" if verdict.odd else "no rank differed"
        when = f"in step {hang.step}" if hang.step else "before its first step"
        self._error = CheckFailed(
            f"the run hung {when}: {blamed if len(verdict.beats) > 1 else hang.beats[0].phase}",
            code="run-hung",
            remedy=f"the stacks in {verdict.directory or self._run.logs} show where; the same command resumes from the "
            "newest checkpoint",
            where=self._run.path,
        )
        send_signal, kill, patience = self._ways.send_signal, self._ways.kill, self._ways.patience_seconds
        self._ending = [
            (now, lambda: send_signal(signal.SIGINT)),
            (now + patience, lambda: send_signal(signal.SIGTERM)),
            (now + 2 * patience, kill),
        ]

    def _examine(self) -> HangReport:
        beats = tuple(beats_of(self._run.path, self._workers))
        try:
            directory, stacks = collect(self._run.path, beats)
        except (AscendtuneError, OSError) as error:
            warn(f"the stacks could not be taken: {error}")
            return HangReport(beats, (), None)
        return HangReport(beats, tuple(stacks), directory)


def _pace(hang: Hang) -> str:
    return f", where a step takes {hang.pace_seconds:.3g} s" if hang.pace_seconds is not None else ""
