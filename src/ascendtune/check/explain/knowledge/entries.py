"""What is known about lines of logs: one TOML a family beside this file, read when first needed.

An entry looks like this:

    [[entry]]
    id = "EI0006"                       # stable; what people search for
    kind = "symptom"
    anchors = ["EI0006:", "topo exchange … timeout"]   # literals, any of them; … : both on one line, in this order
    pattern = 'timeout\\[(?P<seconds>\\d+)'               # optional; must match as well
    api = "added"                        # optional, in place of a pattern: the line says that a name is missing, which
                                        # the tables of api_change.py call added, removed, renamed or misspelt
    capture = 'rank\\[(?P<rank>\\d+)'    # optional; what it names can stand in `what` and `remedies`
    what = "…"                          # plain words, may use {names} of the pattern
    causes = ["…"]                      # the most likely first
    remedies = ["…"]                    # in the order of trying
    source = "https://…"
    checks = ["npu_network"]            # doctor checks that look at the same thing
    below = "do: "                      # optional; counts only if one of the next lines holds this; what follows it
                                        # there can stand in `remedies`, as {below}
    frame = ["trainer.py in evaluate"]   # optional; only for exceptions whose traceback passed one of these: parts of
                                        # "FILE in FUNCTION", or of the code of the two innermost frames
                                        # ("features["); a single one may stand without brackets
    origin = "own-package"              # optional; only for exceptions with this origin (package/origin.py): a
                                        # package lacks its own part; "own-code" (lines, too), "package-code",
                                        # "two-checkouts", "installed-copy", "model-code" (of trust_remote_code, and
                                        # transformers),
                                        # "package-alone" (all frames are of one package: nobody else gave it a value),
                                        # "read-by-itself" (the library reads a name of its own from an object that
                                        # lacks it),
                                        # "patch" (code that a package puts in place of another's), "generated-code"
                                        # (that unsloth wrote from code of trl)
    requires = { world_size = "^1$" }    # optional; counts only if the log's facts match (facts/); may name parts
    beside = 'daemon-reload'             # optional; counts only if the log's first or last 128 KB match; may name parts
    specific = true                      # optional; goes before general entries that know the same line
    general = true                      # optional; many causes share the line: other entries go before it, and the
                                        # headline quotes the innermost reason of the message
    by_owner = true                      # optional; the first remedy is for code of one's own, the second for that of a
                                        # package: the one that fits the innermost frame stands first
    lasting = true                      # optional; counts only if it is repeated at the log's end: the job may recover
    waits = true                        # optional; a rank waited for others in vain: the absent ones are the cause
    echo_of = ["oom-killer"]            # optional; entries that are the cause of this one where both are found; the
                                        # echo of a notice is not a failure; "*gpu-driver" stands for a group of them
    test = "a line, or lines, as such a log has it"

The sentences in Chinese stand in knowledge/zh/, in a file of the same name, in a table of the entry's id:

    ["EI0006"]
    what = "…"                          # in the order of the English ones; captured {names} as there
    causes = ["…"]
    remedies = ["…"]

There, too, [common] has what the entries of the file share, and [code] the meanings of numbers.

What packages raise, in messages that nothing else prints, stands in knowledge/raised/, its sentences in Chinese in
knowledge/raised/zh/: read only where an exception was raised (event/raised.py). A file is called as the package's
directory is; those in general_* are no package's own. The entries look the same; they are specific causes unless they
say otherwise.

A file may have a table [common] with what its entries share; `test` may be left out where the first anchor says it.
A file of numbers has [codes] with what they share and [code] with `number = "meaning"`.

Kinds, from what explains most to what explains least:

    cause        says why it failed
    symptom      somebody waited or something broke, for a reason that usually stands elsewhere
    detail       the words of the component that failed; what they mean stands nowhere here
    wrapper      a frame that prints around other errors
    unknown      something failed, and its own message is all that is known: entries give advice for a class
    consequence  an echo: it is there because something else had ended before
    notice       no failure; worth knowing where there is one
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
"""A name that every entry may use: the installed package whose code an exception ended."""
EXPRESSION = "expression"
"""Another one: what is None, or gave no value, by the code of the frame that used it."""
TABLE = "table"
"""A third: what has no such key, by the code of the frame that looked for it."""
OWNER = "owner"
"""A fourth: the library of the class that the message names, where another package's code used it."""
OWN_CODE = "most likely your own code"
"""In place of a library: a function or class of one's own, which a package called."""
MISMATCH, FIX = "mismatch", "fix"
"""Two more, of the importer and this library: which of them is older, and what to install (package_mismatch.py)."""
PLACE = "place"
"""And a fifth: the innermost function, with the package that it belongs to."""
SINCE = "since"
"""Of entries that name a model type: the first release of transformers that knows it, where the tables have it."""
BELOW = "below"
"""Of entries with `below`: what follows those words in their line."""
_FOLDER = files(__package__)
RAISED = "raised/"
"""Beginning of the families of what packages raise."""
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
"""Entries that many others are the echo of: what the kernel or the driver's installer says of a GPU explains every
program that finds no GPU; why a module is not loaded, every one that finds no NPU."""
_NUMBER = "error code is "
_OF_NCCL = "NET/IB :"


