"""Failures that no entry of the knowledge matches: their own message, in plain form."""

from __future__ import annotations

import re

from ascendtune.check.explain.event.event import Event, without_stamp
from ascendtune.check.explain.event.message_rule import turned_round
from ascendtune.check.explain.event.plain_message import program_and_message, without_logger
from ascendtune.check.explain.facts.facts import ENDED
from ascendtune.check.explain.knowledge.entries import KnownFailure
from ascendtune.check.explain.knowledge.matcher import Hit
from ascendtune.check.explain.language import say
from ascendtune.check.explain.log.frame import posix
from ascendtune.check.explain.traceback.advice import IN_MESSAGE
from ascendtune.check.explain.traceback.code_of_frame import condition_in
from ascendtune.check.explain.traceback.raised_code import OPEN
from ascendtune.check.explain.traceback.trace import Trace

_LONGEST_MESSAGE = 300
_LONGEST_WHOLE = 480
_CLAUSE_OR_SENTENCE = re.compile(r"(?<=[.!?;,])\s")
_LEAST_WORDS = 3
_LEAST_NEW_WORDS = 2
"""Words of a message, beyond those of the entry that matches it, from which on the headline quotes the message."""
_LONGEST_SENTENCE = 120
_MANY_PHRASES = 3
"""An entry that is found by so many phrases stands for a class of failures."""
_LEAST_OTHER_WORDS = 3
"""Words of a message, beyond those of such an entry, from which on the entry is not certain to be what failed."""
_PLAIN_WORD = re.compile(r"(?<![\w./])[a-z]{4,}(?![\w/])")
_NAMES = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`|\S*[/=_\\]\S*|\[[^\]]*\]")
"""Values in a message: quoted names, paths, variables, lists."""
_SENTENCE = re.compile(r".+?(?:[.!?](?=\s|$)|$)\s*")
_WORD = re.compile(r"[a-z_]{3,}|\d+")
_SENTENCE_END = re.compile(r"(?<!\.)[.!?;](?=\s+[A-Z])|(?<=[a-z]{3})\.(?=[A-Z][a-z]+ [A-Z])")
_OTHER_TEXT = re.compile(
    r"(?<=[\w)\]'\"])\s*(?=[^\x00-\x7f]{2})|\s+(?=[{\[][^]}]{60}|\S{40}|[\w.]*(?:Error|Exception): )"
)
_IS_RECORD = re.compile(r"\{\"|\w+=\S+ \w+=")
_IN_FIELD = re.compile(r"\"(?:(?:\w+\.)*[A-Z]\w*(?:Error|Exception): )(?P<message>[^\"\\]{10,})\"")
"""The error in one field of a log line that consists of fields: JSON, or NAME=VALUE."""
_CLAUSE_END = re.compile(r"[,;](?=\s)")
_VALUES = re.compile(r"(?:Expected|Got|Found|Actual|Current|Requested|But got)\b.*\d")
"""A second sentence that has the values of what the first one says."""
_BROKEN_OFF = re.compile(r",? +(?:and|as|because|but|by|for|in|of|or|since|that|the|to|which|with)$")
_NESTED = re.compile(r":\s+(?!(?<=`: )-?\d)")
"""Between the reasons of a message, the outermost first. A value after a quoted name (`name`: 7) is not a reason."""
_OF_ERRNO = re.compile(
    r"(?:\[Errno \d+\] )?(?:no such (?:file or directory|device(?: or address)?)|permission denied|invalid argument|"
    r"operation not (?:permitted|supported)|input/output error|file exists|not a directory|is a directory|"
    r"device or resource busy|read-only file system|connection (?:refused|reset by peer|timed out)|bad address|"
    r"i/o timeout|unknown error \d+|exec format error|executable file not found in \S+)",
    re.IGNORECASE,
)
"""Error texts of the system, which need the reason before them."""
_TIME = re.compile(r"^\W*\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\S* (?=\S)")
_LONGEST_ADVICE = 200
_OF_DEVICE = re.compile(
    r"\bCUDA|\bcu(?:da|dnn|blas)|device-side|\bNPU\b|\bnpu:|\bacl|hccl|\bNCCL|\bE[A-Z1-9]\d{4}\b|ERR\d{5}|"
    r"\bAI ?[Cc]ore|[Kk]ernel|tiling",
    re.ASCII,
)
"""Words of failures of a device; of any other, a second run with synchronous launches shows nothing more."""
_OF_BUILD = re.compile(
    r"^CMake (?:Error|Warning)\b|-- Configuring incomplete|"
    r"^(?:ninja|g?make(?:\[\d+\])?|collect2|ld(?:\.\w+)?|cc1plus|configure): |"
    r"\.(?:c|cc|cpp|cxx|cu|h|hpp|asc)(?::\d+){1,2}:? (?:fatal )?error: |undefined reference to |"
    r"\b(?:No module named|Failed to build|Failed building wheel|subprocess-exited-with-error)\b|"
    r"No matching distribution|^error: command '|Compilation Failed!|ERROR: Cannot install "
)
"""Of configuring, compiling, linking and installing."""
_OF_CODE = (
    *("AssertionError", "AttributeError", "FileNotFoundError", "ImportError", "IndexError", "KeyError", "LookupError"),
    *("ModuleNotFoundError", "NameError", "OSError", "PermissionError", "TypeError", "UnboundLocalError", "ValueError"),
)
"""Exceptions by which no device reports anything."""
_SUGGESTION = "Did you mean"
"""Suggestions of Python for a misspelt name: useful only in the user's own code."""
_IMPORT = re.compile(r"(?:from (?P<whole>\w[\w.]*) import\b|import (?P<other>\w[\w.]*))")


