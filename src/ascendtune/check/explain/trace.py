"""Python tracebacks, put together from the lines of one speaker among many."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ascendtune.check.explain import cann_reason
from ascendtune.check.explain import code_of_frame as code_of

HEADER = "Traceback (most recent call last)"
_FRAME = re.compile(r'\s*(?:[|>]\s*)?File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_NOTEBOOK_FRAME = re.compile(r"File (?P<file>[^\s:\"]+\.pyx?):(?P<line>\d+)(?:, in (?P<function>[\w.<>]+).*)?\s*$")
_LINKED_FRAME = re.compile(r"\[?(?P<file>[~/][^\s\])]*\.pyx?)(?:\]\([^\s)]*\))? in (?P<function>[\w.<>]+)\(.*\)?$")
"""A frame of IPython before version 8 and of Colab; the line stands below it, beside the code."""
_NOTEBOOK_CODE = re.compile(r"-{2,}> ?(?P<line>\d+) +(?P<code>\S.*)")
_BRACKET = re.compile(r"\[[^\]\s]{1,16}\] ?: ?")
"""A prefix of a launcher that was garbled when the log was copied."""
_EXCEPTION = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*|(?:[a-z_]\w*\.)+[a-z_]\w*)(?:\[rank\d+\])?(?::\s?(?P<message>.*))?$"
)
_INDENTED_EXCEPTION = re.compile(r" +(?=(?:\w+\.)*\w+(?:Error|Exception): \S)")
"""Where the whole log was indented; the lines of code in a traceback stand further right than its frames."""
_THROWN = re.compile(
    r"\[CRITICAL\] [A-Z_]+\([^)]*\):[\d:.-]+ \[(?P<file>[^:\]]+):(?P<line>\d+)\] (?P<function>\w+)\] (?P<message>\S.*)"
)
"""MindSpore logs exceptions of C++, which Python may raise much later, in other words."""
_RAISED = re.compile(r"\s*raise (?P<type>[A-Z]\w*)\([frb]?([\"'])(?P<message>.{8,}?)(?:\2.*)?$")
"""A line of code that raises an exception in words of its own."""
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_OF_A_GROUP = re.compile(r"\s+\| (?=\S)")
_INSIDE = " \t|+│╭╰❱"
"""How the lines of a traceback begin, those of rich and of exception groups among them."""
_STANDARD_LIBRARY = re.compile(r"/lib/python3[.\d]*/(?!(?:site|dist)-packages/)|^<")
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_NOT_OURS = ("site-packages/", "dist-packages/", "/lib/python3", "<frozen ", "<string>", "<__array_function__")
_COMPILED = (".pyx", ".pxi")
"""Sources of compiled modules, which an installation does not have."""
_ENDINGS = ("Error", "Exception", "Interrupt", "Exit", "Iteration", "Timeout", "Failure", "Expired")
_ANYBODYS = ("Error", "Exception", "Failure", "Timeout")
"""Words before a colon that no exception of Python is called by, but every other program says."""
_LONGEST = 400
"""Lines after which a traceback without an end is given up."""
_GOES_ON = re.compile(r"[:,]\s*$|\b(?:in|the|of|to|from|by|with|for)\s*$")
"""The end of a line whose message continues on the next one."""
_REASON = re.compile(r"because \S|\s+Explanation: \S")
"""The line below an exception that says why: datasets prints the two schemas in between; of torch._dynamo."""
_CONTINUES = re.compile(r"(?:[a-z][a-z'-]*,? (?=[`'\"{<a-z])){2}(?!.*(?:^| )\w+=)")
"""A line of prose that begins within a sentence: the message above it goes on."""
_UNINDENTED = re.compile(r"(?:return |raise )?[a-z_][\w.]*(?:, \w+)*(?: [-+*]?= |\()(?!.*(?:rror|failed))\S")
"""A line of code that lost its blanks when the log was copied."""
_ENDS_SENTENCE = re.compile(r"[.!?;)\]}>]$")
_ASSERT = "assert "
_BANNER = re.compile(r"\W{3,}.*\W{3,}$")
"""A line of ornament between an exception and its message."""
_TWICE = re.compile(r"(?P<type>(?:\w+\.)*[A-Z]\w*(?:Error|Exception))(?P=type)$")
"""Two ranks wrote the same exception into one line, piece by piece."""
_LONGEST_MESSAGE = 4
"""Lines of an exception's message that are waited for while it goes on."""
_LONGEST_PARAGRAPH = 8
"""Lines below an exception in which the rest of its message is looked for."""
_BOX_END = re.compile(r"\s*╰─+╯\s*$")
"""The last line of a traceback that rich drew; it is as wide as the terminal, at which rich wraps the message below."""
_OF_PYDANTIC = re.compile(r"\d+ validation errors? for \w+$")
"""A message of pydantic, whose fields and reasons stand below it."""
_FIELD = re.compile(r"(?! )[\w.-]+(?: -> [\w.-]+)*$")
_OF_FIELD = re.compile(r"\s*\S.*[\[(]type=\w+")
_READ_MORE = "For further information visit"
_MOST_FIELDS = 3
_OF_GRAPH = re.compile(r"\W*(?:\d+ )?In file (?P<file>[^\s:(]+)[:(](?P<line>\d+)")
"""A line of the model's code that MindSpore names below an exception of its graph mode."""
_OF_PARSER = ("SyntaxError", "IndentationError", "TabError")
"""Their last frame is the text that was parsed; it has no function."""
_CLEAN_UP = re.compile(
    r" in (?:__del__|_run_exitfuncs|_exitfunc|_run_finalizers|_exit_function|_python_exit|_shutdown)$|"
    r"/weakref\.py in __call__$|/atexit\.py in "
)
"""Frames of destructors, and of what runs when the interpreter ends."""
_SECTION = re.compile(r"- Dataset Pipeline Error Message:")
"""The heading of what went wrong in a data set of MindSpore, below an exception that does not say it."""
_RULE = re.compile(r"\W*$")
_SECTION_LEVEL = re.compile(r"^\[ERROR\] ")
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
    weak: bool = False
    """Logged as a warning: it was caught."""
    headless: bool = False
    """The log begins in the middle of it."""
    indent: int = 3
    """Blanks before its last frame; few before there is one."""
    rank: int | None = None
    """The rank that its first line named."""
    last_line: int = 0
    """Where the exception stands."""
    code: str = ""
    """The line of code below its last frame."""
    outer_code: str = ""
    """The one below the frame before: the last frame is often a library's function that does what this line asks."""
    is_composed: bool = False
    """Its message was put together from several lines."""
    lines: list[str] = field(default_factory=list)
    """The lines of the log of which its message was put together."""
    is_of_notebook: bool = False
    """Its frames are those of IPython."""
    end: int = 0
    """The last line that belongs to it."""
    graph_place: tuple[str, int, str] | None = None
    """The line of the model's code that the lines below it name."""

    @property
    def is_of_clean_up(self) -> bool:
        """Whether it was raised while an object was destroyed or the process ended: an object that was never finished
        has nothing to close."""
        return any(_CLEAN_UP.search(f"{_posix(file)} in {function}") for file, _, function in self.frames)

    @property
    def place(self) -> tuple[str, int, str] | None:
        """The line of the model that a graph names, the file that Python could not parse, the innermost frame outside
        of packages, or the innermost one."""
        if self.graph_place is not None:
            return self.graph_place
        if self.type in _OF_PARSER and self.frames and not self.frames[-1][2] and self.frames[-1][0][:1] != "<":
            return self.frames[-1]
        own = [frame for frame in self.frames if _is_own(frame[0])]
        frames = own or [frame for frame in self.frames if not frame[0].endswith(_COMPILED)] or self.frames
        return frames[-1] if frames else None

    @property
    def last_call(self) -> tuple[str, int, str] | None:
        """The innermost frame outside of the standard library, its path from the package on."""
        frames = [frame for frame in self.frames if not _STANDARD_LIBRARY.search(frame[0])] or self.frames
        if not frames:
            return None
        file, line, function = frames[-1]
        return _PACKAGES.sub("", file), line, function

    @property
    def package(self) -> str:
        """The package of the innermost frame; empty if the frame is not in one."""
        return code_of.package_in(self.frames)

    @property
    def none_expression(self) -> str:
        """The expression that was None, from the line of code below the last frame; empty if it is not known."""
        return code_of.none_in(self.code, self.message)

    @property
    def table(self) -> str:
        """The table that lacks the key, from the line of code below the last frame; empty if unknown."""
        return code_of.table_in(self.code, self.message) if self.type.endswith("KeyError") else ""

    def passed(self, parts: tuple[str, ...]) -> bool:
        """Whether some frame, as "FILE in FUNCTION", or the code of the two innermost ones has one of `parts` in it.

        Without frames, the code that the message quotes counts.
        """
        passed = [f"{_posix(file)} in {function}" for file, _, function in self.frames] or [self.message]
        passed += [self.code, self.outer_code]
        return any(part in each for each in passed for part in parts)

    def read_below(self, below: list[str], above: str = "") -> None:
        """Take what is written below an exception: the rest of its message, and the model's line of MindSpore.

        Args:
            below: the lines below the exception.
            above: the line above it.
        """
        if cann_reason.is_place(self.message):
            self._read_call(below)
        if _BOX_END.match(above):
            self._unwrap(below, len(above.rstrip()))
        elif not self.frames:
            # With a traceback `Traces` reads the lines on which the message continues.
            self._read_on(below)
        elif below and not _ENDS_SENTENCE.search(self.message) and _CONTINUES.match(below[0]):
            self._read_line(below[0])
        if _OF_PYDANTIC.search(self.message):
            self._read_fields(below)
        if listed := code_of.listed_in(self.message, below):
            self.add(f"{self.message} {listed}", listed)
        at = next((index for index, line in enumerate(below) if _REASON.match(line)), len(below))
        reason = below[at].strip() if at < len(below) else ""
        if reason and reason not in self.message and not any(HEADER in line for line in below[:at]):
            self.add(f"{self.message.rstrip('. ')} {reason}", reason)
        places = (match for match in map(_OF_GRAPH.match, below) if match is not None)
        own = next((match for match in places if _is_own(match["file"])), None)
        if own is not None and not self.type.startswith("an exception"):
            self.graph_place = own["file"], int(own["line"]), ""
        heading = next((index for index, line in enumerate(below) if _SECTION.match(line)), len(below))
        said = next((line for line in below[heading + 1 :] if not _RULE.match(line)), "")
        if said:
            reason = _SECTION_LEVEL.sub("", said.strip())
            self.add(f"{self.message.rstrip('. ')}: {reason}", said.strip())

    def unite(self) -> None:
        """Where two ranks wrote the same exception into one line, by pieces ("KeyErrorKeyError: : 'x'"): it is one."""
        if twice := _TWICE.fullmatch(self.type):
            self.lines, self.is_composed = [self.text], True
            self.type, self.message = twice["type"], self.message.lstrip(": ")

    def read_code(self) -> None:
        """Where the log ends before the exception, and the last line of code raises it: take its words from there."""
        if raised := _RAISED.match(self.code):
            self.type, self.message = raised["type"], _PLACEHOLDER.sub("…", raised["message"].strip())
            self.lines, self.is_composed, self.last_line = [self.code], True, self.end

    def add(self, message: str, line: str) -> None:
        """Take `line` of the log into the message, which becomes `message`."""
        self.lines = [*(self.lines or [self.text]), line]
        self.message, self.is_composed = message, True

    def _read_call(self, below: list[str]) -> None:
        """Add the call of CANN that failed, where the message has only its place in C++."""
        for line in below[:_LONGEST_MESSAGE]:
            if not (cann_reason.FUNCTION_ERROR.match(line.strip()) or _GOES_ON.search(self.message)):
                return
            self._read_line(line)

    def _read_line(self, line: str) -> None:
        self.add(f"{self.message.rstrip()} {line.strip()}", line.strip())

    def _read_fields(self, below: list[str]) -> None:
        """Add the fields that pydantic refuses, each with the reason that stands below its name."""
        rows = [line for line in below if line.strip() and not line.lstrip().startswith(_READ_MORE)][: 2 * _MOST_FIELDS]
        between = ": "
        for name, reason in zip(rows[::2], rows[1::2], strict=False):
            if not (_FIELD.match(name.rstrip()) and _OF_FIELD.match(reason)):
                return
            self.add(f"{self.message}{between}{name.strip()}: {reason.strip()}", f"{name.strip()}: {reason.strip()}")
            between = "; "

    def _read_on(self, below: list[str]) -> None:
        """Add the lines on which a message without a traceback continues."""
        for line in below[:_LONGEST_MESSAGE]:
            said = line.strip()
            goes_on = _GOES_ON.search(self.message) or (
                line is below[0] and not _ENDS_SENTENCE.search(self.message) and _CONTINUES.match(line)
            )
            if not goes_on or not any(map(str.isalnum, said)) or _frame(line) or HEADER in line:
                return
            self._read_line(line)

    def _unwrap(self, below: list[str], columns: int) -> None:
        """Add the lines of a message that was wrapped: those whose first word had no room on the line before."""
        line = self.text
        for each in below[:_LONGEST_MESSAGE]:
            words = each.split()
            if not words or len(line.rstrip()) + 1 + len(words[0]) <= columns:
                return
            self.add(f"{self.message.rstrip()} {each.strip()}", each.strip())
            line = each

    @property
    def text(self) -> str:
        if not self.type:
            return HEADER
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
        """The exception that a line names without a traceback before it: the log was cut, or it was not printed."""
        if thrown := _THROWN.match(text):
            frame = (thrown["file"], int(thrown["line"]), thrown["function"])
            return Trace(number, "an exception in C++", thrown["message"].strip(), [frame], last_line=number)
        match = _EXCEPTION.match(text.rstrip())
        if match is None or not _is_exception(match["type"]) or not (match["message"] or "." in match["type"]):
            return None
        if match["type"] in _ANYBODYS:
            return None
        trace = Trace(number, match["type"], (match["message"] or "").strip(), last_line=number)
        trace.unite()
        return trace

    @staticmethod
    def is_frame(text: str) -> bool:
        return _frame(text) is not None

    def begin(
        self, speaker: str, number: int, *, ignored: bool = False, weak: bool = False, rank: int | None = None
    ) -> None:
        parent = self._last.get(speaker) if speaker in self._linked else None
        self._linked.discard(speaker)
        self._open[speaker] = Trace(number, parent=parent, ignored=ignored, weak=weak, rank=rank)

    def begin_headless(self, speaker: str, number: int) -> None:
        self._open[speaker] = Trace(number, headless=True)

    def link(self, speaker: str) -> None:
        """The next traceback of this speaker belongs to its last one."""
        self._linked.add(speaker)

    def feed(self, speaker: str, text: str, number: int) -> tuple[bool, Trace | None]:
        """(whether the line belongs to a traceback, the traceback if the line ended it)."""
        trace = self._open.get(speaker) or self._adopted(speaker, text, number)
        if trace is None:
            return False, None
        if number - trace.first_line > _LONGEST:
            del self._open[speaker]
            return False, None
        if trace.type:
            return self._goes_on(speaker, trace, text, number)
        if frame := _frame(text):
            if len(trace.frames) > 60:
                del trace.frames[30]
            trace.frames.append(frame)
            trace.indent = len(text) - len(text.lstrip(" "))
            trace.outer_code, trace.code, trace.end = trace.code, "", number
            return True, None
        text = _OF_A_GROUP.sub("", text, count=1) if text[:1] == " " else text
        if not text.strip() or (text[0] in _INSIDE and not _is_indented_exception(text, trace)):
            trace.code, trace.end = trace.code or text.strip(), number
            return True, None
        if code := _NOTEBOOK_CODE.match(text):
            if trace.frames and not trace.frames[-1][1]:
                file, _, function = trace.frames[-1]
                trace.frames[-1] = (file, int(code["line"]), function)
            trace.code, trace.end, trace.is_of_notebook = code["code"].strip(), number, True
            return True, None
        match = _EXCEPTION.match(_BRACKET.sub("", text.strip(), count=1))
        if match is None and not trace.code and trace.frames and number == trace.end + 1 and _UNINDENTED.match(text):
            trace.code, trace.end = text.strip(), number
            return True, None
        if match is None or not (_is_exception(match["type"]) or _may_be_one(match, trace)):
            # Something else was printed in between.
            return False, None
        trace.type, trace.last_line = match["type"], number
        # Two ranks that write into one line put the name of the second exception behind the message of the first.
        said = (match["message"] or "").strip()
        trace.message = said.removesuffix(match["type"])
        if trace.message != said:
            trace.lines, trace.is_composed = [text.strip()], True
        trace.unite()
        if _GOES_ON.search(text):
            return True, None
        if not trace.message and trace.code.startswith(_ASSERT):
            # Only the code says what was not so.
            trace.lines = [trace.code, text.strip()]
            trace.message, trace.is_composed = trace.code, True
        return True, self._ended(speaker)

    def settle(self, speaker: str) -> Trace | None:
        """The exception whose message seemed to go on, when something else follows."""
        trace = self._open.get(speaker)
        return self._ended(speaker) if trace is not None and trace.type else None

    def close(self, speaker: str) -> None:
        """What is open is of no interest."""
        self._open.pop(speaker, None)

    def _goes_on(self, speaker: str, trace: Trace, text: str, number: int) -> tuple[bool, Trace | None]:
        """The first line of the message said only that more follows."""
        said = text.strip()
        may_go_on = number - trace.last_line < _LONGEST_MESSAGE
        if said and may_go_on and _BANNER.match(said):
            return True, None
        if any(map(str.isalnum, said)) and not _FRAME.match(text):
            trace.add(f"{trace.message} {said}".strip(), said)
            if _GOES_ON.search(said) and may_go_on:
                return True, None
        return True, self._ended(speaker)

    def _ended(self, speaker: str) -> Trace:
        self._last[speaker] = self._open.pop(speaker)
        return self._last[speaker]

    def _adopted(self, speaker: str, text: str, number: int) -> Trace | None:
        """A logger puts its prefix before the first line of a traceback only: the frames look like another's."""
        for other, trace in self._open.items():
            if trace.first_line == number - 1 and not trace.frames and _FRAME.match(text):
                self._open[speaker] = self._open.pop(other)
                return trace
        return None

    def above(self, speaker: str, number: int) -> Trace | None:
        """The exception that this speaker raised last, if line `number` may belong to its message."""
        trace = self._last.get(speaker)
        return trace if trace is not None and number - trace.last_line <= _LONGEST_PARAGRAPH else None

    def rest(self) -> list[tuple[str, Trace]]:
        """(speaker, traceback) of what was still open when the log ended."""
        return list(self._open.items())

    @staticmethod
    def raised_in_code(text: str, number: int) -> Trace | None:
        """The exception that a line of code raises, for a log that ends with this line."""
        match = _RAISED.match(text)
        if match is None:
            return None
        return Trace(number, match["type"], match["message"].strip(), last_line=number, lines=[text.strip()])


def _frame(text: str) -> tuple[str, int, str] | None:
    """(file, line, function) of a line that names a frame; line 0 where the line stands beside the code below it."""
    if match := _FRAME.match(text) or _NOTEBOOK_FRAME.match(text):
        return match["file"], int(match["line"]), (match["function"] or "").strip()
    if match := _LINKED_FRAME.match(text):
        return match["file"], 0, match["function"]
    return None


def _posix(file: str) -> str:
    return file.replace("\\", "/")


def _is_own(file: str) -> bool:
    """Whether a file belongs to no installed package."""
    return not file.endswith(_COMPILED) and not any(part in _posix(file) for part in _NOT_OURS)


def _is_indented_exception(text: str, trace: Trace) -> bool:
    match = _INDENTED_EXCEPTION.match(text)
    return match is not None and match.end() <= trace.indent


def _may_be_one(match: re.Match[str], trace: Trace) -> bool:
    """A whole traceback ends in its exception, whatever that is called; a log that begins with frames may not."""
    return not trace.headless and (match["message"] is not None or "." in match["type"])


def _is_exception(name: str) -> bool:
    return name.endswith(_ENDINGS) or ("." in name and name.endswith((".error", ".timeout", ".Unsupported", "Failed")))
