"""An event of a log: its place, its speaker, its time, and the entry that matches it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ascendtune.check.explain.facts import facts as facts_of
from ascendtune.check.explain.knowledge.entries import IMPORTER, KINDS, OWN_CODE, OWNER, KnownFailure, words_of
from ascendtune.check.explain.knowledge.matcher import Hit, filled, names_in
from ascendtune.check.explain.language import say
from ascendtune.check.explain.package.distributions import named_for_pip
from ascendtune.check.explain.traceback.cann_reason import PROCESS, TIME
from ascendtune.check.explain.traceback.trace import Trace

CODE = "python-code"
"""Family of plain mistakes in code."""
_SPECIFIC = re.compile(r"[\d\"`=:/_()\[\]{}<>]|(?<!\w)(?:'|--?)\w")
_STAMP = re.compile(rf"{PROCESS} ?(?:{TIME} ?)?|(?<=: ){TIME} ")
"""Process id and time that CANN writes between a code and its message."""
_FEW_WORDS = 8
_QUOTED = re.compile(r"`[^`]+`")
_ASSIGNED = re.compile(r"(?<=[A-Za-z_]=)\{\w+\}|(?<=--)[\w-]+[ =]\{\w+\}")
"""A name as a command's value outside of backticks; it is not removed, because the rest would not be a command."""

_INJECTS = re.compile(r"[`$;&|<>\n\"'!]|^-[^=]*=")
"""Text that would begin another command, or an option with a value, such as ssh's for a command to run."""
_REQUIREMENT = re.compile(r"[\w.-]+(?:\[[\w,-]+\])?(?:[<>=!~]=?[\w.*+]+(?:,(?=.))?)+")
"""A package with bounds: in single quotes its signs are no redirections."""

_CALLER_BESIDE = re.compile(rf"(`pip show [^`{{}}\s][^`]*?|`pip show \{{\w+\}}) \{{{IMPORTER}\}}(?=[`; ])")
"""A command that names a package and its caller, which the traceback may not show."""
_TWICE = re.compile(r"(`pip show [^`;]*?(?<![\w-])([\w-]+)) \2(?=[ `;])")
"""A command that names one package twice, as the caller and as the library."""
_BESIDE_CALLER = re.compile(rf"(`pip show )\{{{IMPORTER}\}} (?=[\w-]|\{{\w+\}})")
_UPGRADE = f"pip install -U {{{IMPORTER}}}"
_OF_CALLER = f"of {{{IMPORTER}}}"
_FUNCTION = "{function} is code of yours"
_NAMED = re.compile(rf" ?[(（]{{{IMPORTER}}}[)）]")
"""The caller's name in brackets after a description."""

_TYPE = r"(?:NoneType|None|str|dict|list|tuple|int|float|bool|ndarray|…Output|an image|图像)"
_OF_TYPES = rf"(?P<types>{_TYPE}(?:(?:, | or |、|\s?或)\s?{_TYPE})*)(?:: |：)"
"""Beginning of a clause for values of these types."""
_BETWEEN = re.compile(rf"(?P<sign>; |；)(?={_OF_TYPES.replace('?P<types>', '?:')})")
_GIVEN = ("type", "given", "found", "got")
"""Names that entries use to capture the type of a value."""


def _of_type(cause: str, names: dict[str, str]) -> str:
    """Remove the clauses of a cause that are for other types than the one in the message."""
    given = next(filter(None, map(names.get, _GIVEN)), "")
    if not given or not re.match(_OF_TYPES, cause):
        return cause
    sign = _BETWEEN.search(cause)
    clauses = _BETWEEN.sub("\n", cause).split("\n")
    kept = [each for each in clauses if (match := re.match(_OF_TYPES, each)) is None or _names_any(match[1], given)]
    return (sign["sign"] if sign else "").join(kept)


def _names_any(types: str, given: str) -> bool:
    return any(each.lstrip("…") in given for each in re.findall(_TYPE, types))


def without_stamp(text: str) -> str:
    """Remove process and time from a CANN message."""
    return _STAMP.sub("", text)


