"""Progress of a training on stderr: a live display on a terminal, plain lines elsewhere.

The only file of this room that prints (docs/decisions/0003).
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from ascendtune.core.log import is_quiet
from ascendtune.core.rundir import RunDir
from ascendtune.core.terminal_text import SafeStream, control, safe
from ascendtune.core.units import format_duration
from ascendtune.train.report.callback import Callback, RunFacts
from ascendtune.train.report.notebook import NotebookScreen, in_notebook
from ascendtune.train.report.run_progress import RedrawnScreen, RunProgress, shown_datasets, shown_extras, shown_loss

if TYPE_CHECKING:
    from rich.console import RenderableType

_LINE_SECONDS = 5.0
_EVALUATING_SECONDS = 10.0
"""Interval between lines on the progress of an evaluation."""
_EVALUATION_SECONDS = 1.0
"""Interval between lines on evaluations; if epochs have one step, each step is evaluated. eval.jsonl has all."""
_LOOK_SECONDS = 1.0
"""Interval at which this rank's heartbeat is read."""


def show_summary(lines: Sequence[tuple[str, str]]) -> None:
    """Print names and values, aligned. Call it after the display has been closed.

    With --quiet, only the location of the model is printed, to stdout.
    """
    if is_quiet():
        with suppress(OSError):
            sys.stdout.writelines(f"{name}: {value}\n" for name, value in lines if name == "model")
            sys.stdout.flush()
        return
    longest = max((len(name) for name, _ in lines), default=0)
    begin, end = (control("[1m", sys.stderr), control("[0m", sys.stderr)) if _can_draw() else ("", "")
    try:
        for name, value in lines:
            sys.stderr.write(f"{begin}{name.ljust(longest)}{end}  {value}\n")
        sys.stderr.flush()
    except OSError:
        pass  # the terminal is closed; `ascendtune runs show` prints the same


