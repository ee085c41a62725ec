"""One traceback of Python: its frames, its exception, and the parts of the message in the lines around it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import takewhile

from ascendtune.check.explain.log.frame import (
    COMPILED,
    frame_of,
    from_package_on,
    is_installed,
    is_of_build,
    is_of_standard_library,
    is_own,
    posix,
)
from ascendtune.check.explain.traceback import below_message, cann_reason, package_of_frame
from ascendtune.check.explain.traceback import code_of_frame as code_of
from ascendtune.check.explain.traceback.advice import advice_below
from ascendtune.check.explain.traceback.raised_code import PLACEHOLDER, raised_by

HEADER = "Traceback (most recent call last)"
RAISED = re.compile(r"\s*raise (?P<type>[A-Z]\w*)\([frb]?([\"'])(?P<message>.{8,}?)(?:\2.*)?$")
"""A line of code that raises an exception with a literal message."""
_QUOTED = re.compile(r"[frb]{0,2}([\"'])(?P<message>(?:[^\s\"']+ ){3,}[^\"']*)")
"""A line of code that is a string: the message of a `raise` that begins on a line above."""
_UNNAMED = "an exception"
"""Placeholder for the type of an exception that the log does not name."""
_PASSED_ON = ("return self._op(", "a = os.fspath(", "p = os.fspath(", "path = os.fspath(", "st = os.stat(", "io.open(")
_MARKS = re.compile(r"\s+~*\^+~*\s*$")
_ENDS_FRAME = re.compile(r"\bline \d+, in [\w<>.]+\s*$")
_INDENTED_CODE = re.compile(r"\s{2,}(?![\w.-]+:(?: |$))\S")
"""A line of code below a frame, not a key of a configuration with its value."""
GOES_ON = re.compile(r"[:,]\s*$|\b(?:in|the|of|to|from|by|with|for)\s*$")
"""The end of a line whose message continues on the next one."""
_REASON = re.compile(r"because \S|\s+Explanation: \S")
"""Reason in a line below an exception: of datasets, which prints the two schemas in between, and of torch._dynamo."""
_CONTINUES = re.compile(r"\s*(?:[a-z][a-z'-]*,? (?=[`'\"{<a-z])){2}(?!.*(?:^| )\w+=)|\s*from '\w[\w.]*' \(")
"""A line that continues the message above it: within a sentence, or with the module of an import."""
_ENDS_SENTENCE = re.compile(r"[.!?;)\]}>]$")
_TWICE = re.compile(r"(?P<type>(?:\w+\.)*[A-Z]\w*(?:Error|Exception))(?P=type)$")
"""Type of an exception that two ranks wrote into one line, piece by piece."""
ASSERT = ("assert ", "assert(")
LONGEST_MESSAGE = 4
"""Most lines of an exception's message."""
_BOX_END = re.compile(r"\s*╰─+╯\s*$")
"""Last line of rich's box; it is as wide as the terminal, at which rich wraps the message below."""
_OF_PYDANTIC = re.compile(r"\d+ validation errors? for \w+$")
"""A message of pydantic; its fields and reasons follow below."""
_OF_YAML = re.compile(r"\byaml\.\w+\.\w+Error$")
_OF_PARSER = ("SyntaxError", "IndentationError", "TabError")
"""Their last frame is the parsed text, without a function."""
_OF_IMPORTS = ("ImportError", "ModuleNotFoundError", *_OF_PARSER)
_CLEAN_UP = re.compile(
    r" in (?:__del__|_run_exitfuncs|_exitfunc|_run_finalizers|_exit_function|_python_exit|_shutdown)$|"
    r"/weakref\.py in __call__$|/atexit\.py in "
)
"""Frames of destructors, and of functions that run when the interpreter exits."""

_OF_TORCH = re.compile(r"(?:^|/)torch/(?!.*/(?:site|dist)-packages/)")
"""Files of torch: the caller's line is more useful than the line in torch that failed."""
LINKS = ("was the direct cause of the following", "another exception occurred")


