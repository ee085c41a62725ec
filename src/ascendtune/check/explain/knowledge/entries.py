"""Known failures: one TOML file for each family beside this file, read when first needed.

An entry looks like this:

    [[entry]]
    id = "EI0006"                       # stable; people search for it
    kind = "symptom"
    anchors = ["EI0006:", "topo exchange … timeout"]   # literals, any of them; … : both on one line, in this order
    pattern = 'timeout\\[(?P<seconds>\\d+)'               # optional; must match as well
    api = "added"                        # optional, instead of a pattern: the line reports a missing name that is
                                        # added, removed, renamed or misspelt by the tables of api_change.py
    capture = 'rank\\[(?P<rank>\\d+)'    # optional; its groups can be used in `what` and `remedies`
    what = "…"                          # plain words, may use {names} of the pattern
    causes = ["…"]                      # the most likely first
    remedies = ["…"]                    # in the order of trying
    source = "https://…"
    checks = ["npu_network"]            # doctor checks of the same thing
    below = "do: "                      # optional; required in one of the next lines; the text after it can be used in
                                        # `remedies`, as {below}
    frame = ["trainer.py in evaluate"]   # optional; only for exceptions whose traceback contains one of these: parts
                                        # of "FILE in FUNCTION", or of the code of the two innermost frames
                                        # ("features["); a single one may be written without brackets
    origin = "own-package"              # optional; only for exceptions with this origin (package/origin.py): a
                                        # package lacks its own part; "own-code" (lines, too), "package-code",
                                        # "two-checkouts", "installed-copy", "model-code" (of trust_remote_code, and
                                        # transformers),
                                        # "package-alone" (all frames are in one package: no other gave it a value),
                                        # "read-by-itself" (the library reads a name of its own from an object that
                                        # lacks it),
                                        # "patch" (code of a package that replaces another's), "generated-code"
                                        # (that unsloth wrote from code of trl)
    requires = { world_size = "^1$" }    # optional; required facts of the log (facts/); may capture names
    beside = 'daemon-reload'             # optional; required in the log's first or last 128 KB; may capture names
    specific = true                      # optional; precedes general entries that match the same line
    general = true                      # optional; the line has many causes: other entries precede it, and the
                                        # headline quotes the innermost reason of the message
    by_owner = true                      # optional; the first remedy is for the user's own code, the second for code of
                                        # a package: the one for the innermost frame is shown first
    lasting = true                      # optional; counts only if repeated at the log's end: the job may recover
    waits = true                        # optional; a rank waited for others in vain: the absent ones are the cause
    echo_of = ["oom-killer"]            # optional; entries that cause this one if both are found; the echo of a notice
                                        # is not a failure; "*gpu-driver" is a group of entries
    test = "a line, or lines, as in such a log"

The Chinese sentences are in knowledge/zh/, in a file of the same name, in a table of the entry's id:

    ["EI0006"]
    what = "…"                          # in the order of the English ones; captured {names} as there
    causes = ["…"]
    remedies = ["…"]

There, too, [common] contains the common values of the file's entries, and [code] the meanings of numbers.

Messages that only a package raises are in knowledge/raised/, their Chinese sentences in knowledge/raised/zh/: they are
read only if an exception was raised (event/raised.py). A file has the name of the package's directory; messages in
general_* belong to no single package. The entries look the same; they are specific causes by default.

A file may have a table [common] with the common values of its entries; `test` may be omitted if the first anchor is a
sufficient line. A file of numbers has [codes] with their common values and [code] with `number = "meaning"`.

Kinds, from those that explain most to those that explain least:

    cause        the reason of the failure
    symptom      a wait or a break whose reason is usually elsewhere
    detail       the message of the component that failed, without a known meaning
    wrapper      a message around other errors
    unknown      a failure of which only its own message is known: such entries have advice for a class
    consequence  an echo: something else had ended before
    notice       not a failure; useful to know if there is one
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Literal, get_args

import tomli

from ascendtune.check.explain.language import say
from ascendtune.check.explain.lazy_pattern import LazyPattern
from ascendtune.check.explain.package.api_change import ApiPattern
from ascendtune.check.explain.package.origin import NAMES as NAMES_OF_ORIGIN
from ascendtune.check.explain.package.origin import Origin
from ascendtune.core import language

Kind = Literal["cause", "symptom", "detail", "wrapper", "unknown", "consequence", "notice"]
KINDS: tuple[Kind, ...] = get_args(Kind)
GAP = " … "
IMPORTER = "importer"
"""Name in any entry: the installed package whose code an exception ended."""
EXPRESSION = "expression"
"""Name in any entry: the expression that is None, or has no value, by the code of the frame that used it."""
TABLE = "table"
"""Name in any entry: the table without such a key, by the code of the frame that looked it up."""
OWNER = "owner"
"""Name in any entry: the library of the class in the message, if another package's code used it."""
OWN_CODE = "most likely your own code"
"""Value of `OWNER` for a function or class of the user's own that a package called."""
MISMATCH, FIX = "mismatch", "fix"
"""Names in any entry: the older one of the importer and the library, and the packages to install
(package_mismatch.py)."""
PLACE = "place"
"""Name in any entry: the innermost function, with its package."""
SINCE = "since"
"""Name in entries with a model type: the first release of transformers with it, if the tables have it."""
BELOW = "below"
"""Name in entries with `below`: the text after those words in their line."""
_FOLDER = files(__package__)
RAISED = "raised/"
"""Prefix of the families of messages that packages raise."""
GENERAL = f"{RAISED}general_"
"""Prefix of those that belong to no single package."""
_KERNEL_MODULE = (
    *("kernel-module-key", "kernel-module-absent", "kernel-module-of-other-kernel", "kernel-module-no-device"),
    "kernel-module-format",
)
_GROUPS = {
    "*kernel-module": _KERNEL_MODULE,
    "*gpu-driver": (
        *_KERNEL_MODULE,
        *("driver-kernel-unsupported", "driver-kernel-headers", "driver-installer-step", "driver-bar-missing"),
        *("nvrm-mismatch-versions", "gpu-held-by-other-driver", "gpu-lost", "gpu-init-failed"),
        *("nvrm-gpu-not-supported", "nvrm-legacy-gpu", "open-module-not-for-this-gpu", "open-module-without-gsp"),
    ),
}
"""Causes of many other entries: messages of the kernel or the driver's installer about a GPU explain each program
that finds no GPU; the reason for which a module is not loaded, each that finds no NPU."""
_NUMBER = "error code is "
_OF_NCCL = "NET/IB :"


