"""Failures that no entry of the knowledge matches: their own message, without prefixes."""

from __future__ import annotations

import re

from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.event.plain_message import program_and_message
from ascendtune.check.explain.knowledge.entries import KnownFailure
from ascendtune.check.explain.knowledge.matcher import Hit
from ascendtune.check.explain.language import say
from ascendtune.check.explain.log.frame import posix
from ascendtune.check.explain.traceback.code_of_frame import condition_in
from ascendtune.check.explain.traceback.raised_code import OPEN
from ascendtune.check.explain.traceback.trace import Trace

_LONGEST_MESSAGE = 300
_LONGEST_WHOLE = 480
_CLAUSE_OR_SENTENCE = re.compile(r"(?<=[.!?;,])\s")
_LEAST_WORDS = 3
_IMPORT = re.compile(r"(?:from (?P<whole>\w[\w.]*) import\b|import (?P<other>\w[\w.]*))")


def unknown_exception(trace: Trace) -> Hit:
    """Hit for an exception of Python that no entry matches; the log may end before the exception."""
    if not trace.type:
        return _cut_off(trace)
    function = trace.place[2] if trace.place else ""
    names = {"type": trace.type, "message": _shortened(trace.message, _LONGEST_WHOLE)}
    if function.isidentifier():
        names["function"] = function
    if trace.code and not trace.message:
        names["code"] = trace.code[:_LONGEST_MESSAGE]
    if trace.frames:
        names["place"] = place_of(trace)
    if not trace.message and OPEN.match(trace.code):
        return Hit(_RAISED_AND_CUT_OFF, 0, names)
    if trace.message == trace.code and (condition := condition_in(trace.code)):
        return Hit(_ASSERTION, 0, {**names, "condition": condition})
    if trace.code.startswith("raise NotImplementedError") and not trace.message:
        return Hit(_NOT_IMPLEMENTED, 0, names)
    return Hit(EXCEPTION if trace.message else _BARE_EXCEPTION, 0, names)


def calling_place(trace: Trace) -> str:
    """The same as `place_of` for the innermost frame outside of torch, if there is one."""
    place = trace.place
    if place is None or place not in trace.frames or not place[2].isidentifier():
        return place_of(trace)
    package = trace.package_of(place)
    return say("{function} of {package}", function=place[2], package=package) if package else place[2]


def place_of(trace: Trace) -> str:
    """Function of the innermost frame, with its installed package."""
    function, package = trace.frames[-1][2], trace.package_that_failed
    return say("{function} of {package}", function=function, package=package) if package else function


def _cut_off(trace: Trace) -> Hit:
    call = trace.last_call
    if call is None:
        return Hit(_CUT_OFF, 0, {})
    file, line, function = call
    is_innermost = trace.frames[-1][1:] == (line, function)
    code = trace.code[:_LONGEST_MESSAGE] if is_innermost else ""
    # The frame itself may be cut off before its function.
    names = {"place": f"{file}:{line}", "function": function or "…", "code": code}
    names = {name: value for name, value in names.items() if value}
    if imported := _IMPORT.match(code):
        module = imported["whole"] or imported["other"]
        package = module.partition(".")[0]
        entry = _CUT_OFF_OWN_IMPORT if package in posix(trace.frames[-1][0]).split("/") else _CUT_OFF_IMPORT
        return Hit(entry, 0, {**names, "module": module, "package": package})
    return Hit(_CUT_OFF_CALL, 0, names)


def unknown_line(text: str) -> Hit:
    """Hit for a line that is logged as an error."""
    program, message = program_and_message(text)
    names = {"message": _shortened(message, _LONGEST_MESSAGE)}
    return Hit(_LINE_OF_PROGRAM, 0, {**names, "program": program}) if program else Hit(_LINE, 0, names)


def _shortened(message: str, longest: int) -> str:
    """Shorten a message to the whole sentences, clauses or words that fit."""
    if len(message) <= longest:
        return message
    ends = [match.start() for match in _CLAUSE_OR_SENTENCE.finditer(message[:longest])]
    end = ends[-1] if ends else message.rfind(" ", 0, longest)
    return f"{message[: end if end > 0 else longest].rstrip(' ,;')} …"


def unknown_test(words: str) -> Hit:
    """Hit for a failed test in a report of pytest or unittest."""
    return Hit(_FAILED_TEST, 0, {"message": words[:_LONGEST_MESSAGE]})


def explains_itself(event: Event) -> bool:
    """Whether the own message of a failure without an entry explains it."""
    if event.is_heading or event.is_vague:
        return False
    if event.trace is not None:
        if event.entry is _CUT_OFF_IMPORT:
            return True
        return bool(event.trace.type and len(event.trace.message.split()) >= _LEAST_WORDS)
    names = event.hit.names
    return len((names.get("message") or names.get("detail", "")).split()) >= _LEAST_WORDS


def _unknown(identity: str, what: str, source: str, *remedies: str) -> KnownFailure:
    return KnownFailure(
        id=identity,
        kind="unknown",
        what=what,
        anchors=(),
        causes=(),
        remedies=remedies,
        source=source,
        test="",
        family="generic",
    )


_PYTHON = "https://docs.python.org/3/tutorial/errors.html"
EXCEPTION = _unknown("python-exception", "Python failed with {type}: {message}", _PYTHON)
_BARE_EXCEPTION = _unknown("python-exception", "Python failed with {type} (in {function}): {code}", _PYTHON)
_ASSERTION = _unknown("python-exception", "an assertion failed (in {place}): {condition} does not hold", _PYTHON)
_NOT_IMPLEMENTED = _unknown(
    "python-exception",
    "a function that this class, device or option does not have was called ({place}): it is not implemented",
    _PYTHON,
)
_RAISED_AND_CUT_OFF = _unknown(
    "traceback-cut-off",
    "{place} raised {type}; the log ends before its message",
    _PYTHON,
    "the last line of the traceback, which begins with `{type}:`, says why: look there where the log was taken from, "
    "or run it again",
)
_LAST_LINE = (
    "the last line of the traceback (`TYPE: message`) says why, and this log lacks it: look there where the log was "
    "taken from, or run it again"
)
_CUT_OFF = _unknown("traceback-cut-off", "Python failed; the log ends before the exception", _PYTHON, _LAST_LINE)
_CUT_OFF_CALL = _unknown(
    "traceback-cut-off",
    "Python failed in {function} at {place}; the log ends before the exception: {code}",
    _PYTHON,
    _LAST_LINE,
)
_CUT_OFF_IMPORT = _unknown(
    "traceback-cut-off",
    "Python failed at {place} while it imported from {package}; the log ends before the exception: {code}",
    _PYTHON,
    '`python -c "import {module}"` in the job\'s Python shows the exception; most often the installed {package} is '
    "older than the importing package needs: pip install -U {package}",
)
_CUT_OFF_OWN_IMPORT = _unknown(
    "traceback-cut-off",
    "Python failed at {place} in an import of {package} itself; the log ends before the exception: {code}",
    _PYTHON,
    '`python -c "import {module}"` in the job\'s Python shows the whole traceback: its last line names what failed, '
    "most often a package that {package} needs in another version (its requirements name it)",
)
_FAILED_TEST = _unknown(
    "failed-test",
    "a test failed: {message}",
    "https://docs.pytest.org/en/stable/how-to/output.html",
    "`python -m pytest -x --tb=long` with the test's name behind it runs it alone and shows where it failed",
)
_LINE = _unknown("error-line", "something failed, in its own words: {message}", "the run's own log")
_LINE_OF_PROGRAM = _unknown("error-line", "{program} failed: {message}", "the run's own log")