@dataclass
class Trace:
    """One traceback. `type` is empty if the log ends before the exception."""

    first_line: int
    type: str = ""
    message: str = ""
    frames: list[tuple[str, int, str]] = field(default_factory=list)
    """(file, line, function), outermost first; only the first and the last few are kept."""
    named: str = ""
    """Type of the exception in the heading: IPython writes "TYPE      Traceback …"."""
    reported: str = ""
    """Exception that a report names above the frames, as "TYPE: MESSAGE"."""
    waiting_frames: list[tuple[str, int, str]] = field(default_factory=list)
    """Frames of the process that waited for the failed one; Ray prints both."""
    parent: Trace | None = None
    """Exception that was being handled, or that caused this one."""
    child: Trace | None = field(default=None, repr=False, compare=False)
    """Exception that followed from this one."""
    ignored: bool = False
    """Whether Python ignored it."""
    weak: bool = False
    """Whether it was logged as a warning, that is, caught."""
    is_logged: bool = False
    """Whether the line above it is a logged error: the program may have continued."""
    headless: bool = False
    """Whether the log begins in the middle of it."""
    indent: int = 3
    """Blanks before its last frame."""
    rank: int | None = None
    """Rank in its first line."""
    last_line: int = 0
    """Number of the line with the exception."""
    code: str = ""
    """Line of code below its last frame, stripped."""
    code_line: str = ""
    """The same with its indentation, for the marks below it."""
    marked: str = ""
    """Part of `code` that Python 3.11 and later underline."""
    outer_code: str = ""
    """Line of code below the frame before: often the call of a library's function, which is the last frame."""
    failure_above: tuple[int, str] = (0, "")
    """A line with words of failure directly above its heading: number and text."""
    is_announced: bool = False
    """Whether its line ends with a colon, and the message follows below."""
    is_composed: bool = False
    """Whether its message was joined from several lines."""
    lines: list[str] = field(default_factory=list)
    """Lines of the log from which its message was joined."""
    is_of_notebook: bool = False
    """Whether its frames are in IPython's form."""
    cell: list[str] = field(default_factory=list)
    """Numbered lines of code that IPython prints below the last frame."""
    advice: str = ""
    """Advice in the lines below its message."""
    end: int = 0
    """Number of its last line."""
    last_frame: tuple[int, str] = (0, "")
    """Line of its innermost frame: number and text."""
    graph_place: tuple[str, int, str] | None = None
    """Line of the model's code, from the lines below it."""

    @property
    def may_go_on(self) -> bool:
        """Whether the message may continue on the next line; a finished sentence and a KeyError's key do not."""
        return _ENDS_SENTENCE.search(self.message) is None and not self.type.endswith("KeyError")

    @property
    def is_of_clean_up(self) -> bool:
        """Whether it was raised while an object was destroyed or the process exited: it did not end the job."""
        return any(_CLEAN_UP.search(f"{posix(file)} in {function}") for file, _, function in self.frames)

    @property
    def is_of_start(self) -> bool:
        """Whether it was raised by an import, by the build of a package, or in Python's standard library."""
        files = [file for file, _, _ in self.frames]
        is_of_library = bool(files) and is_of_standard_library(files[-1]) and files[-1][:1] != "<"
        return self.type in _OF_IMPORTS or is_of_library or any(map(is_of_build, files))

    @property
    def parents(self) -> list[Trace]:
        """Exceptions that led to this one, the last of them first."""
        parents, trace = list[Trace](), self.parent
        while trace is not None:
            parents.append(trace)
            trace = trace.parent
        return parents

    @property
    def was_caught(self) -> bool:
        """Whether the program printed it itself, and may have continued: a logged error, or an exception whose
        outermost frame is a function of the user's code. If an exception ends a program, that frame is a module's
        code; if it ends a thread or a process, it belongs to the library that started it."""
        last = self
        while last.child is not None:
            last = last.child
        if any(each.is_logged for each in (last, *last.parents)):
            return True
        file, _, function = next(iter(last.waiting_frames or last.frames), ("", 0, ""))
        return bool(function) and is_own(file) and not (last.headless or function.startswith(code_of.OUTERMOST))

    @property
    def place(self) -> tuple[str, int, str] | None:
        """Best place to look at: the line of the model that a graph names, the file that Python could not parse, the
        innermost frame outside of packages, that outside of the standard library, or the innermost one."""
        if self.graph_place is not None:
            return self.graph_place
        if self.type in _OF_PARSER and self.frames and not self.frames[-1][2] and self.frames[-1][0][:1] != "<":
            return self.frames[-1]
        own = [frame for frame in self.frames if is_own(frame[0])]
        readable = [frame for frame in self.frames if not frame[0].endswith(COMPILED) and frame[0][:1] != "<"]
        installed = [frame for frame in readable if not is_of_standard_library(frame[0])]
        calling = [] if own else [frame for frame in installed if not _OF_TORCH.search(posix(frame[0]))]
        frames = own or calling or installed or readable or self.frames
        return frames[-1] if frames else None

    @property
    def last_call(self) -> tuple[str, int, str] | None:
        """Innermost frame outside of the standard library, with its path from the package on."""
        frames = [frame for frame in self.frames if not is_of_standard_library(frame[0])] or self.frames
        if not frames:
            return None
        file, line, function = frames[-1]
        return from_package_on(file), line, function

    @property
    def package(self) -> str:
        """Package of the innermost frame; empty if the frame is not in one."""
        return package_of_frame.package_in(self.frames)

    @property
    def files(self) -> tuple[str, ...]:
        """Files of its frames, outermost first, with slashes."""
        return tuple(posix(file) for file, _, _ in self.frames)

    @property
    def package_that_failed(self) -> str:
        """Installed package, or known framework, of the innermost frame; empty if that is other code."""
        file = posix(self.frames[-1][0]) if self.frames else ""
        return self.package if is_installed(file) else package_of_frame.framework_of(file)

    @property
    def library_alone(self) -> str:
        """Package that contains the whole traceback; empty if a frame is other code."""
        return package_of_frame.library_alone(self.frames)

    @staticmethod
    def package_of(frame: tuple[str, int, str]) -> str:
        """Package of a frame; empty if it is other code."""
        return package_of_frame.package_in([frame])

    def importer_of(self, library: str) -> str:
        """Package of the innermost frame that is not in `library`; empty if that frame is not in a package."""
        return package_of_frame.package_in(self.frames, library)

    @property
    def asks_for_attribute(self) -> bool:
        """Whether the innermost frame is a method by which an object raises AttributeError."""
        return bool(self.frames) and self.frames[-1][2] in package_of_frame.OF_MODULES

    @property
    def is_between_model_and_transformers(self) -> bool:
        """Whether a model's own code and transformers do not fit together: one of the two failed."""
        return package_of_frame.is_model_code_in(self.frames) and self.package in ("", "transformers")

    @property
    def taken_from(self) -> str:
        """Expression without a value or with the wrong number of values, from the line of code below the last frame."""
        return code_of.taken_from(self.code, self.text, self.marked)

    @property
    def none_expression(self) -> str:
        """Expression that was None, from the line of code below the last frame; empty if unknown."""
        if self.code.startswith(_PASSED_ON):
            # Operators of torch, and functions of os.path, are called by a function that passes its arguments on.
            return code_of.none_in(self.outer_code, self.message)
        name = code_of.none_in(self.marked, self.message) or code_of.none_in(self.code, self.message)
        return code_of.argument_of(name, self.frames[-1][2], self.outer_code) if name and self.frames else name

    @property
    def table(self) -> str:
        """Table that lacks the key or index, from the line of code below the last frame; empty if unknown."""
        marked = code_of.looked_up_in(self.marked) if self.type.endswith(("KeyError", "IndexError")) else ""
        if self.type.endswith("IndexError"):
            return marked or code_of.indexed_in(self.code, self.message)
        return marked or (code_of.table_in(self.code, self.message) if self.type.endswith("KeyError") else "")

    def read_marks(self, line: str) -> None:
        """Store the part of the line of code above that Python underlines, if `line` has such marks."""
        code, start = self.code_line.rstrip(), len(line) - len(line.lstrip())
        if _MARKS.match(line) and start >= len(code) - len(code.lstrip()):
            self.marked = code[start : len(line.rstrip())]

    def read_above(self, above: list[str]) -> None:
        """Store the line of code above an exception without frames, if it contains the subject of the message.

        Args:
            above: the last two lines above it; the lower one may contain Python's marks.
        """
        if self.frames or not above:
            return
        is_marked = _MARKS.match(above[-1]) is not None
        if not (is_marked or _ENDS_FRAME.search(above[0]) or _INDENTED_CODE.match(above[-1])):
            return
        self.code_line = above[0] if is_marked else above[-1]
        self.code = self.code_line.strip()
        self.read_marks(above[-1])
        if not (self.none_expression or self.table):
            self.code = self.code_line = self.marked = ""

    def passed(self, parts: tuple[str, ...]) -> bool:
        """Whether a frame, as "FILE in FUNCTION", or the code of the two innermost ones contains one of `parts`.

        Without frames, the code in the message counts.
        """
        passed = [f"{posix(file)} in {function}" for file, _, function in self.frames] or [self.message]
        passed += [self.code, self.outer_code]
        return any(part in each for each in passed for part in parts)

    def read_below(self, below: list[str], above: str = "") -> None:
        """Read the lines below an exception: the rest of its message, and MindSpore's line of the model.

        Args:
            below: the lines below the exception.
            above: the line above it.
        """
        if cann_reason.is_place(self.message):
            self._read_call(below)
        of_kernel, reason = below_message.fault_of_kernel(self.message, below)
        if of_kernel:
            self.lines = [f"{self.type}: {of_kernel.partition(f' {reason}')[0]}", reason]
            self.message, self.is_composed = of_kernel, True
        elif _BOX_END.match(above):
            self._unwrap(below, len(above.rstrip()))
        elif not self.frames:
            # If there is a traceback, `Traces` reads the lines on which the message continues.
            self._read_on(below)
        elif below and self.may_go_on and _CONTINUES.match(below[0]):
            self._read_line(below[0])
        self.advice = advice_below(self.message, below)
        if _OF_PYDANTIC.search(self.message):
            for words, line in below_message.refused_fields(below):
                self.add(f"{self.message}{words}", line)
        if shapes := below_message.shapes_of_processes(self.message, below):
            self.add(f"{self.message} {shapes}", shapes)
        if _OF_YAML.search(self.type):
            for line in below_message.marks_of_yaml(self.message, below):
                self._read_line(line)
        if listed := code_of.listed_in(self.message, below):
            self.add(f"{self.message} {listed}", listed)
        before = list(takewhile(lambda line: not _REASON.match(line), below))
        reason = below[len(before)].strip() if len(before) < len(below) else ""
        if reason and reason not in self.message and not any(HEADER in line for line in before):
            self.add(f"{self.message.rstrip('. ')} {reason}", reason)
        if not self.type.startswith(_UNNAMED):
            self.graph_place = below_message.place_in_model(below) or self.graph_place
        if line := below_message.first_of_section(below):
            self.add(f"{self.message.rstrip('. ')}: {below_message.without_level(line)}", line)

    def unite(self) -> None:
        """Reduce an exception that two ranks wrote into one line by pieces ("KeyErrorKeyError: : 'x'") to one."""
        if twice := _TWICE.fullmatch(self.type):
            self.lines, self.is_composed = [self.text], True
            self.type, self.message = twice["type"], self.message.lstrip(": ")

    def complete(self) -> None:
        """If the log ends within the name in the message, take the whole name from the line of code."""
        if whole := code_of.completed(self.message, self.marked or self.code):
            self.lines, self.is_composed = [self.text], True
            self.message = whole

    def read_code(self) -> None:
        """If the log ends before the exception, read it from the last line of code, which raises it."""
        kind, text = raised_by(self.cell)
        if kind:
            self.type, self.message = kind, text
        elif raised := RAISED.match(self.code):
            self.type, self.message = raised["type"], PLACEHOLDER.sub("…", raised["message"].strip())
        elif self.code.startswith(ASSERT):
            self.type, self.message = "AssertionError", self.code
        elif quoted := _QUOTED.match(self.code):
            self.type, self.message = _UNNAMED, PLACEHOLDER.sub("…", quoted["message"].strip())
        else:
            if self.headless:
                # The log has no heading to quote.
                self.last_line, shown = self.last_frame
                self.lines = [shown]
            return
        self.lines, self.is_composed, self.last_line = [self.code], True, self.end

    def add(self, message: str, line: str) -> None:
        """Set the message to `message`, which includes `line` of the log."""
        self.lines = [*(self.lines or [self.text]), line]
        self.message, self.is_composed = message, True

    def _read_call(self, below: list[str]) -> None:
        """Add the failed CANN call to a message that has only its place in C++."""
        for line in below[:LONGEST_MESSAGE]:
            if not (cann_reason.is_call(line) or GOES_ON.search(self.message)):
                return
            self._read_line(line)

    def _read_line(self, line: str) -> None:
        self.add(f"{self.message.rstrip()} {line.strip()}".lstrip(), line.strip())

    def _read_on(self, below: list[str]) -> None:
        """Add the lines on which a message without a traceback continues."""
        for line in below[:LONGEST_MESSAGE]:
            stripped = line.strip()
            begins = self.is_announced or (self.may_go_on and _CONTINUES.match(line))
            goes_on = GOES_ON.search(self.message) or (line is below[0] and begins)
            if not goes_on or not any(map(str.isalnum, stripped)) or frame_of(line) or HEADER in line:
                return
            self._read_line(line)

    def _unwrap(self, below: list[str], columns: int) -> None:
        """Add the lines of a wrapped message: those whose first word did not fit on the line before."""
        line = self.text
        for each in below[:LONGEST_MESSAGE]:
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