def unknown_exception(trace: Trace) -> Hit:
    """For an exception of Python that no entry matches; `type` is empty where the log ends before it."""
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
    return Hit(_EXCEPTION if trace.message else _BARE_EXCEPTION, 0, names)


def calling_place(trace: Trace) -> str:
    """The same of the innermost frame outside of torch, where there is one."""
    place = trace.place
    if place is None or place not in trace.frames or not place[2].isidentifier():
        return place_of(trace)
    package = trace.package_of(place)
    return say("{function} of {package}", function=place[2], package=package) if package else place[2]


def place_of(trace: Trace) -> str:
    """The function of the innermost frame, with the installed package that it belongs to."""
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


def unknown_line(said: str) -> Hit:
    """For a line that calls itself an error."""
    program, message = program_and_message(said)
    names = {"message": _shortened(message, _LONGEST_MESSAGE)}
    return Hit(_LINE_OF_PROGRAM, 0, {**names, "program": program}) if program else Hit(_LINE, 0, names)


def _shortened(message: str, longest: int) -> str:
    """A message, of a longer one the whole sentences, clauses or words that have room."""
    if len(message) <= longest:
        return message
    ends = [match.start() for match in _CLAUSE_OR_SENTENCE.finditer(message[:longest])]
    end = ends[-1] if ends else message.rfind(" ", 0, longest)
    return f"{message[: end if end > 0 else longest].rstrip(' ,;')} …"


def meaning_of(event: Event) -> str:
    """The sentence of an event; of an exception that no entry of its own matches, with the package that raised it."""
    trace = event.trace
    if trace is None or event.is_known or event.entry.what != _EXCEPTION.what or not trace.message:
        return event.meaning
    package = trace.package_that_failed or trace.package
    if not package:
        return event.meaning
    names = {"package": package, "type": trace.type.rpartition(".")[2], "message": event.hit.names.get("message", "")}
    return say(_REFUSED_BY if turned_round(trace.message) else _FAILED_IN, **names)


def unknown_test(words: str) -> Hit:
    """For a test that failed, by the report of pytest or unittest."""
    return Hit(_FAILED_TEST, 0, {"message": words[:_LONGEST_MESSAGE]})


def own_sentence(event: Event) -> str:
    """The first sentence of a message, for a headline; empty if it is long or goes on in another line."""
    if event.trace is not None and not event.trace.type:
        return ""
    message = _message_of(event)
    if (quoted := _IN_FIELD.search(message)) is not None and _IS_RECORD.match(message):
        message = quoted["message"]
    message = ENDED.sub("", _TIME.sub("", without_stamp(message), count=1), count=1)
    sentence, *rest = _SENTENCE_END.split(message.strip(), maxsplit=2)
    sentence = sentence.rstrip(".!")
    if rest and _VALUES.match(rest[0].strip()) and len(sentence) + len(rest[0]) < _LONGEST_SENTENCE:
        # The values of many messages stand in their second sentence.
        sentence = f"{sentence}: {rest[0].strip().rstrip('.!')}"
    # A line that was broken in mid-sentence is quoted up to its last whole clause.
    sentence = _BROKEN_OFF.sub("", sentence)
    if len(sentence) > _LONGEST_MESSAGE:
        sentence = _beginning(sentence)
    is_short = len(sentence) <= _LONGEST_SENTENCE and not sentence.endswith((":", ",", "(")) and sentence[:1] != "{"
    return sentence if is_short and len(sentence.split()) > 1 else ""


def _message_of(event: Event) -> str:
    """The message of an exception, or of a line without what a logger put before it."""
    return event.message if event.trace is not None else without_logger(event.text)


