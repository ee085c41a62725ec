"""Pictures by matplotlib, which is optional and imported only when a picture is drawn."""

from __future__ import annotations

import importlib
import io
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ascendtune.core.directories import WRITTEN_BY, cache_directory
from ascendtune.core.errors import MachineError
from ascendtune.core.files import write_atomically

_WIDE_FONTS = ("CJK", "Source Han", "WenQuanYi", "YaHei", "SimHei", "PingFang", "Droid Sans Fallback")


def import_matplotlib() -> Any:
    """The package matplotlib, with `matplotlib.figure` imported; it draws without a display.

    Raises:
        MachineError: matplotlib is not installed.
    """
    # matplotlib writes a font cache, which is kept in our cache directory.
    os.environ.setdefault("MPLCONFIGDIR", str(cache_directory() / "matplotlib"))
    try:
        importlib.import_module("matplotlib.figure")
        return importlib.import_module("matplotlib")
    except ImportError as error:
        raise MachineError(
            "a picture needs matplotlib", code="package-missing", remedy="pip install matplotlib"
        ) from error


@contextmanager
def figure_style(matplotlib: Any, text: str, settings: Mapping[str, Any]) -> Iterator[None]:
    """Context that draws in matplotlib's default style with `settings`, whatever style the user or program has set.

    Args:
        text: the text to be drawn, for the choice of fonts.
    """
    # "$" in a name does not begin a formula. Text of an SVG stays text, drawn by the viewer's fonts.
    own = {"font.sans-serif": fonts_for(text), "font.size": 9, "svg.fonttype": "none", "text.parse_math": False}
    # Letters that no font has are drawn as boxes; a warning for each would not help.
    with matplotlib.rc_context(), warnings.catch_warnings(action="ignore"):
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**own, **settings})
        yield


def fonts_for(text: str) -> list[str]:
    """Values for `font.sans-serif`: matplotlib's font, and if `text` is not ASCII, installed fonts that may have its
    letters."""
    own = ["DejaVu Sans"]
    if text.isascii():
        return own
    from matplotlib.font_manager import get_font_names

    return own + sorted(font for font in get_font_names() if any(word in font for word in _WIDE_FONTS))


def write_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib figure to `path`, in the format of its suffix: .png or .svg.

    Raises:
        MachineError: the file cannot be written.
    """
    content, key = io.BytesIO(), "Creator" if path.suffix == ".svg" else "Software"
    figure.savefig(content, format=path.suffix[1:], dpi=150, metadata={key: f"{WRITTEN_BY}`"})
    write_atomically(path, content.getvalue())