@dataclass(frozen=True)
class KnownFailure:
    id: str
    kind: Kind
    what: str
    anchors: tuple[tuple[str, ...], ...]
    """Alternatives; each is a sequence of lower-case literals on one line, in this order."""
    causes: tuple[str, ...]
    remedies: tuple[str, ...]
    source: str
    test: str
    family: str
    pattern: LazyPattern | ApiPattern | None = None
    """Required in the line as well."""
    capture: LazyPattern | None = None
    """Captures names anywhere in the line; not required."""
    checks: tuple[str, ...] = ()
    frame: tuple[str, ...] = ()
    """One of these is required in a frame of the exception's traceback, as "FILE in FUNCTION", or in the code of the
    two innermost frames."""
    origin: Origin = ""
    """Required origin of the exception's traceback."""
    requires: dict[str, LazyPattern] = field(default_factory=dict)
    """Required facts of the logs, each with a pattern that one of its values must match."""
    beside: LazyPattern | None = None
    """Required in the beginning or the end of a log, as far as a scan keeps it."""
    below: str = ""
    """Required in one of the next lines."""
    echo_of: tuple[str, ...] = ()
    """Entries that are the cause if they were found as well; the echo of a notice is ignored."""

    specific: bool = False
    """Precedes general entries of its kind that match the same line."""
    general: bool = False
    """The line has many causes: its match is not certain, and any other entry of its kind precedes it."""
    by_owner: bool = False
    """The first remedy is for the user's own code, the second for code of a package."""
    lasting: bool = False
    """The line counts only if it is repeated at the end of the log."""
    waits: bool = False
    """A rank waited for other ranks in vain."""

    @property
    def captured(self) -> frozenset[str]:
        """Names that its sentences may use."""
        given = (self.pattern, self.capture, self.beside, *self.requires.values())
        named = frozenset(name for pattern in given if pattern for name in pattern.names)
        of_any = {IMPORTER, EXPRESSION, TABLE, OWNER, PLACE, MISMATCH, FIX, SINCE}
        return named | of_any | (NAMES_OF_ORIGIN if self.origin else set()) | ({BELOW} if self.below else set())

    @property
    def is_of_api(self) -> bool:
        """Whether its lines are about names that releases of a package added, removed or renamed."""
        return isinstance(self.pattern, ApiPattern)

    @property
    def is_conditional(self) -> bool:
        """Whether the entry depends on the rest of the logs."""
        return bool(self.requires or self.beside)

    @property
    def is_report(self) -> bool:
        """Whether its frames are sufficient to identify a launcher's report of a child."""
        return self.kind == "consequence" and bool(self.frame) and not self.is_conditional

    @property
    def conditions(self) -> int:
        """Number of its conditions besides the words of the line."""
        of_trace = bool(self.frame) + bool(self.origin) + (self.origin == "package-alone")
        return len(self.requires) + of_trace + bool(self.beside) + self.specific + self.is_of_api

    @property
    def weight(self) -> int:
        """Rank of its kind: 0 for a cause, higher for kinds that explain less."""
        return KINDS.index(self.kind)


