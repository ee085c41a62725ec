"""Output in cells of a notebook: a progress bar while a run trains, and the picture of a finished run."""

from __future__ import annotations

import html
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ascendtune.core.units import format_duration
from ascendtune.train.report.run_progress import RedrawnScreen, RunProgress, shown_extras, shown_loss


def in_notebook() -> bool:
    """Whether this process is a Jupyter kernel; IPython in a terminal is not."""
    module: Any = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookScreen(RedrawnScreen):
    """One line of text with a bar, below the cell."""

    redraw_seconds = 0.5

    def __init__(self, progress: RunProgress) -> None:
        super().__init__(progress)
        self._ipython = import_module("IPython.display")
        self._handle = self._ipython.display(self._rendered(), display_id=True)

    def draw(self) -> None:
        self._handle.update(self._rendered())

    def _rendered(self) -> Any:
        progress = self._progress
        pieces = [f"step {progress.step}/{progress.total}", *progress.pieces()]
        if (evaluation := progress.evaluation) is not None:
            pieces += [f"evaluation loss {shown_loss(evaluation)}", *shown_extras(evaluation)]
        if (waiting := progress.silence or progress.evaluating) is not None:
            pieces.append(waiting)
        elif progress.step == progress.total:
            pieces.append(f"took {format_duration(progress.elapsed)}")
        elif eta := progress.eta:
            pieces.append(f"ETA {format_duration(eta)}")
        bar = f'<progress value="{progress.step}" max="{progress.total}" style="width: 20em"></progress>'
        return self._ipython.HTML(f"<b>{html.escape(progress.name)}</b> {bar}<br>{html.escape('  '.join(pieces))}")


@dataclass(frozen=True)
class Picture:
    """A picture in a file; a notebook displays it if it is the value of a cell."""

    path: Path

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()
