"""An event of a log: its place, its speaker, its time, and what is known about it."""

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
"""The family of plain mistakes."""
_SPECIFIC = re.compile(r"[\d\"`=:/_()\[\]{}<>]|(?<!\w)(?:'|--?)\w")
_STAMP = re.compile(rf"{PROCESS} ?(?:{TIME} ?)?|(?<=: ){TIME} ")
"""The process id and time that CANN writes between a code and its message."""
_FEW_WORDS = 8
_QUOTED = re.compile(r"`[^`]+`")
_ASSIGNED = re.compile(r"(?<=[A-Za-z_]=)\{\w+\}|(?<=--)[\w-]+[ =]\{\w+\}")
"""A name that is a command's value, outside of such quotes: it is not left out, for what remains is not a command."""

_INJECTS = re.compile(r"[`$;&|<>\n\"'!]|^-[^=]*=")
"""Text that would begin another command, or is an option with a value, as ssh's for a command that it runs."""

_CALLER_BESIDE = re.compile(rf"(`pip show [^`{{}}\s][^`]*?|`pip show \{{\w+\}}) \{{{IMPORTER}\}}(?=[`; ])")
"""In a command that names another package besides the one that calls it, which a traceback may not tell."""
_TWICE = re.compile(r"(`pip show [^`;]*?(?<![\w-])([\w-]+)) \2(?=[ `;])")
"""A command that names one package twice, once as the caller and once as the library."""
_BESIDE_CALLER = re.compile(rf"(`pip show )\{{{IMPORTER}\}} (?=[\w-]|\{{\w+\}})")
_UPGRADE = f"pip install -U {{{IMPORTER}}}"
_OF_CALLER = f"of {{{IMPORTER}}}"
_FUNCTION = "{function} is code of yours"
_NAMED = re.compile(rf" ?[(（]{{{IMPORTER}}}[)）]")
"""The caller's name beside the words for it."""

_TYPE = r"(?:NoneType|None|str|dict|list|tuple|int|float|bool|ndarray|…Output|an image|图像)"
_OF_TYPES = rf"(?P<types>{_TYPE}(?:(?:, | or |、|\s?或)\s?{_TYPE})*)(?:: |：)"
"""The beginning of a clause that holds for values of these types."""
_BETWEEN = re.compile(rf"(?P<sign>; |；)(?={_OF_TYPES.replace('?P<types>', '?:')})")
_GIVEN = ("type", "given", "found", "got")
"""Names under which entries capture the type of a value."""


def _of_type(cause: str, names: dict[str, str]) -> str:
    """A cause without its clauses for values of other types than those that the message names."""
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
    """A message of CANN without its process and time."""
    return _STAMP.sub("", text)


def _is_word(name: str, value: str | None, remedy: str) -> bool:
    """Whether a captured value may stand in the commands of a remedy."""
    if value is None or _INJECTS.search(value):
        return False
    return " " not in value or re.search(rf"[\"']\{{{name}\}}", remedy) is not None


