"""Names that packages added, removed and renamed: they show which side of a failed import or call is older.

A table of a package, knowledge/api/DISTRIBUTION.toml, looks like this:

    distribution = "moon"                  # for pip; "python" for the standard library
    modules = ["moon"]                     # its top-level modules
    source = "https://…"
    names = ["moonrise"]                   # optional; names in all releases, for finding misspelt ones

    [added]                                # name -> the first release that has it; "" if unknown
    Crater = "1.2"                         # a class, function or constant, wherever in the package it is imported from
    "moon.seas.tides" = "1.3"              # a module
    "Crater(depth)" = "1.4"                # an argument of a constructor, a function, or Class.method
    "Crater.rim" = "1.5"                   # an attribute or a method
    "*Crater(depth)" = "1.6"               # for all classes with this ending
    "Crater*" = "1.7"                      # all names with this beginning, or ("*Crater") this ending

    [removed]                              # name -> the first release without it, and its successor, if any
    Lunar = { release = "2.0", now = "Crater" }
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any

import tomli

from ascendtune.check.explain.log.frame import posix
from ascendtune.check.explain.package.spelling import meant

IMPORTED = re.compile(
    r"cannot import name ['\"]?(?P<name>\w+)['\"]? from ['\"]?(?P<module>(?!partially )[\w.]+)['\"]?"
    r"(?: \((?P<file>[^()]+)\))?"
)
_MODULE = re.compile(r"No module named ['\"]?(?P<path>\w[\w.]*)(?!.*is not a package)")
_ARGUMENT = re.compile(r"(?P<function>[\w.]+)\(\) got an unexpected keyword argument '(?P<argument>\w+)'")
_OF_MODULE = re.compile(r"module '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'")
_OF_CLASS = re.compile(
    r"(?:'(?=\w+' object)|type object '(?=\w+' has))(?P<owner>\w+)'(?: object)? has no attribute '(?P<attribute>\w+)'"
)
_MEANT = re.compile(r"\bDid you mean: '(?P<now>\w+)'\?")
"""The suggestion that Python 3.10 and later append to the message."""
_INSTALLED = re.compile(r"-packages|/lib(?:64)?/python[\d.]+/\w+\.py$|/Lib/\w+\.py$")
_NAME = re.compile(r"[A-Za-z_]\w*")
_BASES = {
    "Config": ("PretrainedConfig",),
    "Tokenizer": ("PreTrainedTokenizerBase", "PreTrainedTokenizer"),
    "TokenizerFast": ("PreTrainedTokenizerBase", "PreTrainedTokenizerFast"),
    "Trainer": ("Trainer",),
    "Model": ("PreTrainedModel",),
    "LM": ("PreTrainedModel", "GenerationMixin"),
    "ForConditionalGeneration": ("PreTrainedModel", "GenerationMixin"),
    "ForSequenceClassification": ("PreTrainedModel",),
}
"""By the ending of a class's name: classes in the tables that it most likely inherits from."""
_OF_MODEL_TYPE = re.compile(r"(?P<type>[A-Z]\w*?)(?:Config|Model|For[A-Z]\w+)$")
"""A class of transformers whose name contains its model type."""
_SIGNS = re.compile(r"[-_.]")
_CONSTRUCTOR = "__init__"
_PYTHON = "python"


@dataclass(frozen=True)
class ApiChange:
    """A name that a release of a package added or removed."""

    library: str
    modules: tuple[str, ...]
    name: str
    """As in the table."""
    is_added: bool
    release: str = ""
    now: str = ""
    is_misspelt: bool = False
    """Whether no release has the name: `now` is the correct one."""
    is_overridden: bool = False
    """Whether it is an argument that the library passes to a method since `release`, and an older class overrides
    that method."""

    @property
    def kind(self) -> str:
        """ "added", "removed" or "renamed", after "python-" for names of the standard library; or "misspelt"."""
        if self.is_misspelt:
            return "misspelt"
        kind = "added" if self.is_added else "renamed" if self.now else "removed"
        return f"{_PYTHON}-{kind}" if self.library == _PYTHON else kind

    def groupdict(self) -> dict[str, str]:
        """Names that sentences may use; the same interface as a match of a regular expression."""
        bound = ">=" if self.is_added and not self.is_overridden else "<"
        unknown = self.library if self.is_added else f"{self.library}==VERSION"  # the newest release lacks it
        return {
            "library": self.library,
            "package": self.modules[0],
            "name": self.name.replace(")", "=…)"),
            "release": self.release,
            "now": self.now,
            "fitting": f"'{self.library}{bound}{self.release}'" if self.release else unknown,
        }


