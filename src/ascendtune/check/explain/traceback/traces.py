"""Recognises tracebacks in the lines of several speakers, from their heading to their exception."""

from __future__ import annotations

import re

from ascendtune.check.explain.log.frame import frame_of, is_python_frame
from ascendtune.check.explain.traceback.raised_code import NUMBERED, OPEN
from ascendtune.check.explain.traceback.trace import ASSERT, GOES_ON, LONGEST_MESSAGE, RAISED, Trace

_NOTEBOOK_CODE = re.compile(r"-+> ?(?P<line>\d+) +(?P<code>\S.*)")
_PANEL_CODE = re.compile(r"\s*│ *❱ *\d+(?: *│)* *(?P<code>\S.*?) *│?\s*$")
"""The line of code that a panel of rich marks; the lines around it are context."""
_BRACKET = re.compile(r"\[[^\]\s]{1,16}\] ?: ?")
"""A launcher's prefix that was garbled when the log was copied."""
_EXCEPTION = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*|(?:[a-z_]\w*\.)+[a-z_]\w*)(?:\[rank\d+\])?(?::\s?(?P<message>.*))?$"
)
_NAME_BEFORE_TRACEBACK = re.compile(r"\W*(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z]\w*) +$")
_INDENTED_EXCEPTION = re.compile(r" +(?=(?:\w+\.)*\w+(?:Error|Exception): \S)")
"""An exception in a log that is indented as a whole; a traceback's code is indented more than its frames."""
REPORTED = "**Exception "
_REPORTED = re.compile(r"\W*\*\*Exception (?P<field>Type|Message):\*\* (?P<value>\S.*)")
"""A field of ComfyUI's report of an error, which names the exception above its frames; it contains
`REPORTED`."""
_THROWN = re.compile(
    r"\[CRITICAL\] [A-Z_]+\([^)]*\):[\d:.-]+ \[(?P<file>[^:\]]+):(?P<line>\d+)\] (?P<function>\w+)\] (?P<message>\S.*)"
)
"""MindSpore's line of a C++ exception, which Python may raise much later with another message."""
_OF_RAY = re.compile(r"(?:ray\.exceptions\.)?RayTaskError(?:\(\w+\))?: .{0,9}ray::")
"""Ray's line between the frames of the waiting process and those of the process that it waited for."""
_OF_A_GROUP = re.compile(r"\s+\| (?=\S)")
_INSIDE = " \t|+│╭╰❱"
"""First characters of lines inside a traceback, including those of rich and of exception groups."""
_ENDINGS = (
    *("Error", "Exception", "Interrupt", "Exit", "Iteration", "Timeout", "Failure", "Expired"),
    *("ArrowInvalid", "BadZipFile", "IncompleteRead", "IncompatibleWorldSize", "DataDependentSymNode", "gaierror"),
)
"""Ends of exceptions' names; those of the second line are whole names of exceptions."""
_OF_EXCEPTIONS = re.compile(r"\.(?:exceptions|exc)\.[A-Z]\w+$")
"""Classes with any name in a module of exceptions; torch calls such modules exc."""
_ANYBODYS = ("Error", "Exception", "Failure", "Timeout")
"""Words before a colon that are not exceptions of Python; other programs print them."""
_LONGEST = 400
"""Lines after which a traceback without an end is dropped; multiplied by the number of open tracebacks."""
_MOST_FRAMES = 60
"""Frames kept of one traceback; beyond that, frames in the middle are dropped."""
_UNINDENTED = re.compile(r"(?:return |raise )?[a-z_][\w.]*(?:, \w+)*(?: [-+*]?= |\()(?!.*(?:rror|failed))\S")
"""A line of code that lost its indentation when the log was copied."""
_BANNER = re.compile(r"\W{3,}.*\W{3,}$")
"""A decorative line between an exception and its message."""
_LONGEST_PARAGRAPH = 8
"""Lines below an exception that are searched for the rest of its message."""