@dataclass
class Event:
    text: str
    """The line without what launchers put before it, cut where it is very long."""
    source: str
    number: int
    """Line number, from 1."""
    last: int
    """Where the same was said last."""
    speaker: str
    rank: int | None
    device: int | None
    host: str | None
    time: float | None
    hit: Hit
    trace: Trace | None = None
    above: Trace | None = None
    """The exception to whose message the line may belong."""
    count: int = 1
    """How often the same was said by the same speaker,"""
    in_a_row: int = 1
    """and how often of late, with hardly anything in between."""
    again: set[int] = field(default_factory=set)
    """The lines, at most a few, in which it was said again."""
    survived: bool = False
    """The log went on for long without any trouble."""
    next_loss: int | None = None
    """The first line below it, among the last of the log, in which the same process reports a loss."""
    is_quoted: bool = False
    """The words of an exception in another line: it was caught, or is only reported."""
    is_heading: bool = False
    """Says only that a traceback follows."""
    weak: bool = False
    """Said as a warning or as news: believed only where something else makes it likely."""
    lines: list[str] = field(default_factory=list)
    """The lines of the log that `text` was put together from, where they are several."""
    reason: str = ""
    """The reason that CANN printed below a failed call; empty if there is none."""
    place: tuple[str, int] | None = None
    """The file and the line in it, where `source` is made of several files."""
    beside: str = ""
    """The lines elsewhere in the log from which the sentences of the entry take names; empty if there are none."""
    said_by: dict[int, str] = field(default_factory=dict)
    """The ranks that said the same, each with its first words."""

    def is_of_process_of(self, other: Event) -> bool:
        """Whether the prefixes of both lines name the same process; torch adds a prefix of its own to exceptions."""
        narrow, wide = sorted((self.speaker, other.speaker), key=len, reverse=True)
        is_named = narrow == wide or (wide != "" and narrow.startswith(f"{wide} "))
        return self.source == other.source and is_named

    @property
    def entry(self) -> KnownFailure:
        """What is known of it."""
        return self.hit.entry

    @property
    def source_line(self) -> tuple[str, int]:
        """The log and the number of its line; of a line with several readings each is an event."""
        return self.source, self.number

    @property
    def where(self) -> str:
        file, number = self.place or (self.source, self.number)
        return f"{file}:{number}"

    @property
    def quote(self) -> str:
        """The lines of the log that `text` was made of, joined by a sign for the line end."""
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
            # Of a function of a package there is nothing of one's own to correct.
            remedies[:2] = remedies[1:2] if is_for_own else reversed(remedies[:2])
        return tuple(remedies)

    @property
    def _is_function_of_package(self) -> bool:
        """Whether a package's own function was called: a library is known, or a module keeps the name to itself."""
        function = self.hit.names.get("function", "")
        return OWNER in self.hit.names or (function.startswith("_") and not function.startswith("__"))

    @property
    def _is_of_package(self) -> bool:
        """Whether a package's code made the call: torch only ran what its caller asked for."""
        if self.hit.names.get(IMPORTER) == "torch" and self.trace is not None:
            return bool(self.trace.importer_of("torch"))
        return IMPORTER in self.hit.names

    def _command(self, remedy: str) -> str:
        """A remedy with its values. In commands, which people copy, what was not captured stands in capitals, and what
        would be read as more than one word of the command; elsewhere what was not captured is left out."""
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
        """The captured values. A package that the traceback does not name is called PACKAGE, as in other commands."""
        is_own = self.hit.names.get(OWNER) == say(OWN_CODE)
        return {IMPORTER: "PACKAGE", OWNER: "LIBRARY", **self.hit.names, **({OWNER: "LIBRARY"} if is_own else {})}

    @property
    def message(self) -> str:
        """The exception's message, else the whole line."""
        return self.trace.message if self.trace and self.trace.message else self.text

    @property
    def is_known(self) -> bool:
        return self.entry.kind != "unknown"

    @property
    def is_cause(self) -> bool:
        """Known for what it is, in a line that does not only quote it."""
        return self.weight == 0 and self.is_known and not (self.entry.general or self.is_quoted)

    @property
    def is_raised(self) -> bool:
        """An exception that ended a traceback: the log does not show that it was caught."""
        return self.trace is not None and bool(self.trace.frames)

    @property
    def is_of_clean_up(self) -> bool:
        return self.trace is not None and self.trace.is_of_clean_up

    @property
    def is_cut_off(self) -> bool:
        """The log ends before the exception that another one, which it names, led to."""
        return self.trace is not None and not self.trace.type and self.trace.parent is not None

    @property
    def says_little(self) -> bool:
        """An exception whose place says more than its kind: unknown, or a plain mistake of some code."""
        return self.trace is not None and (not self.is_known or self.entry.family == CODE)

    @property
    def is_vague(self) -> bool:
        """In words of its own that name nothing: no number, no name, no value."""
        if self.entry.kind not in ("unknown", "detail"):
            return False
        said = self.trace.message if self.trace else self.text
        return bool(said) and _SPECIFIC.search(said) is None and len(said.split()) <= _FEW_WORDS

    @property
    def weight(self) -> int:
        """How little it explains; an unknown exception as much as a cause."""
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
