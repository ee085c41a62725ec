"""Caller and library: the package whose code an exception ended, and the library of the function or class it used."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

from ascendtune.check.explain.knowledge.entries import FIX, IMPORTER, OWN_CODE, OWNER
from ascendtune.check.explain.knowledge.matcher import Hit
from ascendtune.check.explain.language import say
from ascendtune.check.explain.log.frame import is_own
from ascendtune.check.explain.package.api_change import changes, names
from ascendtune.check.explain.package.distributions import named_in
from ascendtune.check.explain.traceback.trace import Trace

_CLASS = re.compile(r"[A-Z]\w+(?=[(.]|$)")
_OF_MODELS = re.compile(r"(?:Model|For[A-Z]\w+|Attention|MLP|Layer|Norm|Embedding)$")
"""Classes that servers and trainers reimplement under the same name: only the frames identify the library."""
_OF_VLLM_ASCEND = re.compile(r"(?:Ascend|NPU)[A-Z_]\w+")
_BESIDE = re.compile(rf"`pip show \{{{IMPORTER}\}} ([\w-]+)")
"""In a remedy: the package that is named in addition to the caller."""
_MUCH = 3
EXTENDED = {
    "vllm_ascend": "vllm",
    "torch_npu": "torch",
    "mindspeed": "megatron-core",
    "mindspeed_llm": "megatron-core",
}
"""Packages that replace parts of another one, and are made for one release of it."""
SUBCLASSED = {
    "transformers": ("trl", "ms_swift", "swift", "llamafactory", "unsloth", "optimum", "sentence_transformers"),
    "trl": ("ms_swift", "swift", "llamafactory", "unsloth"),
    "vllm": ("verl", "openrlhf", "vllm_omni"),
}
"""Packages, each with others that override its methods."""
_MODULES = {
    "torch": "torch",
    "nn": "torch",
    "F": "torch",
    "np": "numpy",
    "numpy": "numpy",
    "transformers": "transformers",
}
"""Names of modules in code, with their libraries."""
_ONE_WORD = re.compile(r"[A-Z][a-z]+\d*")
_OF_TRAININGS = (
    "transformers",
    "accelerate",
    "datasets",
    "peft",
    "trl",
    "tokenizers",
    "torch",
    "deepspeed",
    "diffusers",
)
_ARGUMENT = re.compile(
    r"fn|f|func|function|hook|wrapped|(?:\w+_)?(?:callback|collator|fn|func|function|init|metrics?|hook|rewards?|loss|collate|lambda)"
)
"""Usual names of arguments that hold a function of the caller's, which may have the same name."""
_HANDED_ON = re.compile(r"\*\*\w")
"""In a line of code: a call that passes on the arguments of the calling function."""


@dataclass(frozen=True)
class _Owner:
    """A library with its modules."""

    library: str
    modules: tuple[str, ...]


def caller_and_library_of(hit: Hit, trace: Trace) -> tuple[str, str]:
    """Package whose code an exception ended, and library of the function or class that it used, if the entry names it;
    empty if unknown."""
    if (library := hit.names.get("module", "").partition(".")[0]) and names_fix(hit):
        return trace.importer_of(library), library
    importer = trace.importer_of(hit.names.get("package", "") if hit.entry.is_of_api else "")
    if importer and any(importer in _BESIDE.findall(remedy) for remedy in hit.entry.remedies):
        # The sentences name it in addition to its caller.
        importer = trace.importer_of(importer)
    used = used_in(hit)
    if not used or f"{{{OWNER}}}" not in hit.entry.what:
        return importer, ""
    owner = library_of(used, importer, trace.files, trace.code)
    if owner or not importer or "function" not in hit.names:
        return importer, owner
    if "argument" in hit.names and (_is_of(used, importer) or _hands_on(trace, importer)):
        # The package only passed on the arguments of its own caller.
        return trace.importer_of(importer), importer
    if owners_of(used):
        return importer, ""
    if (named := named_in(used)) and named != importer:
        return importer, named
    if is_called_by_name(used, trace.code):
        return importer, ""
    # A package calls back a function of its own caller.
    callers = (name for name in SUBCLASSED.get(importer, ()) if any(f"/{name}/" in file for file in trace.files))
    return importer, next(callers, say(OWN_CODE) if _begins_in_own_code(trace) else "")


