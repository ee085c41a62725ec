"""Tracebacks in the panels that rich draws."""

from __future__ import annotations

from collections.abc import Callable

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.traceback.trace import Trace

Explained = Callable[..., Explanation]

_FRAMES = (
    "│ /home/me/train.py:77 in <module>                           │\n"
    "│                                                            │\n"
    "│   76                                                       │\n"
    "│ ❱ 77 │   main()                                            │\n"
    "│   78                                                       │\n"
    "│                                                            │\n"
    "│ /v/python3.7/site-packages/moon/rise.py:12 in step         │\n"
    "│                                                            │\n"
    "│ ❱ 12 │   │   x = tide.sea.height                           │\n"
    "│ ╭─────────── locals ───────────╮                           │\n"
    "│ │ file = '/x/tides.py:7 in go' │                           │\n"
    "│ ╰──────────────────────────────╯                           │\n"
    "╰────────────────────────────────────────────────────────────╯\n"
    "AttributeError: 'NoneType' object has no attribute 'height'\n"
)
_HEADING = "╭──────────── Traceback (most recent call last) ─────────────╮\n"


def _trace(explanation: Explanation) -> Trace:
    first = explanation.verdict.first
    assert first is not None
    assert first.trace is not None
    return first.trace


def test_frames_of_a_panel_are_read(explained: Explained) -> None:
    trace = _trace(explained(_HEADING + _FRAMES))

    assert trace.frames == [
        ("/home/me/train.py", 77, "<module>"),
        ("/v/python3.7/site-packages/moon/rise.py", 12, "step"),
    ]
    assert (trace.code, trace.outer_code) == ("x = tide.sea.height", "main()")
    assert (trace.package, trace.none_expression) == ("moon", "tide.sea")


def test_panel_whose_beginning_the_log_lacks_is_read(explained: Explained) -> None:
    assert _trace(explained(_FRAMES)).package == "moon"