def _beginning(sentence: str) -> str:
    """The first words of a very long sentence: up to where another language, data or another message begins behind
    them, or to the last clause that fits; empty if no such place tells where to stop.
    """
    other = _OTHER_TEXT.search(sentence)
    ends = [match.start() for match in _CLAUSE_END.finditer(sentence[: _LONGEST_SENTENCE + 1])]
    ends = [other.start()] if other and other.start() <= _LONGEST_SENTENCE else ends
    words = sentence[: ends[-1]].rstrip(" ,;:-") if ends else ""
    return words if len(words.split()) >= _LEAST_WORDS else ""


def says_more_than(event: Event, meaning: str) -> bool:
    """Whether a message has words of its own: words that stand neither in the entry's example nor in its meaning."""
    entry = event.entry
    example = " ".join((entry.test, *(part for anchor in entry.anchors for part in anchor)))
    return len(_words(own_sentence(event)) - _words(f"{meaning} {example}")) >= _LEAST_NEW_WORDS


def advice_of(event: Event) -> str:
    """What the message itself advises, cut after a whole sentence; empty if it advises nothing."""
    match = IN_MESSAGE.search(without_stamp(event.message))
    words = match[0] if match is not None else event.trace.advice if event.trace is not None else ""
    shown = ""
    for sentence in _SENTENCE.findall(words):
        if len(shown) + len(sentence) > _LONGEST_ADVICE:
            break
        shown += sentence
    if not shown:
        return ""
    is_of_package = event.trace is not None and event.trace.package
    return "" if is_of_package and shown.startswith(_SUGGESTION) else shown.strip()


def fits_in_words_only(event: Event, meaning: str) -> bool:
    """Whether the entry knows the line by one of many phrases, and the line says something else besides."""
    entry = event.entry
    if entry.specific or entry.conditions or "{" in entry.what or len(entry.anchors) < _MANY_PHRASES:
        return False
    message = without_stamp(_message_of(event))
    reasons = [part for part in _NESTED.split(message) if any(_holds(part, anchor) for anchor in entry.anchors)]
    message = _NAMES.sub(" ", reasons[-1] if reasons else message)
    example = " ".join((entry.test, meaning, *(part for anchor in entry.anchors for part in anchor)))
    return len(_plain_words(message) - _plain_words(example)) >= _LEAST_OTHER_WORDS


def _holds(reason: str, anchor: tuple[str, ...]) -> bool:
    return all(part in reason.lower() for part in anchor)


def _plain_words(text: str) -> set[str]:
    return set(_PLAIN_WORD.findall(text.lower()))


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


def innermost_reason(event: Event) -> str:
    """The last of the reasons "X: Y: Z" of a message; empty if the message has no words of its own."""
    parts = _NESTED.split(_TIME.sub("", without_stamp(_message_of(event)), count=1))
    reasons = [part.strip(" .,!") for part in parts if len(part.split()) > 1]
    reason = reasons[-1].partition("\\n")[0].strip(" .,!") if reasons else ""
    if len(reasons) > 1 and _OF_ERRNO.fullmatch(reason):
        reason = f"{reasons[-2]}: {reason}"
    return reason if reason and len(reason) <= _LONGEST_SENTENCE else own_sentence(event)


def direct_cause(event: Event) -> str:
    """The first exception of the chain that led to this one, as "TYPE: MESSAGE"; empty if it says nothing."""
    first = event.trace.parents[-1] if event.trace is not None and event.trace.parents else None
    return first.text[:_LONGEST_MESSAGE] if first is not None and len(first.message.split()) >= _LEAST_WORDS else ""


def explains_itself(event: Event) -> bool:
    """Whether a failure that no entry matches says in its own words what is wrong."""
    if event.is_heading or event.is_vague:
        return False
    if event.trace is not None:
        if event.entry is _CUT_OFF_IMPORT:
            return True
        return bool(event.trace.type and len(event.trace.message.split()) >= _LEAST_WORDS)
    names = event.hit.names
    return len((names.get("message") or names.get("detail", "")).split()) >= _LEAST_WORDS


def may_be_of_device(event: Event) -> bool:
    """Whether a failure that no entry matches may be one of the device: its words say so, or say nothing; and it is not
    one of configuring or building a program, of which a device knows nothing."""
    if _OF_BUILD.search(event.text):
        return False
    if event.trace is not None and event.trace.type.rpartition(".")[2] in _OF_CODE:
        return _OF_DEVICE.search(event.text) is not None
    return not explains_itself(event) or _OF_DEVICE.search(event.text) is not None


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


_REFUSED_BY = "{package} refuses what it was given ({type}): {message}"
_FAILED_IN = "{package} failed with {type}: {message}"
_PYTHON = "https://docs.python.org/3/tutorial/errors.html"
_EXCEPTION = _unknown("python-exception", "Python failed with {type}: {message}", _PYTHON)
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
