"""One traceback of Python: its frames, its exception, and what the lines around it add to the message."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import dropwhile, islice, takewhile

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
from ascendtune.check.explain.traceback import below_message, cann_reason
from ascendtune.check.explain.traceback import code_of_frame as code_of
from ascendtune.check.explain.traceback.advice import advice_below
from ascendtune.check.explain.traceback.raised_code import PLACEHOLDER, raised_by

HEADER = "Traceback (most recent call last)"
RAISED = re.compile(r"\s*raise (?P<type>[A-Z]\w*)\([frb]?([\"'])(?P<message>.{8,}?)(?:\2.*)?$")
"""A line of code that raises an exception in words of its own."""
_QUOTED = re.compile(r"[frb]{0,2}([\"'])(?P<message>(?:[^\s\"']+ ){3,}[^\"']*)")
"""A line of code that is a text in quotes: what a `raise` that began in a line above says."""
_UNNAMED = "an exception"
"""In place of the exception's type, where the log does not say it."""
_PASSED_ON = ("return self._op(", "a = os.fspath(", "p = os.fspath(", "path = os.fspath(", "st = os.stat(", "io.open(")
_MARKS = re.compile(r"\s+~*\^+~*\s*$")
_ENDS_FRAME = re.compile(r"\bline \d+, in [\w<>.]+\s*$")
_INDENTED_CODE = re.compile(r"\s{2,}(?![\w.-]+:(?: |$))\S")
"""A line of code below a frame, and not a key of a configuration with its value."""
GOES_ON = re.compile(r"[:,]\s*$|\b(?:in|the|of|to|from|by|with|for)\s*$")
"""The end of a line whose message continues on the next one."""
_REASON = re.compile(r"because \S|\s+Explanation: \S")
"""The line below an exception that says why: datasets prints the two schemas in between; of torch._dynamo."""
_CONTINUES = re.compile(r"\s*(?:[a-z][a-z'-]*,? (?=[`'\"{<a-z])){2}(?!.*(?:^| )\w+=)|\s*from '\w[\w.]*' \(")
"""A line of prose that begins within a sentence, or with the module of an import: the message above it goes on."""
_ENDS_SENTENCE = re.compile(r"[.!?;)\]}>]$")
_TWICE = re.compile(r"(?P<type>(?:\w+\.)*[A-Z]\w*(?:Error|Exception))(?P=type)$")
"""Two ranks wrote the same exception into one line, piece by piece."""
ASSERT = ("assert ", "assert(")
LONGEST_MESSAGE = 4
"""Lines of an exception's message that are waited for while it goes on."""
_BOX_END = re.compile(r"\s*╰─+╯\s*$")
"""The last line of a traceback that rich drew; it is as wide as the terminal, at which rich wraps the message below."""
_OF_PYDANTIC = re.compile(r"\d+ validation errors? for \w+$")
"""A message of pydantic, whose fields and reasons stand below it."""
_OF_YAML = re.compile(r"\byaml\.\w+\.\w+Error$")
_MARK = re.compile(r"\s+in \"[^\"]+\", line \d+")
_FOUND_THERE = re.compile(r"(?:found|expected|could not|but|invalid) ")
"""The line in which PyYAML says what is wrong; above it stands where the surrounding block begins."""
_OF_GRAPH = re.compile(r"\W*(?:\d+ )?In file (?P<file>[^\s:(]+)[:(](?P<line>\d+)")
"""A line of the model's code that MindSpore names below an exception of its graph mode."""
_OF_PARSER = ("SyntaxError", "IndentationError", "TabError")
"""Their last frame is the text that was parsed; it has no function."""
_OF_IMPORTS = ("ImportError", "ModuleNotFoundError", *_OF_PARSER)
_CLEAN_UP = re.compile(
    r" in (?:__del__|_run_exitfuncs|_exitfunc|_run_finalizers|_exit_function|_python_exit|_shutdown)$|"
    r"/weakref\.py in __call__$|/atexit\.py in "
)
"""Frames of destructors, and of what runs when the interpreter ends."""
_SECTION = re.compile(r"- Dataset Pipeline Error Message:|Error details from previous import attempts:")
"""The heading of what went wrong, below an exception that does not say it: of MindSpore's data sets, of sgl_kernel."""
_RULE = re.compile(r"\W*$")
_SECTION_LEVEL = re.compile(r"^(?:\[ERROR\] |- )")
_OF_TORCH = re.compile(r"(?:^|/)torch/(?!.*/(?:site|dist)-packages/)")
"""Files of torch: what it was called with says more than the line in it that failed."""
LINKS = ("was the direct cause of the following", "another exception occurred")