@dataclass(frozen=True)
class KnownFailure:
    id: str
    kind: Kind
    what: str
    anchors: tuple[tuple[str, ...], ...]
    """Any of them; each a sequence of lower-case literals that stand on one line in this order."""
    causes: tuple[str, ...]
    remedies: tuple[str, ...]
    source: str
    test: str
    family: str
    pattern: LazyPattern | ApiPattern | None = None
    """Has to match as well."""
    capture: LazyPattern | None = None
    """Names what it finds, anywhere in the line, if it does."""
    checks: tuple[str, ...] = ()
    frame: tuple[str, ...] = ()
    """The exception counts only if a frame of its traceback, as "FILE in FUNCTION", or the code of the two innermost
    ones holds one of these."""
    origin: Origin = ""
    """The exception counts only if its traceback has this origin."""
    requires: dict[str, LazyPattern] = field(default_factory=dict)
    """Facts of the logs, each with a pattern that one of its values matches."""
    beside: LazyPattern | None = None
    """The line counts only if the beginning or the end of a log, as far as a scan keeps it, matches this."""
    below: str = ""
    """The line counts only if one of the next ones holds this."""
    echo_of: tuple[str, ...] = ()
    """Where one of these was found as well, it is the cause, and this one the echo; of a notice, nothing at all."""

    specific: bool = False
    """Goes before general entries of its kind that know the same line."""
    general: bool = False
    """Many causes share the line: its match is not certain, and any other entry of its kind goes before it."""
    by_owner: bool = False
    """The first remedy is for code of one's own, the second for that of a package."""
    lasting: bool = False
    """The line counts only where it is repeated at the end of the log."""
    waits: bool = False
    """A rank waited for other ranks in vain."""

    @property
    def captured(self) -> frozenset[str]:
        """The names that its sentences may use."""
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
        """Whether what else the logs say decides if the entry counts."""
        return bool(self.requires or self.beside)

    @property
    def is_report(self) -> bool:
        """Whether its frames alone show that an exception is a launcher's report of a child."""
        return self.kind == "consequence" and bool(self.frame) and not self.is_conditional

    @property
    def conditions(self) -> int:
        """How many conditions it has beside the words of the line."""
        of_trace = bool(self.frame) + bool(self.origin) + (self.origin == "package-alone")
        return len(self.requires) + of_trace + bool(self.beside) + self.specific + self.is_of_api

    @property
    def weight(self) -> int:
        """How little it explains: 0 for a cause."""
        return KINDS.index(self.kind)


@dataclass(frozen=True)
class Words:
    """The sentences of an entry in one language, with {names} of what is captured."""

    what: str
    causes: tuple[str, ...]
    remedies: tuple[str, ...]


def words_of(entry: KnownFailure) -> Words:
    """The sentences of an entry in the current language; in English what is not translated."""
    if language.current() == "zh":
        translated = chinese_of_raised() if entry.family.startswith(RAISED) else chinese()
        if entry.id in translated:
            return translated[entry.id]
    # The entries of `unmatched` are not in a file; their sentences are among those of the report.
    return Words(say(entry.what), tuple(map(say, entry.causes)), tuple(map(say, entry.remedies)))


@cache
def chinese() -> dict[str, Words]:
    """The entries that are translated, by id."""
    return _translated(entries(), _FOLDER / "zh")


@cache
def chinese_of_raised() -> dict[str, Words]:
    """The same of what packages raise."""
    return _translated(raised_entries(), _FOLDER / RAISED / "zh")


@cache
def entries() -> tuple[KnownFailure, ...]:
    """Everything that is known of lines of any kind, family by family."""
    found = []
    for name, content in _tables(_FOLDER):
        common = content.get("common", {})
        found += [_entry({**common, **each}, name) for each in content.get("entry", ())]
        found += [_code(number, what, content["codes"]) for number, what in content.get("code", {}).items()]
    return tuple(found)


@cache
def raised_entries() -> tuple[KnownFailure, ...]:
    """What is known of the messages that packages raise, package by package."""
    found = []
    for name, content in _tables(_FOLDER / RAISED):
        common = {"kind": "cause", "specific": True, **content.get("common", {})}
        found += [_entry({**common, **each}, RAISED + name) for each in content.get("entry", ())]
    return tuple(found)


def _translated(known: Iterable[KnownFailure], folder: Traversable) -> dict[str, Words]:
    by_id = {entry.id: entry for entry in known}
    found = {}
    for _, content in _tables(folder):
        common = content.pop("common", {})
        numbers = {number: {"what": what} for number, what in content.pop("code", {}).items()}
        for name, own in {**content, **numbers}.items():
            entry, words = by_id[name], {**common, **own}
            causes, remedies = words.get("causes", entry.causes), words.get("remedies", entry.remedies)
            found[name] = Words(words["what"], tuple(causes), tuple(remedies))
    return found


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
    """torch_npu, Paddle and the samples of ACL write a number in several ways; NCCL 2.22 has left out a blank."""
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
    """A row of a table of numbers; everything but the meaning is common to the table."""
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
