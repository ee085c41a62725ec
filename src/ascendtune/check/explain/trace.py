"""Python tracebacks, put together from the lines of one speaker among many."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

HEADER = "Traceback (most recent call last)"
_FRAME = re.compile(r'\s*(?:\|\s*)?File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_EXCEPTION = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*|(?:[a-z_]\w*\.)+[a-z_]\w*)(?:\[rank\d+\])?(?::\s?(?P<message>.*))?$"
)
_INDENTED_EXCEPTION = re.compile(r" {1,3}(?:\w+\.)*\w+(?:Error|Exception): \S")
"""Where the whole log was indented; the lines of code in a traceback stand further right."""
_NOT_OURS = ("site-packages/", "dist-packages/", "/lib/python3", "<frozen ", "<string>", "<__array_function__")
_LONGEST = 400
"""Lines after which a traceback without an end is given up."""
LINKS = ("was the direct cause of the following", "another exception occurred")


@dataclass
class Trace:
    """One traceback. `type` is empty when the log ends before the exception is named."""

    first_line: int
    type: str = ""
    message: str = ""
    frames: list[tuple[str, int, str]] = field(default_factory=list)
    """(file, line, function), outermost first; only the first and the last few are kept."""
    parent: Trace | None = None
    """The exception that was being handled, or that caused this one."""
    ignored: bool = False
    """Python says that it ignored it."""

    @property
    def place(self) -> tuple[str, int, str] | None:
        """The innermost frame outside of installed packages, else the innermost one."""
        own = [frame for frame in self.frames if not any(part in frame[0] for part in _NOT_OURS)]
        frames = own or self.frames
        return frames[-1] if frames else None

    def passed(self, part: str) -> bool:
        """Whether the path of some frame has `part` in it."""
        return any(part in file for file, _, _ in self.frames)

    @property
    def text(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class Traces:
    """Feeds on lines in their order; tells when a traceback has come to its end.

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
        """The exception that a line names without a traceback before it: the log was cut, or nobody printed it."""
        match = _EXCEPTION.match(text.rstrip())
        if match is None or not match["message"] or not _is_exception(match["type"]):
            return None
        return Trace(number, match["type"], match["message"].strip())

    def begin(self, speaker: str, number: int, ignored: bool) -> None:
        parent = self._last.get(speaker) if speaker in self._linked else None
        self._linked.discard(speaker)
        self._open[speaker] = Trace(number, parent=parent, ignored=ignored)

    def link(self, speaker: str) -> None:
        """The next traceback of this speaker belongs to its last one."""
        self._linked.add(speaker)

    def feed(self, speaker: str, text: str, number: int) -> tuple[bool, Trace | None]:
        """(whether the line belongs to a traceback, the traceback if the line ended it)."""
        trace = self._open.get(speaker)
        if trace is None:
            return False, None
        if number - trace.first_line > _LONGEST:
            del self._open[speaker]
            return False, None
        if frame := _FRAME.match(text):
            if len(trace.frames) > 60:
                del trace.frames[30]
            trace.frames.append((frame["file"], int(frame["line"]), (frame["function"] or "").strip()))
            return True, None
        if not text.strip() or (text[0] in " \t|+" and not _INDENTED_EXCEPTION.match(text)):
            return True, None
        text = text.lstrip()
        match = _EXCEPTION.match(text.rstrip())
        if match is None or (
            match["message"] is None and "." not in match["type"] and not _is_exception(match["type"])
        ):
            # Something else was printed in between.
            return False, None
        trace.type, trace.message = match["type"], (match["message"] or "").strip()
        del self._open[speaker]
        self._last[speaker] = trace
        return True, trace

    def rest(self) -> list[tuple[str, Trace]]:
        """(speaker, traceback) of what was still open when the log ended."""
        return list(self._open.items())


def _is_exception(name: str) -> bool:
    return name.endswith(("Error", "Exception", "Interrupt", "Exit", "Iteration", "Timeout", "Failure"))