class ApiPattern:
    """Used like a regular expression: matches messages about names with the given `kind` of change."""

    names = frozenset(ApiChange("", ("",), "", is_added=True).groupdict())

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def search(self, text: str) -> ApiChange | None:
        change = change_in(text)
        return change if change is not None and change.kind == self._kind else None


def change_in(message: str) -> ApiChange | None:
    """Find the release with the missing name, or the name that it misspells; None if neither is known."""
    return _change_in(message) or _misspelling_in(message)


def release_of_model_type(name: str) -> str:
    """First release of transformers with classes for a model type ("qwen3_moe"); empty if unknown."""
    plain = _SIGNS.sub("", name).lower()
    releases = (
        change.release
        for change in changes()
        if change.library == "transformers"
        and change.is_added
        and change.release
        and (stem := _OF_MODEL_TYPE.match(change.name))
        and stem["type"].replace("_", "").lower() == plain
    )
    return min(releases, key=lambda release: tuple(map(int, release.split("."))), default="")


def inherited_in(message: str) -> ApiChange | None:
    """Change of a class in the tables from which the class in the message most likely inherits."""
    if argument := _ARGUMENT.search(message):
        owner, _, method = argument["function"].rpartition(".")
        member, is_overridden = f".{method}({argument['argument']})", True
    elif attribute := _OF_CLASS.search(message):
        owner, member, is_overridden = attribute["owner"], f".{attribute['attribute']}", False
    else:
        return None
    ending = max(filter(owner.endswith, _BASES), key=len, default="")
    bases = _BASES[ending] if ending and owner != ending else ()
    known = (change for base in bases for change in _changes().get(f"{base}{member}", ()) if change.release)
    inherited = next(known, None)
    return replace(inherited, name=f"{owner}{member}", is_overridden=is_overridden) if inherited is not None else None


def missing_in(message: str) -> tuple[str, str] | None:
    """(module, name) of a message about a module that lacks a name."""
    missing = IMPORTED.search(message) or _OF_MODULE.search(message)
    return (missing["module"], missing["name"]) if missing is not None else None


def _misspelling_in(message: str) -> ApiChange | None:
    """The correct name, from Python's own suggestion or from the tables."""
    missing = missing_in(message)
    if missing is not None:
        module, name = missing
        if _is_of_shadow(message):
            return None
    elif attribute := _OF_CLASS.search(message):
        module, name = attribute["owner"], attribute["attribute"]
    else:
        return None
    suggested = _MEANT.search(message)
    known = [suggested["now"]] if suggested else _names_of(module) if missing is not None else ()
    now = meant(name, known)
    return ApiChange("", (module,), name, is_added=False, now=now, is_misspelt=True) if now else None


def _names_of(module: str) -> Iterator[str]:
    """Names of the package of `module` in the tables, without removed ones."""
    root = module.partition(".")[0]
    of_package = (change for each in _changes().values() for change in each if root in change.modules)
    for change in of_package:
        name = _NAME.match(change.name if change.is_added else change.now)
        if name is not None and name[0] not in change.modules:
            yield name[0]
    for content in _tables():
        if root in content["modules"]:
            yield from content.get("names", ())


def _change_in(message: str) -> ApiChange | None:
    if (missing := missing_in(message)) is not None:
        module, name = missing
        return None if _is_of_shadow(message) else _known(f"{module}.{name}", module) or _known(name, module)
    if absent := _MODULE.search(message):
        return _known(absent["path"], absent["path"])
    if argument := _ARGUMENT.search(message):
        return _of_call(argument["function"], argument["argument"])
    if attribute := _OF_CLASS.search(message):
        return _of_class(attribute["owner"], f".{attribute['attribute']}")
    return None