def _begins_in_own_code(trace: Trace) -> bool:
    return is_own(trace.files[0]) and not trace.package_of(trace.frames[0])


def is_called_by_name(used: str, code: str) -> bool:
    """Whether a package called a function or class by the name under which its own module defines or imports it: it is
    not a function of the user's, which a package calls by an argument or an attribute."""
    name = used.removesuffix(".__init__")
    if "." in name or _ARGUMENT.fullmatch(name):
        return False
    is_private = re.fullmatch(r"_(?!_)\w+", name) is not None and f".{name}(" not in code
    return is_private or re.search(rf"(?<![\w.])(?!(?:self|cls)\.)(?:\w+\.)*{re.escape(name)}\(", code) is not None


def _hands_on(trace: Trace, package: str) -> bool:
    return f"/{package}/" in trace.files[-1] and _HANDED_ON.search(trace.code) is not None


def _is_of(name: str, package: str) -> bool:
    """Whether the tables have the class for this package, and for no other."""
    return {module for owner in owners_of(name) for module in owner.modules} == {package}


def names_fix(hit: Hit) -> bool:
    return any(f"{{{FIX}}}" in remedy for remedy in hit.entry.remedies)


def used_in(hit: Hit) -> str:
    """Function or class in the message."""
    return hit.names.get("function") or hit.names.get("object", "")


def library_of(name: str, importer: str, files: Sequence[str], code: str = "") -> str:
    """Distribution of a class, function or method that code of another package used; empty if unknown.

    Args:
        importer: package whose code used it; empty for the user's own code.
        files: files of the traceback, which decide between several libraries with such a class.
        code: line of code that used it.
    """
    owner_class, _, method = name.partition(".")
    if _OF_VLLM_ASCEND.fullmatch(owner_class) and (importer == "vllm" or any("/vllm/" in file for file in files)):
        return "" if importer == "vllm_ascend" else "vllm-ascend"
    if importer in EXTENDED:
        return EXTENDED[importer]
    if not method and (called := re.search(rf"(?<![\w.])(\w+)\.(?:\w+\.)*{re.escape(name)}\(", code)):
        library = _MODULES.get(called[1], "")
        return library if library != importer else ""
    owners = owners_of(name)
    passed = [owner for owner in owners if any(f"/{module}/" in file for module in owner.modules for file in files)]
    ranked = passed or [owner for owner, _ in owners.most_common()]
    is_telling = not (_OF_MODELS.search(owner_class) or _is_word(owner_class, owners))
    is_known = len(passed) == 1 or (not passed and is_telling and _stands_out(owners))
    return ranked[0].library if ranked and is_known and importer not in ranked[0].modules else ""


def _is_word(name: str, owners: Counter[_Owner]) -> bool:
    """Whether a class is named by one common word (Layout, Image), which any package may use; False if a library that
    is usual in training has it."""
    return _ONE_WORD.fullmatch(name) is not None and not any(owner.library in _OF_TRAININGS for owner in owners)


def _stands_out(owners: Counter[_Owner]) -> bool:
    """Whether one library has many more rows for the class than any other library with such a class."""
    first, second = ([*sorted(owners.values(), reverse=True), 0, 0])[:2]
    return first > _MUCH * second


def owners_of(name: str) -> Counter[_Owner]:
    """Libraries with a class of this name, or with the class of this method, and their rows in the tables."""
    return _owners().get(name.partition(".")[0], Counter())


@cache
def _owners() -> dict[str, Counter[_Owner]]:
    owners: dict[str, Counter[_Owner]] = {}
    for change in chain(changes(), names()):
        if match := _CLASS.match(change.name):
            owners.setdefault(match[0], Counter())[_Owner(change.library, change.modules)] += 1
    return owners


def spelt(name: str) -> str:
    return name.lower().replace("-", "_")