def _is_word(name: str, value: str | None, remedy: str) -> bool:
    """Whether a captured value may be inserted into the commands of a remedy."""
    if value is not None and _REQUIREMENT.fullmatch(value) and f"'{{{name}}}'" in remedy:
        return True
    if value is None or _INJECTS.search(value):
        return False
    return " " not in value or re.search(rf"[\"']\{{{name}\}}", remedy) is not None


@dataclass
class Event:
    text: str
    """The line without prefixes; shortened if it is very long."""
    source: str
    number: int
    """Line number, from 1."""
    last: int
    """Number of the line with the last repetition."""
    speaker: str
    rank: int | None
    device: int | None
    host: str | None
    time: float | None
    hit: Hit
    trace: Trace | None = None
    above: Trace | None = None
    """Exception to whose message the line may belong."""
    count: int = 1
    """Number of occurrences from the same speaker."""
    in_a_row: int = 1
    """Number of the latest occurrences with hardly any lines in between."""
    again: set[int] = field(default_factory=set)
    """Numbers of lines with repetitions, up to a limit."""
    survived: bool = False
    """Whether the job survived it."""
    next_loss: int | None = None
    """First of the last lines of the log, below it, in which the same process reports a loss."""
    is_quoted: bool = False
    """Whether the line quotes an exception: it was caught, or is only reported."""
    is_heading: bool = False
    """Whether it only announces a traceback."""
    weak: bool = False
    """Whether it was logged as a warning or information: it counts only if something else makes it likely."""
    lines: list[str] = field(default_factory=list)
    """Lines of the log from which `text` was joined, if there are several."""
    reason: str = ""
    """Reason that CANN printed below a failed call; empty if there is none."""
    place: tuple[str, int] | None = None
    """File and its line, if `source` consists of several files."""
    beside: str = ""
    """Lines elsewhere in the log with names for the entry's sentences; empty if there are none."""
    text_by_rank: dict[int, str] = field(default_factory=dict)
    """Ranks with this event, each with the beginning of its first line."""

    def is_of_process_of(self, other: Event) -> bool:
        """Whether the prefixes of both lines name the same process; torch adds its own prefix to exceptions."""
        narrow, wide = sorted((self.speaker, other.speaker), key=len, reverse=True)
        is_named = narrow == wide or (wide != "" and narrow.startswith(f"{wide} "))
        return self.source == other.source and is_named

    @property
    def entry(self) -> KnownFailure:
        """Entry that matches it."""
        return self.hit.entry

    @property
    def source_line(self) -> tuple[str, int]:
        """Log and line number; a line has an event for each entry that matches it."""
        return self.source, self.number

    @property
    def where(self) -> str:
        file, number = self.place or (self.source, self.number)
        return f"{file}:{number}"

    @property
    def quote(self) -> str:
        """Lines of the log from which `text` was joined, separated by "↵"."""
        lines = self.trace.lines if self.trace is not None else self.lines
        return " ↵ ".join(lines) if lines else self.text

    @property
    def meaning(self) -> str:
        return without_stamp(filled(words_of(self.entry).what, self.hit.names))

    @property
    def causes(self) -> tuple[str, ...]:
        causes = (_of_type(cause, self.hit.names) for cause in words_of(self.entry).causes)
        return tuple(filled(cause, self._names) for cause in causes if cause)

    @property
    def remedies(self) -> tuple[str, ...]:
        remedies = [_TWICE.sub(r"\1", named_for_pip(self._command(remedy))) for remedy in words_of(self.entry).remedies]
        if self.entry.by_owner and self._is_of_package and self.hit.names.get(OWNER) != say(OWN_CODE):
            is_for_own = self.entry.remedies[0].startswith(_FUNCTION) and self._is_function_of_package
            # In a function of a package there is nothing for the user to correct.
            remedies[:2] = remedies[1:2] if is_for_own else reversed(remedies[:2])
        return tuple(remedies)

    @property
    def _is_function_of_package(self) -> bool:
        """Whether a package's own function was called: its library is known, or its name is private."""
        function = self.hit.names.get("function", "")
        return OWNER in self.hit.names or (function.startswith("_") and not function.startswith("__"))

    @property
    def _is_of_package(self) -> bool:
        """Whether a package's code made the call; torch alone does not count, because it runs its caller's request."""
        if self.hit.names.get(IMPORTER) == "torch" and self.trace is not None:
            return bool(self.trace.importer_of("torch"))
        return IMPORTER in self.hit.names

    def _command(self, remedy: str) -> str:
        """Insert the captured values into a remedy. In commands, which people copy, names without a usable value become
        words in capitals; elsewhere they are removed."""
        names = self._names
        if IMPORTER not in self.hit.names:
            remedy = _BESIDE_CALLER.sub(r"\1", _CALLER_BESIDE.sub(r"\1", remedy))
            remedy = _NAMED.sub("", remedy)
            remedy = remedy.replace(_OF_CALLER, say("of the calling package"))
            remedy = remedy.replace(_UPGRADE, say("a newer release, or checkout (`git pull`), of the calling package"))
        unusable = {name: name.upper() for name in names_in(remedy) if not _is_word(name, names.get(name), remedy)}
        whole = remedy
        for command in (_QUOTED, _ASSIGNED) if unusable else ():
            whole = command.sub(lambda each: filled(each[0], {**names, **unusable}), whole)
        return filled(whole, names)

    @property
    def _names(self) -> dict[str, str]:
        """Captured values. A package that the traceback does not name is PACKAGE, as in other commands."""
        is_own = self.hit.names.get(OWNER) == say(OWN_CODE)
        return {IMPORTER: "PACKAGE", OWNER: "LIBRARY", **self.hit.names, **({OWNER: "LIBRARY"} if is_own else {})}

    @property
    def message(self) -> str:
        """Message of the exception, else the whole line."""
        return self.trace.message if self.trace and self.trace.message else self.text

    @property
    def is_known(self) -> bool:
        return self.entry.kind != "unknown"

    @property
    def is_cause(self) -> bool:
        """Whether it is a known cause, not general, and not only quoted."""
        return self.weight == 0 and self.is_known and not (self.entry.general or self.is_quoted)

    @property
    def is_raised(self) -> bool:
        """Whether it is an exception with a traceback."""
        return self.trace is not None and bool(self.trace.frames)

    @property
    def is_of_clean_up(self) -> bool:
        return self.trace is not None and self.trace.is_of_clean_up

    @property
    def is_cut_off(self) -> bool:
        """Whether the log ends within its traceback, after the exception that led to it."""
        return self.trace is not None and not self.trace.type and self.trace.parent is not None

    @property
    def says_little(self) -> bool:
        """Whether it is an unknown exception or a plain mistake in code: its place is more useful than its kind."""
        return self.trace is not None and (not self.is_known or self.entry.family == CODE)

    @property
    def is_vague(self) -> bool:
        """Whether its own message is short and contains no number, name or value."""
        if self.entry.kind not in ("unknown", "detail"):
            return False
        message = self.trace.message if self.trace else self.text
        return bool(message) and _SPECIFIC.search(message) is None and len(message.split()) <= _FEW_WORDS

    @property
    def weight(self) -> int:
        """Weight of its entry, 0 for a cause; an unknown exception counts like a cause."""
        if self.is_heading or self.is_cut_off:
            return len(KINDS)
        if not self.is_known and self.trace is not None and self.trace.type:
            return 0
        return self.entry.weight

    def as_json(self) -> dict[str, Any]:
        entry, trace = self.entry, self.trace
        file, number = self.place or (self.source, self.number)
        return {
            "id": entry.id,
            "kind": entry.kind,
            "what": self.meaning,
            "causes": list(self.causes),
            "remedies": list(self.remedies),
            "source_url": entry.source,
            "checks": list(entry.checks),
            "captured": dict(self.hit.names),
            "facts": {name: list(values) for name, values in facts_of.of_message(self.message).items()},
            "line": self.quote,
            "beside": self.beside,
            "file": file,
            "line_number": number,
            "rank": self.rank,
            "device": self.device,
            "count": self.count,
            "exception": {"type": trace.type, "message": trace.message, "frame": trace.place} if trace else None,
        }
