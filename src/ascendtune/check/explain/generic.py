"""What is said of a failure that nothing is known about: its own words, and that they are all there is."""

from __future__ import annotations

from ascendtune.check.explain.knowledge import Entry
from ascendtune.check.explain.matcher import Hit
from ascendtune.check.explain.trace import Trace

_LONGEST = 300


def exception(trace: Trace) -> Hit:
    """For a Python exception that no entry knows."""
    if not trace.type:
        return Hit(_CUT_OFF, 0, {})
    what = _EXCEPTION if trace.message else _BARE_EXCEPTION
    function = trace.place[2] if trace.place else ""
    names = {"type": trace.type, "message": trace.message[:_LONGEST]}
    return Hit(what, 0, {**names, "place": f"in {function}"} if function.isidentifier() else names)


def line(said: str) -> Hit:
    """For a line that calls itself an error."""
    return Hit(_LINE, 0, {"message": said.strip()[:_LONGEST]})


def _entry(identity: str, what: str, source: str) -> Entry:
    return Entry(
        id=identity,
        kind="unknown",
        what=what,
        anchors=(),
        causes=(),
        remedies=(),
        source=source,
        test="",
        family="generic",
    )


_PYTHON = "https://docs.python.org/3/tutorial/errors.html"
_EXCEPTION = _entry("python-exception", "Python failed with {type}: {message}", _PYTHON)
_BARE_EXCEPTION = _entry("python-exception", "Python failed with {type} ({place})", _PYTHON)
_CUT_OFF = _entry("traceback-cut-off", "Python failed; the log ends before it says with what", _PYTHON)
_LINE = _entry("error-line", "something failed, in its own words: {message}", "the run's own log")