class ProgressDisplay(Callback):
    """Displays the progress of a run. If the terminal is closed, the display ends and the training goes on."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._screen: _Screen | None = None
        self._progress: RunProgress | None = None
        self._ended = threading.Event()
        # Shared by the training and the thread that watches its heartbeat.
        self._lock = threading.Lock()
        self._watch: threading.Thread | None = None

    def on_start(self, facts: RunFacts) -> None:
        if is_quiet():
            return
        self._progress = RunProgress(self._run.path.name, facts)
        if in_notebook():
            self._screen = NotebookScreen(self._progress)
        else:
            self._screen = _LiveScreen(self._progress) if _can_draw() else _LineScreen(self._progress)
        arguments = (self._progress,)
        self._watch = threading.Thread(target=self._watch_heartbeat, args=arguments, name="silence", daemon=True)
        self._watch.start()

    def on_step(self, record: dict[str, Any]) -> None:
        if self._progress is not None:
            with self._lock:
                self._progress.add(record)
                self._show("stepped")

    def on_evaluation_progress(self, done: int, total: int) -> None:
        if self._progress is not None:
            with self._lock:
                self._progress.note_evaluated(done, total)
                self._show("evaluating")

    def on_evaluation(self, record: dict[str, Any]) -> None:
        if self._progress is not None:
            with self._lock:
                self._progress.evaluation, self._progress.evaluating = record, None
                self._show("evaluated")

    def on_end(self) -> None:
        self._ended.set()
        if self._watch is not None:
            self._watch.join()
        self._show("close")
        self._screen = None

    def _watch_heartbeat(self, progress: RunProgress) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            beat = _last_beat(self._run)
            with self._lock:
                if progress.note_silence(beat):
                    self._show("silence_changed")

    def _show(self, method: str) -> None:
        if self._screen is None:
            return
        try:
            getattr(self._screen, method)()
        except OSError:
            self._screen = None


def _can_draw() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _last_beat(run: RunDir) -> tuple[str, float] | None:
    """Phase and time (of time.monotonic) of this rank's last heartbeat; None if it cannot be read."""
    try:
        beat = json.loads((run.heartbeats / "rank_0.json").read_text(encoding="utf-8"))
        return str(beat["phase"]), float(beat["monotonic"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


class _Screen(Protocol):
    def stepped(self) -> None: ...
    def evaluating(self) -> None: ...
    def evaluated(self) -> None: ...
    def silence_changed(self) -> None: ...
    def close(self) -> None: ...


class _LineScreen:
    """Display for logs: the first step, the last, and a line every few seconds; evaluations at most once a second."""

    def __init__(self, progress: RunProgress) -> None:
        self._progress = progress
        self._shown_step = progress.step
        self._shown_evaluation: dict[str, Any] | None = None
        self._next = 0.0
        self._next_evaluating = 0.0
        self._next_evaluation = 0.0
        self._next_silence = 0.0

    def stepped(self) -> None:
        now = time.monotonic()
        if now >= self._next or self._progress.step == self._progress.total:
            self._next = now + _LINE_SECONDS
            self._print_step()

    def evaluating(self) -> None:
        now, text = time.monotonic(), self._progress.evaluating
        if text is None:
            self._next_evaluating = now + _EVALUATING_SECONDS
        elif now >= self._next_evaluating:
            self._next_evaluating = now + _EVALUATING_SECONDS
            self._print([text])

    def evaluated(self) -> None:
        now = time.monotonic()
        if now >= self._next_evaluation or self._progress.step == self._progress.total:
            self._next_evaluation = now + _EVALUATION_SECONDS
            self._print_evaluation(self._progress.evaluation or {})

    def _print_evaluation(self, evaluation: dict[str, Any]) -> None:
        self._shown_evaluation = evaluation
        pieces = [
            f"evaluation loss {shown_loss(evaluation)}",
            *shown_extras(evaluation),
            *shown_datasets(evaluation),
            f"took {format_duration(evaluation['seconds'])}",
        ]
        self._print(pieces, step=evaluation["step"])

    def silence_changed(self) -> None:
        """Print a line when the silence begins, and each time that its duration has doubled."""
        seconds, text = self._progress.silent_seconds, self._progress.silence
        if seconds is None or text is None:
            self._next_silence = 0.0
        elif seconds >= self._next_silence:
            self._next_silence = 2 * seconds
            self._print([text])

    def close(self) -> None:
        if self._shown_step != self._progress.step:
            self._print_step()
        if (evaluation := self._unshown_evaluation) is not None:
            self._print_evaluation(evaluation)

    @property
    def _unshown_evaluation(self) -> dict[str, Any] | None:
        newest = self._progress.evaluation
        return None if newest is self._shown_evaluation else newest

    def _print_step(self) -> None:
        progress, evaluation = self._progress, self._unshown_evaluation
        if evaluation is not None and evaluation["step"] < progress.step:
            self._print_evaluation(evaluation)
        self._shown_step = progress.step
        is_last, eta = progress.step == progress.total, progress.eta
        end = f"took {format_duration(progress.elapsed)}" if is_last else eta and f"ETA {format_duration(eta)}"
        self._print([*progress.pieces(), *([end] if end else [])])

    def _print(self, pieces: Sequence[str], *, step: int | None = None) -> None:
        place = f"step {self._progress.step if step is None else step}/{self._progress.total}"
        # One call, so that a line of another thread cannot be printed inside.
        sys.stderr.write("  ".join([place, *pieces]) + "\n")
        sys.stderr.flush()


class _LiveScreen(RedrawnScreen):
    """Two or three lines at the bottom of the terminal; other output to stderr scrolls above them."""

    redraw_seconds = 0.25

    def __init__(self, progress: RunProgress) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(progress)
        # Rich writes its own control sequences to the raw stream; text that it displays is sanitised here.
        terminal = sys.stderr.stream if isinstance(sys.stderr, SafeStream) else sys.stderr
        self._console = Console(file=terminal, highlight=False, markup=False)
        # Rich must not refresh in a thread: each change is drawn here. A redirected stdout is not captured.
        self._live = Live(
            self._render(),
            console=self._console,
            auto_refresh=False,
            redirect_stdout=sys.stdout.isatty(),
        )
        before = sys.stdout, sys.stderr
        self._live.start(refresh=True)
        # While the display is shown, Rich captures these streams.
        for name, stream in zip(("stdout", "stderr"), before, strict=True):
            if getattr(sys, name) is not stream:
                setattr(sys, name, SafeStream(getattr(sys, name)))
        # A process that is killed could not show a hidden cursor again.
        self._console.show_cursor(True)

    def close(self) -> None:
        try:
            self.draw()
        finally:
            self._live.stop()

    def draw(self) -> None:
        self._live.update(self._render(), refresh=True)

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        progress = self._progress
        bar = Table.grid(expand=True, padding=(0, 1))
        bar.add_column(no_wrap=True, overflow="ellipsis", max_width=24, style="bold")
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        share = progress.step / progress.total
        bar.add_row(
            Text(safe(progress.name)),
            ProgressBar(total=progress.total, completed=progress.step),
            Text.assemble(f"step {progress.step}/{progress.total} ", (f"{share:.0%}", "dim")),
        )
        return Group(bar, *map(Text, wrapped_pieces(self._pieces(), self._console.width)))

    def _pieces(self) -> list[str]:
        progress = self._progress
        first, *others = progress.pieces()
        if progress.eta:
            others.append(f"ETA {format_duration(progress.eta)}")
        others.append(f"elapsed {format_duration(progress.elapsed)}")
        others.extend(text for text in (progress.evaluating, progress.silence) if text is not None)
        if (evaluation := progress.evaluation) is not None:
            others.append(
                f"eval {', '.join([shown_loss(evaluation), *shown_extras(evaluation)])} at step {evaluation['step']}"
            )
        return [f"{first}{self._sparkline()}", *others]

    def _sparkline(self) -> str:
        wide = self._console.width >= 100 and self._console.encoding.startswith("utf")
        return f" {sparkline(self._progress.loss_curve)}" if wide else ""


def sparkline(values: Sequence[float]) -> str:
    """One bar for each value; a gap for NaN."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = (high - low) or 1.0
    return "".join("▁▂▃▄▅▆▇█"[round((value - low) / span * 7)] if math.isfinite(value) else " " for value in values)


def wrapped_pieces(pieces: Sequence[str], width: int) -> list[str]:
    """Distribute the pieces over as few lines as possible, without breaking a piece."""
    lines = [pieces[0]]
    for piece in pieces[1:]:
        if len(lines[-1]) + 3 + len(piece) <= width:
            lines[-1] += f"   {piece}"
        else:
            lines.append(piece)
    return lines