@dataclass
class Trace:
    """One traceback. `type` is empty when the log ends before the exception is named."""

    first_line: int
    type: str = ""
    message: str = ""
    frames: list[tuple[str, int, str]] = field(default_factory=list)
    """(file, line, function), outermost first; only the first and the last few are kept."""
    named: str = ""
    """The exception's type, where the heading names it: IPython writes "TYPE      Traceback …"."""
    asking: list[tuple[str, int, str]] = field(default_factory=list)
    """The frames of the process that waited for the one which raised it, where Ray shows both."""
    parent: Trace | None = None
    """The exception that was being handled, or that caused this one."""
    child: Trace | None = field(default=None, repr=False, compare=False)
    """The exception that this one led to."""
    ignored: bool = False
    """Python says that it ignored it."""
    weak: bool = False
    """Logged as a warning: it was caught."""
    is_logged: bool = False
    """The line above it is an error that was logged: the program may have gone on."""
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
    code_line: str = ""
    """The line above as it stands, if it is that of code."""
    marked: str = ""
    """The part of `code` that Python 3.11 and later underline."""
    outer_code: str = ""
    """The one below the frame before: the last frame is often a library's function that does what this line asks."""
    failure_above: tuple[int, str] = (0, "")
    """Right above its heading, a line with words of failure: number and text."""
    is_announced: bool = False
    """Its line ends with the colon, below which the message stands."""
    is_composed: bool = False
    """Its message was put together from several lines."""
    lines: list[str] = field(default_factory=list)
    """The lines of the log of which its message was put together."""
    is_of_notebook: bool = False
    """Its frames are those of IPython."""
    cell: list[str] = field(default_factory=list)
    """The numbered lines of code that IPython shows below the last frame."""
    advice: str = ""
    """What the lines below its message advise."""
    end: int = 0
    """The last line that belongs to it."""
    last_frame: tuple[int, str] = (0, "")
    """The line of its innermost frame: number and text."""
    graph_place: tuple[str, int, str] | None = None
    """The line of the model's code that the lines below it name."""

    @property
    def may_go_on(self) -> bool:
        """Whether the message may continue in the next line: a finished sentence, and a KeyError's key, do not."""
        return _ENDS_SENTENCE.search(self.message) is None and not self.type.endswith("KeyError")

    @property
    def is_of_clean_up(self) -> bool:
        """Whether it was raised while an object was destroyed or the process ended: nothing failed by it."""
        return any(_CLEAN_UP.search(f"{posix(file)} in {function}") for file, _, function in self.frames)

    @property
    def is_of_start(self) -> bool:
        """Whether it was raised by an import, by the build of a package, or in Python's own library."""
        files = [file for file, _, _ in self.frames]
        is_of_library = bool(files) and is_of_standard_library(files[-1]) and files[-1][:1] != "<"
        return self.type in _OF_IMPORTS or is_of_library or any(map(is_of_build, files))

    @property
    def parents(self) -> list[Trace]:
        """The exceptions that led to this one, the last of them first."""
        found, trace = list[Trace](), self.parent
        while trace is not None:
            found.append(trace)
            trace = trace.parent
        return found

    @property
    def was_caught(self) -> bool:
        """Whether the program printed it itself, and may have gone on: an error that it logged, or an exception whose
        outermost frame is a function of its own. Of an exception that ends a program that frame is a module's code,
        of one that ends a thread or a process the library's that started it."""
        last = self
        while last.child is not None:
            last = last.child
        if any(each.is_logged for each in (last, *last.parents)):
            return True
        file, _, function = next(iter(last.asking or last.frames), ("", 0, ""))
        return bool(function) and is_own(file) and not (last.headless or function.startswith(code_of.OUTERMOST))

    @property
    def place(self) -> tuple[str, int, str] | None:
        """The line of the model that a graph names, the file that Python could not parse, the innermost frame outside
        of packages, that outside of Python's own library, or the innermost one."""
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
        """The innermost frame outside of the standard library, its path from the package on."""
        frames = [frame for frame in self.frames if not is_of_standard_library(frame[0])] or self.frames
        if not frames:
            return None
        file, line, function = frames[-1]
        return from_package_on(file), line, function

    @property
    def package(self) -> str:
        """The package of the innermost frame; empty if the frame is not in one."""
        return code_of.package_in(self.frames)

    @property
    def files(self) -> tuple[str, ...]:
        """The files of its frames, outermost first, with slashes."""
        return tuple(posix(file) for file, _, _ in self.frames)

    @property
    def package_that_failed(self) -> str:
        """The installed package, or known framework, of the innermost frame; empty if that is other code."""
        file = posix(self.frames[-1][0]) if self.frames else ""
        return self.package if is_installed(file) else code_of.framework_of(file)

    @property
    def library_alone(self) -> str:
        """The package in whose code the traceback lies as a whole; empty if a frame is other code."""
        return code_of.library_alone(self.frames)

    @staticmethod
    def package_of(frame: tuple[str, int, str]) -> str:
        """The package that a frame belongs to; empty if it is other code."""
        return code_of.package_in([frame])

    def importer_of(self, library: str) -> str:
        """The package of the innermost frame that is not in `library`; empty if that frame is in none."""
        return code_of.package_in(self.frames, library)

    @property
    def asks_for_attribute(self) -> bool:
        """Whether the innermost frame is a method by which an object says that it has no such attribute."""
        return bool(self.frames) and self.frames[-1][2] in code_of.OF_MODULES

    @property
    def is_between_model_and_transformers(self) -> bool:
        """Whether code that a model brings and the code of transformers around it do not fit: one of the two failed."""
        return code_of.is_model_code_in(self.frames) and self.package in ("", "transformers")

    @property
    def taken_from(self) -> str:
        """The expression that gave no value, or the wrong number of them, by the line of code below the last frame."""
        return code_of.taken_from(self.code, self.text, self.marked)

    @property
    def none_expression(self) -> str:
        """The expression that was None, from the line of code below the last frame; empty if it is not known."""
        if self.code.startswith(_PASSED_ON):
            # The operators of torch are called by a function that passes everything on, as those of os.path are.
            return code_of.none_in(self.outer_code, self.message)
        name = code_of.none_in(self.marked, self.message) or code_of.none_in(self.code, self.message)
        return code_of.argument_of(name, self.frames[-1][2], self.outer_code) if name and self.frames else name

    @property
    def table(self) -> str:
        """The table that lacks the key or index, from the line of code below the last frame; empty if unknown."""
        marked = code_of.looked_up_in(self.marked) if self.type.endswith(("KeyError", "IndexError")) else ""
        if self.type.endswith("IndexError"):
            return marked or code_of.indexed_in(self.code, self.message)
        return marked or (code_of.table_in(self.code, self.message) if self.type.endswith("KeyError") else "")

    def read_marks(self, line: str) -> None:
        """Take the part of the line of code above that Python underlines, if `line` has such marks."""
        code, start = self.code_line.rstrip(), len(line) - len(line.lstrip())
        if _MARKS.match(line) and start >= len(code) - len(code.lstrip()):
            self.marked = code[start : len(line.rstrip())]

    def read_above(self, above: list[str]) -> None:
        """Take the line of code above an exception without frames, if it holds what the message is about.

        Args:
            above: the last two lines above it; the lower one may be Python's marks.
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
        """Whether some frame, as "FILE in FUNCTION", or the code of the two innermost ones has one of `parts` in it.

        Without frames, the code that the message quotes counts.
        """
        passed = [f"{posix(file)} in {function}" for file, _, function in self.frames] or [self.message]
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
        of_kernel, reason = below_message.fault_of_kernel(self.message, below)
        if of_kernel:
            self.lines = [f"{self.type}: {of_kernel.partition(f' {reason}')[0]}", reason]
            self.message, self.is_composed = of_kernel, True
        elif _BOX_END.match(above):
            self._unwrap(below, len(above.rstrip()))
        elif not self.frames:
            # With a traceback `Traces` reads the lines on which the message continues.
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
            self._read_marks(below)
        if listed := code_of.listed_in(self.message, below):
            self.add(f"{self.message} {listed}", listed)
        before = list(takewhile(lambda line: not _REASON.match(line), below))
        reason = below[len(before)].strip() if len(before) < len(below) else ""
        if reason and reason not in self.message and not any(HEADER in line for line in before):
            self.add(f"{self.message.rstrip('. ')} {reason}", reason)
        places = (match for match in map(_OF_GRAPH.match, below) if match is not None)
        own = next((match for match in places if is_own(match["file"])), None)
        if own is not None and not self.type.startswith(_UNNAMED):
            self.graph_place = own["file"], int(own["line"]), ""
        section = dropwhile(lambda line: not _SECTION.match(line), below)
        said = next((line.strip() for line in islice(section, 1, None) if not _RULE.match(line)), "")
        if said:
            self.add(f"{self.message.rstrip('. ')}: {_SECTION_LEVEL.sub('', said)}", said)

    def unite(self) -> None:
        """Where two ranks wrote the same exception into one line, by pieces ("KeyErrorKeyError: : 'x'"): it is one."""
        if twice := _TWICE.fullmatch(self.type):
            self.lines, self.is_composed = [self.text], True
            self.type, self.message = twice["type"], self.message.lstrip(": ")

    def complete(self) -> None:
        """Where the log ends within the name that the message is about: take the whole name from the line of code."""
        if whole := code_of.completed(self.message, self.marked or self.code):
            self.lines, self.is_composed = [self.text], True
            self.message = whole

    def read_code(self) -> None:
        """Where the log ends before the exception, and the last line of code raises it: take its words from there."""
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
                # The log has no heading that could be quoted.
                self.last_line, shown = self.last_frame
                self.lines = [shown]
            return
        self.lines, self.is_composed, self.last_line = [self.code], True, self.end

    def add(self, message: str, line: str) -> None:
        """Take `line` of the log into the message, which becomes `message`."""
        self.lines = [*(self.lines or [self.text]), line]
        self.message, self.is_composed = message, True

    def _read_call(self, below: list[str]) -> None:
        """Add the call of CANN that failed, where the message has only its place in C++."""
        for line in below[:LONGEST_MESSAGE]:
            if not (cann_reason.is_call(line) or GOES_ON.search(self.message)):
                return
            self._read_line(line)

    def _read_line(self, line: str) -> None:
        self.add(f"{self.message.rstrip()} {line.strip()}".lstrip(), line.strip())

    def _read_marks(self, below: list[str]) -> None:
        """Add the places in a YAML file, and what was found there."""
        for line in below[:LONGEST_MESSAGE]:
            if line.strip() and line.strip() in self.message:
                continue
            if not (_MARK.match(line) or _FOUND_THERE.match(line)):
                return
            self._read_line(line)

    def _read_on(self, below: list[str]) -> None:
        """Add the lines on which a message without a traceback continues."""
        for line in below[:LONGEST_MESSAGE]:
            said = line.strip()
            begins = self.is_announced or (self.may_go_on and _CONTINUES.match(line))
            goes_on = GOES_ON.search(self.message) or (line is below[0] and begins)
            if not goes_on or not any(map(str.isalnum, said)) or frame_of(line) or HEADER in line:
                return
            self._read_line(line)

    def _unwrap(self, below: list[str], columns: int) -> None:
        """Add the lines of a message that was wrapped: those whose first word had no room on the line before."""
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