@dataclass(frozen=True)
class Words:
    """Sentences of an entry in one language, with placeholders for captured {names}."""

    what: str
    causes: tuple[str, ...]
    remedies: tuple[str, ...]


def words_of(entry: KnownFailure) -> Words:
    """Sentences of an entry in the current language; in English if they are not translated."""
    if language.current() == "zh":
        translated = chinese_of_raised() if entry.family.startswith(RAISED) else chinese()
        if entry.id in translated:
            return translated[entry.id]
    # The entries of `unmatched` are not in a file; their translations are those of the report's sentences.
    return Words(say(entry.what), tuple(map(say, entry.causes)), tuple(map(say, entry.remedies)))


@cache
def chinese() -> dict[str, Words]:
    """Translated entries, by id."""
    return _translated(entries(), _FOLDER / "zh")


@cache
def chinese_of_raised() -> dict[str, Words]:
    """Translated entries for messages that packages raise, by id."""
    return _translated(raised_entries(), _FOLDER / RAISED / "zh")


@cache
def entries() -> tuple[KnownFailure, ...]:
    """All entries for lines of any kind, family by family."""
    entries = []
    for name, content in _tables(_FOLDER):
        common = content.get("common", {})
        entries += [_entry({**common, **each}, name) for each in content.get("entry", ())]
        entries += [_code(number, what, content["codes"]) for number, what in content.get("code", {}).items()]
    return tuple(entries)


@cache
def raised_entries() -> tuple[KnownFailure, ...]:
    """All entries for messages that packages raise, package by package."""
    entries = []
    for name, content in _tables(_FOLDER / RAISED):
        common = {"kind": "cause", "specific": True, **content.get("common", {})}
        entries += [_entry({**common, **each}, RAISED + name) for each in content.get("entry", ())]
    return tuple(entries)