def _is_of_shadow(message: str) -> bool:
    """Whether the user's own file beside the script, or an empty directory, hides the package of the same name."""
    imported = IMPORTED.search(message)
    if imported is None:
        return False
    file, module = imported["file"] or "", imported["module"]
    is_file = PurePosixPath(posix(file)).name == f"{module}.py" and not _INSTALLED.search(posix(file))
    return is_file or file == "unknown location"


def _known(name: str, module: str) -> ApiChange | None:
    """Change of the name itself, else of its longest beginning or ending in the tables."""
    root = module.partition(".")[0]
    beginnings = (f"{name[:end]}*" for end in range(len(name), 0, -1))
    spellings = (name, *(each for pair in zip(beginnings, _endings(name), strict=True) for each in pair))
    known = (change for each in spellings for change in _changes().get(each, ()) if root in change.modules)
    known_change = next(known, None)
    return replace(known_change, name=name) if known_change is not None else None


def _endings(name: str) -> Iterator[str]:
    """Patterns of all endings of a name, the longest first."""
    return (f"*{name[start:]}" for start in range(len(name)))


def _of_call(function: str, argument: str) -> ApiChange | None:
    owner = function.removesuffix(f".{_CONSTRUCTOR}")
    if owner == _CONSTRUCTOR:
        # Python before 3.10 does not name the class: the change is known if it is the same for all classes.
        return _agreed(_arguments().get(argument, ()))
    return _agreed(_changes().get(f"{owner}({argument})", ())) or _of_class(owner.rpartition(".")[2], f"({argument})")


def _of_class(owner: str, member: str) -> ApiChange | None:
    """Change of the class itself, else of the longest ending of its name in the tables."""
    names = (f"{owner}{member}", *(f"{each}{member}" for each in _endings(owner)))
    change = _agreed(next((_changes()[name] for name in names if name in _changes()), ()))
    return replace(change, name=f"{owner}{member}") if change is not None else None


def _agreed(changes: Sequence[ApiChange]) -> ApiChange | None:
    """The first change, unless the changes differ in package or kind."""
    return changes[0] if len({(change.library, change.kind) for change in changes}) == 1 else None


@cache
def _arguments() -> dict[str, list[ApiChange]]:
    """Changes of all constructors and functions, by the argument's name."""
    by_argument: dict[str, list[ApiChange]] = {}
    for name, changes in _changes().items():
        if name.endswith(")"):
            by_argument.setdefault(name[name.index("(") + 1 : -1], []).extend(changes)
    return by_argument


@cache
def _changes() -> dict[str, tuple[ApiChange, ...]]:
    """Changes by name, as in the tables."""
    by_name: dict[str, tuple[ApiChange, ...]] = {}
    for change in changes():
        by_name[change.name] = (*by_name.get(change.name, ()), change)
    return by_name


def changes() -> Iterator[ApiChange]:
    """Changes in all tables, row by row."""
    for content in _tables():
        of_library: dict[str, Any] = {"library": content["distribution"], "modules": tuple(content["modules"])}
        for name, release in content.get("added", {}).items():
            yield ApiChange(**of_library, name=name, is_added=True, release=release)
        for name, row in content.get("removed", {}).items():
            yield ApiChange(**of_library, name=name, is_added=False, release=row["release"], now=row.get("now", ""))


@cache
def is_known_module(module: str) -> bool:
    """Whether the tables contain a package with this top-level module."""
    return any(module in content["modules"] for content in _tables())


def names() -> Iterator[ApiChange]:
    """Names in all releases, as added ones without a release."""
    for content in _tables():
        for name in content.get("names", ()):
            yield ApiChange(content["distribution"], tuple(content["modules"]), name, is_added=True)


@cache
def _tables() -> tuple[dict[str, Any], ...]:
    folder = sorted((files("ascendtune.check.explain.knowledge") / "api").iterdir(), key=lambda each: each.name)
    return tuple(tomli.loads(file.read_text(encoding="utf-8")) for file in folder)