class Traces:
    """Receives the lines in their order, and returns each traceback at its end.

    Lines of several ranks may alternate: each speaker has its own state.
    """

    def __init__(self) -> None:
        self._open: dict[str, Trace] = {}
        self._last: dict[str, Trace] = {}
        self._linked: set[str] = set()

    @property
    def are_open(self) -> bool:
        return bool(self._open)

    @staticmethod
    def bare(text: str, number: int) -> Trace | None:
        """Exception in a line without a traceback before it: the log was cut, or the traceback was not printed."""
        if thrown := _THROWN.match(text):
            frame = (thrown["file"], int(thrown["line"]), thrown["function"])
            return Trace(number, "an exception in C++", thrown["message"].strip(), [frame], last_line=number)
        match = _EXCEPTION.match(text.rstrip())
        if match is None or not _is_exception(match["type"]) or (match["message"] is None and "." not in match["type"]):
            return None
        if match["type"] in _ANYBODYS:
            return None
        trace = Trace(number, match["type"], (match["message"] or "").strip(), last_line=number)
        trace.is_announced = match["message"] is not None and not trace.message
        trace.unite()
        return trace

    def begin(self, speaker: str, trace: Trace) -> None:
        """Open a traceback at its heading."""
        trace.parent = self._last.get(speaker) if speaker in self._linked else None
        if trace.parent is not None:
            trace.parent.child = trace
        self._linked.discard(speaker)
        self._open[speaker] = trace

    def begin_reported(self, speaker: str, text: str, above: str, number: int) -> bool:
        """Open a traceback at the message of a report of an error, whose frames follow; False for other lines.

        Args:
            above: the line above it, which names the type.
        """
        message, kind = _REPORTED.match(text), _REPORTED.match(above)
        if message is None or message["field"] != "Message" or kind is None or kind["field"] != "Type":
            return False
        words = message["value"].removeprefix(f"{kind['value'].rpartition('.')[2]}: ").strip()
        self.begin(speaker, Trace(number, reported=f"{kind['value'].strip()}: {words}", last_line=number))
        return True

    def begin_headless(self, speaker: str, number: int) -> None:
        """Open a traceback whose beginning the log lacks, unless the line may belong to an open one."""
        if speaker not in self._open and all(trace.headless for trace in self._open.values()):
            self._open[speaker] = Trace(number, headless=True)

    def link(self, speaker: str) -> None:
        """Link the next traceback of this speaker to its last one."""
        self._linked.add(speaker)

    def feed(self, speaker: str, text: str, number: int) -> tuple[bool, Trace | None]:
        """(whether the line belongs to a traceback, the traceback if the line ended it)."""
        trace = self._open.get(speaker) or self._adopted(speaker, text, number)
        if trace is None:
            return False, None
        if number - trace.first_line > _LONGEST * len(self._open):
            del self._open[speaker]
            return False, None
        if trace.type:
            return self._goes_on(speaker, trace, text, number)
        if trace.reported and trace.frames and text.startswith("#"):
            return True, self._of_report(speaker, trace)
        if _is_inside(trace, text, number):
            return True, None
        text = _without_bar(text)
        match = _exception_in(text)
        if match is None or not (_is_exception(match["type"]) or _may_be_one(match, trace, number)):
            # Another line was printed in between.
            return False, None
        _note_exception(trace, match, text, number)
        if GOES_ON.search(text):
            return True, None
        if not trace.message and trace.code.startswith(ASSERT):
            # The condition is only in the code.
            trace.lines = [trace.code, text.strip()]
            trace.message, trace.is_composed = trace.code, True
        return True, self._ended(speaker)

    def _of_report(self, speaker: str, trace: Trace) -> Trace:
        """End a traceback at the next heading of its report."""
        trace.type, _, trace.message = trace.reported.partition(": ")
        trace.lines, trace.is_composed = [trace.reported], True
        return self._ended(speaker)

    def settle(self, speaker: str) -> Trace | None:
        """End the traceback of a speaker whose message seemed to continue, when another line follows."""
        trace = self._open.get(speaker)
        return self._ended(speaker) if trace is not None and trace.type else None

    def close(self, speaker: str) -> None:
        """Drop the open traceback of a speaker."""
        self._open.pop(speaker, None)

    def _goes_on(self, speaker: str, trace: Trace, text: str, number: int) -> tuple[bool, Trace | None]:
        """Read a line after a message that announced its continuation."""
        stripped = text.strip()
        may_go_on = number - trace.last_line < LONGEST_MESSAGE
        is_blank_before = not (stripped or trace.message)
        if may_go_on and (is_blank_before or (stripped and _BANNER.match(stripped))):
            return True, None
        if any(map(str.isalnum, stripped)) and not is_python_frame(text):
            trace.add(f"{trace.message} {stripped}".strip(), stripped)
            if GOES_ON.search(stripped) and may_go_on:
                return True, None
        return True, self._ended(speaker)

    def _ended(self, speaker: str) -> Trace:
        self._last[speaker] = self._open.pop(speaker)
        return self._last[speaker]

    def _adopted(self, speaker: str, text: str, number: int) -> Trace | None:
        """Find the traceback that a frame belongs to, if its logger writes a prefix only before the first line."""
        for other, trace in self._open.items():
            if trace.first_line == number - 1 and not trace.frames and is_python_frame(text):
                self._open[speaker] = self._open.pop(other)
                return trace
        return None

    def above(self, speaker: str, number: int) -> Trace | None:
        """Last exception of this speaker, if line `number` may belong to its message."""
        trace = self._last.get(speaker)
        return trace if trace is not None and number - trace.last_line <= _LONGEST_PARAGRAPH else None

    def rest(self) -> list[tuple[str, Trace]]:
        """(speaker, traceback) of the tracebacks that are open at the end of the log."""
        for speaker, trace in list(self._open.items()):
            if trace.reported and trace.frames:
                self._open[speaker] = self._of_report(speaker, trace)
        return list(self._open.items())

    @staticmethod
    def named_in(heading: str) -> str:
        """Type before "Traceback (most recent call last)", as IPython writes it; empty if there is none."""
        match = _NAME_BEFORE_TRACEBACK.match(heading)
        return match["type"] if match is not None and _is_exception(match["type"]) else ""

    @staticmethod
    def of_any_name(text: str, number: int) -> Trace | None:
        """Exception in a line, recognised only by its form: a class with its module, and a message."""
        match = _EXCEPTION.match(text.rstrip())
        if match is None or not match["message"] or "." not in match["type"]:
            return None
        return Trace(number, match["type"], match["message"].strip(), last_line=number)

    @staticmethod
    def raised_in_code(text: str, number: int) -> Trace | None:
        """Exception that a line of code raises, for a log that ends with this line."""
        pointed = _NOTEBOOK_CODE.match(text)
        code = pointed["code"] if pointed else text
        if opened := OPEN.match(code):
            return Trace(number, opened["type"], last_line=number, code=code, lines=[code])
        match = RAISED.match(code)
        if match is None:
            return None
        return Trace(number, match["type"], match["message"].strip(), last_line=number, lines=[text.strip()])