def _translated(known: Iterable[KnownFailure], folder: Traversable) -> dict[str, Words]:
    by_id = {entry.id: entry for entry in known}
    translated = {}
    for _, content in _tables(folder):
        common = content.pop("common", {})
        numbers = {number: {"what": what} for number, what in content.pop("code", {}).items()}
        for name, own in {**content, **numbers}.items():
            entry, words = by_id[name], {**common, **own}
            causes, remedies = words.get("causes", entry.causes), words.get("remedies", entry.remedies)
            translated[name] = Words(words["what"], tuple(causes), tuple(remedies))
    return translated


def _tables(folder: Traversable) -> Iterator[tuple[str, dict[str, Any]]]:
    """The TOML files of a folder: name without suffix, and content."""
    for file in sorted(folder.iterdir(), key=lambda each: each.name):
        if file.name.endswith(".toml"):
            yield file.name.removesuffix(".toml"), tomli.loads(file.read_text(encoding="utf-8"))


def _entry(content: dict[str, Any], family: str) -> KnownFailure:
    pattern, capture, frame = content.get("pattern"), content.get("capture"), content.get("frame", ())
    return KnownFailure(
        id=content["id"],
        kind=content["kind"],
        what=content["what"],
        anchors=tuple(
            tuple(part.lower() for part in spelling.split(GAP))
            for anchor in content["anchors"]
            for spelling in _spellings(anchor)
        ),
        causes=tuple(content.get("causes", ())),
        remedies=tuple(content["remedies"]),
        source=content["source"],
        test=content.get("test", content["anchors"][0].replace(GAP, " ")),
        family=family,
        pattern=ApiPattern(content["api"]) if "api" in content else LazyPattern(pattern) if pattern else None,
        capture=LazyPattern(capture) if capture else None,
        checks=tuple(content.get("checks", ())),
        frame=(frame,) if isinstance(frame, str) else tuple(frame),
        origin=content.get("origin", ""),
        requires={name: LazyPattern(pattern) for name, pattern in content.get("requires", {}).items()},
        beside=LazyPattern(content["beside"], re.MULTILINE) if "beside" in content else None,
        below=content.get("below", ""),
        echo_of=tuple(
            each for name in content.get("echo_of", ()) for each in _GROUPS.get(name, (name,)) if each != content["id"]
        ),
        specific=content.get("specific", False),
        general=content.get("general", False),
        by_owner=content.get("by_owner", False),
        lasting=content.get("lasting", False),
        waits=content.get("waits", False),
    )


def _spellings(anchor: str) -> Iterator[str]:
    """Variants of an anchor: torch_npu, Paddle and the samples of ACL write a number in several ways; NCCL 2.22 omits a
    blank."""
    yield anchor
    if anchor.startswith(_OF_NCCL):
        yield anchor.replace(_OF_NCCL, "NET/IB:", 1)
    if anchor.startswith(_NUMBER):
        yield anchor.replace(_NUMBER, "error code:", 1)
        yield anchor.replace(_NUMBER, "error code is : ", 1)
        yield anchor.replace(_NUMBER, "errorCode = ", 1)
        yield anchor.replace(_NUMBER, "aclError:", 1)
        yield anchor.replace(_NUMBER, "aclError: ", 1)
        yield anchor.replace(_NUMBER, f"acl interface return err{GAP}retcode: ", 1)


def _code(number: str, what: str, common: dict[str, Any]) -> KnownFailure:
    """Entry for a row of a table of numbers; all but the meaning is common to the table."""
    return KnownFailure(
        id=number,
        kind=common["kind"],
        what=what,
        anchors=tuple(
            tuple(part.format(number=number).lower() for part in spelling.split(GAP))
            for anchor in common["anchors"]
            for spelling in _spellings(anchor)
        ),
        causes=(),
        remedies=tuple(common["remedies"]),
        source=common["source"],
        test=common["test"].format(number=number),
        family=common["family"],
        pattern=LazyPattern(rf"(?<!\d)(?<!\w\(){number}(?!\d)", re.IGNORECASE),
    )