def _is_inside(trace: Trace, text: str, number: int) -> bool:
    """Whether the line is between the heading of a traceback and its exception; stores its content in `trace`."""
    if frame := frame_of(text):
        _note_frame(trace, frame, text, number)
        return True
    if numbered := NUMBERED.match(text):
        trace.cell.append(numbered["code"])
    if text.lstrip()[:1] == "│":
        if pointed := _PANEL_CODE.match(text):
            trace.code = pointed["code"]
        trace.end = number
        return True
    text = _without_bar(text)
    if not text.strip() or (text[0] in _INSIDE and not _is_indented_exception(text, trace)):
        trace.read_marks(text)
        trace.code, trace.code_line, trace.end = trace.code or text.strip(), text, number
        return True
    if code := _NOTEBOOK_CODE.match(text):
        if trace.frames and not trace.frames[-1][1]:
            file, _, function = trace.frames[-1]
            trace.frames[-1] = (file, int(code["line"]), function)
        trace.code, trace.end, trace.is_of_notebook = code["code"].strip(), number, True
        return True
    if _OF_RAY.match(text) and trace.frames:
        trace.waiting_frames, trace.end = list(trace.frames), number
        return True
    lacks_code = not trace.code and trace.frames and number == trace.end + 1
    if lacks_code and _UNINDENTED.match(text) and _exception_in(text) is None:
        trace.code, trace.end = text.strip(), number
        return True
    return False


def _note_frame(trace: Trace, frame: tuple[str, int, str], text: str, number: int) -> None:
    if trace.waiting_frames and trace.frames == trace.waiting_frames:
        # The following frames belong to the process that raised it.
        trace.frames = []
    if len(trace.frames) > _MOST_FRAMES:
        del trace.frames[_MOST_FRAMES // 2]
    trace.frames.append(frame)
    trace.indent = len(text) - len(text.lstrip(" │"))
    trace.outer_code, trace.code, trace.marked, trace.end = trace.code, "", "", number
    trace.last_frame = number, text.strip()
    trace.cell.clear()


def _note_exception(trace: Trace, match: re.Match[str], text: str, number: int) -> None:
    trace.type, trace.last_line = match["type"], number
    # If two ranks write into one line, the second exception's name follows the message of the first.
    message = (match["message"] or "").strip()
    trace.message = message.removesuffix(match["type"])
    if trace.message != message:
        trace.lines, trace.is_composed = [text.strip()], True
    trace.unite()
    trace.complete()


def _exception_in(text: str) -> re.Match[str] | None:
    return _EXCEPTION.match(_BRACKET.sub("", text.strip(), count=1))


def _without_bar(text: str) -> str:
    """Remove the bar of an exception group from a line."""
    return _OF_A_GROUP.sub("", text, count=1) if text[:1] == " " else text


def _is_indented_exception(text: str, trace: Trace) -> bool:
    """Whether an exception is indented at most as its frames; or, if the first frame lost its blanks, less than the
    line of code."""
    match = _INDENTED_EXCEPTION.match(text)
    code_indent = len(trace.code_line) - len(trace.code_line.lstrip())
    return match is not None and (match.end() <= trace.indent or (trace.headless and match.end() < code_indent))


def _may_be_one(match: re.Match[str], trace: Trace, number: int) -> bool:
    """Whether a name of any form is the exception of an open traceback.

    A complete traceback ends with its exception. If the log begins with frames, the line must be a class with its
    module and a message, directly below the line of code."""
    if not trace.headless:
        return match["message"] is not None or "." in match["type"]
    *module, name = match["type"].split(".")
    return bool(module and match["message"] and trace.code) and name[:1].isupper() and number == trace.end + 1


def _is_exception(name: str) -> bool:
    dotted = "." in name and name.endswith((".error", ".timeout", ".Unsupported", "Failed"))
    return dotted or name.endswith(_ENDINGS) or _OF_EXCEPTIONS.search(name) is not None
