"""Who called whom: the package whose code an exception ended, the library of what it used, which of the two is older,
and what to install."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain

from ascendtune.check.explain.facts.facts import Facts, versions
from ascendtune.check.explain.knowledge.entries import FIX, IMPORTER, MISMATCH, OWN_CODE, OWNER
from ascendtune.check.explain.knowledge.matcher import Hit
from ascendtune.check.explain.knowledge.paired_packages import releases_of_pair
from ascendtune.check.explain.language import say
from ascendtune.check.explain.log.frame import is_own
from ascendtune.check.explain.package.api_change import ApiChange, changes, inherited_in, names
from ascendtune.check.explain.traceback.trace import Trace

_CLASS = re.compile(r"[A-Z]\w+(?=[(.]|$)")
_OF_MODELS = re.compile(r"(?:Model|For[A-Z]\w+|Attention|MLP|Layer|Norm|Embedding)$")
"""Classes that servers and trainers write anew under the same name: only the frames tell whose it is."""
_OF_VLLM_ASCEND = re.compile(r"(?:Ascend|NPU)[A-Z_]\w+")
_BESIDE = re.compile(rf"`pip show \{{{IMPORTER}\}} ([\w-]+)")
"""In a remedy: the package that is named besides the one whose code an exception ended."""
_MUCH = 3
_EXTENDED = {
    "vllm_ascend": "vllm",
    "torch_npu": "torch",
    "mindspeed": "megatron-core",
    "mindspeed_llm": "megatron-core",
}
"""Packages that put themselves in place of parts of another one, of which they are made for one release."""
_SUBCLASSED = {
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
"""Names by which code calls a library's functions."""
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
_HANDED_ON = re.compile(r"\*\*\w")
"""In a line of code: a call with arguments that the calling function was given itself."""
_PRIVATE = re.compile(
    r"cannot import name '_[a-z]\w*'|has no attribute '_[a-z]\w*'|No module named '[\w.]*\._[a-z]\w*'"
)
"""Messages about a name that its package calls private."""
_FOR_OTHERS = ("torch", "torch_npu", "triton", "vllm", "vllm_ascend", "sglang")
"""Packages that others are built for: never to be upgraded alone."""


_FIX_OF_MODEL_CODE = (
    "`pip show transformers; grep transformers_version config.json`: install the version that the model was published "
    "with: pip install 'transformers==VERSION' (transformers 5, and a model of the time of 4: pip install "
    "'transformers<5'), or fetch the newest revision of the model's files"
)


_FIX_OF_CLASS = (
    '`pip show {importer} {owner}; grep -rnw {argument} $(python -c "import {module}; print({module}.__path__[0])") | '
    "head -5`: found: another class of {owner} takes it: {importer} chose the wrong one: a newer release or commit of "
    "{importer}; not found: the {owner} that the requirements of {importer} name: pip install '{owner}==VERSION'"
)


@dataclass(frozen=True)
class _Owner:
    """A library with the modules that it brings."""

    library: str
    modules: tuple[str, ...]


def caller_and_library_of(hit: Hit, trace: Trace) -> tuple[str, str]:
    """The package whose code an exception ended, and the library of what it used, where the entry speaks of it; empty
    if unknown."""
    if (library := hit.names.get("module", "").partition(".")[0]) and _names_fix(hit):
        return trace.importer_of(library), library
    importer = trace.importer_of(hit.names.get("package", "") if hit.entry.is_of_api else "")
    if importer and any(importer in _BESIDE.findall(remedy) for remedy in hit.entry.remedies):
        # The sentences name it besides its caller.
        importer = trace.importer_of(importer)
    used = _used_in(hit)
    if not used or f"{{{OWNER}}}" not in hit.entry.what:
        return importer, ""
    owner = library_of(used, importer, trace.files, trace.code)
    if owner or not importer or "function" not in hit.names:
        return importer, owner
    if "argument" in hit.names and (_is_of(used, importer) or _hands_on(trace, importer)):
        # The package only handed on what its own caller gave it.
        return trace.importer_of(importer), importer
    if used.partition(".")[0] in _owners():
        return importer, ""
    # A package calls back what its own caller has given it.
    callers = (name for name in _SUBCLASSED.get(importer, ()) if any(f"/{name}/" in file for file in trace.files))
    return importer, next(callers, say(OWN_CODE) if is_own(trace.files[0]) else "")


def _hands_on(trace: Trace, package: str) -> bool:
    return f"/{package}/" in trace.files[-1] and _HANDED_ON.search(trace.code) is not None


def _is_of(name: str, package: str) -> bool:
    """Whether the tables have the class of this package, and of no other."""
    return {module for owner in _owners().get(name.partition(".")[0], ()) for module in owner.modules} == {package}


def _is_made_of_dictionary(used: str, code: str) -> bool:
    """Whether the line makes an object of the class `used` from a dictionary: Tide(**settings)."""
    owner_class, _, method = used.partition(".")
    return method == "__init__" and re.search(rf"\b{re.escape(owner_class)}\(.*\*\*\w", code) is not None


def _module_of(used: str, library: str) -> str:
    owners = _owners().get(used.partition(".")[0], Counter())
    return next((owner.modules[0] for owner in owners if owner.library == library and owner.modules), "")


def _may_be_of(name: str, package: str) -> bool:
    """Whether the tables have a class of this name in the package."""
    return any(package in owner.modules for owner in _owners().get(name.partition(".")[0], ()))


def _names_fix(hit: Hit) -> bool:
    return any(f"{{{FIX}}}" in remedy for remedy in hit.entry.remedies)


def _used_in(hit: Hit) -> str:
    """The function or class that the message names."""
    return hit.names.get("function") or hit.names.get("object", "")


def library_of(name: str, importer: str, files: Sequence[str], code: str = "") -> str:
    """The distribution of a class, function or method that code of another package used; empty if unknown.

    Args:
        importer: the package whose code used it; empty for code of one's own.
        files: those of the traceback; of several libraries with such a class the one that has one of them.
        code: the line that used it.
    """
    owner_class, _, method = name.partition(".")
    if _OF_VLLM_ASCEND.fullmatch(owner_class) and (importer == "vllm" or any("/vllm/" in file for file in files)):
        return "" if importer == "vllm_ascend" else "vllm-ascend"
    if importer in _EXTENDED:
        return _EXTENDED[importer]
    if not method and (called := re.search(rf"(?<![\w.])(\w+)\.(?:\w+\.)*{re.escape(name)}\(", code)):
        library = _MODULES.get(called[1], "")
        return library if library != importer else ""
    owners = _owners().get(owner_class, Counter())
    passed = [owner for owner in owners if any(f"/{module}/" in file for module in owner.modules for file in files)]
    ranked = passed or [owner for owner, _ in owners.most_common()]
    is_telling = not (_OF_MODELS.search(owner_class) or _is_word(owner_class, owners))
    is_known = len(passed) == 1 or (not passed and is_telling and _stands_out(owners))
    return ranked[0].library if ranked and is_known and importer not in ranked[0].modules else ""


def _is_word(name: str, owners: Counter[_Owner]) -> bool:
    """Whether a class is called by one common word (Layout, Image), as those of any package may be; only where no frame
    is in a library does one of the few that trainings are made of count for such a name."""
    return _ONE_WORD.fullmatch(name) is not None and not any(owner.library in _OF_TRAININGS for owner in owners)


def _stands_out(owners: Counter[_Owner]) -> bool:
    """Whether one library has many more names of the class than any other that has a class of that name."""
    first, second = ([*sorted(owners.values(), reverse=True), 0, 0])[:2]
    return first > _MUCH * second


@cache
def _owners() -> dict[str, Counter[_Owner]]:
    """By class: the libraries that have one of this name, each with its rows in the tables."""
    found: dict[str, Counter[_Owner]] = {}
    for change in chain(changes(), names()):
        if match := _CLASS.match(change.name):
            found.setdefault(match[0], Counter())[_Owner(change.library, change.modules)] += 1
    return found


def name_mismatch(hit: Hit, message: str, facts: Facts, code: str = "") -> None:
    """Add to the names of `hit` which of its two packages is older, and what to install, where its sentences say so.

    Args:
        facts: what the log says of versions.
        code: the line of code that made the call.
    """
    if _names_fix(hit):
        importer, owner = hit.names.get(IMPORTER, ""), hit.names.get(OWNER, "")
        is_own = owner == say(OWN_CODE)
        owner = "" if is_own else owner
        used = _used_in(hit)
        change = inherited_in(message)
        if change is not None and importer in change.modules:
            # What a library asks of an object of its own, an older class does not give.
            change = replace(change, is_overridden=True)
        pair = _older_and_newer(importer, owner, message, facts)
        mismatch = _mismatch_by_tables(change) if change else _mismatch(importer, owner, message, pair)
        if is_own and change is None:
            mismatch = say("its arguments are not those of the call") if "argument" in message else ""
        is_of_dictionary = change is None and pair is None and bool(importer) and _is_made_of_dictionary(used, code)
        if is_of_dictionary and owner and "unexpected keyword" in message:
            mismatch = say(
                "another class of {owner} may be the one for this model or setting, or the releases do not fit",
                owner=owner,
            )
        elif change is None and importer and not owner and not is_own and _may_be_of(used, importer):
            mismatch = say("most likely both sides are {importer}'s own: a fault of this release", importer=importer)
        if mismatch and not (hit.entry.origin and change is None):
            hit.names[MISMATCH] = mismatch
        if change is not None:
            hit.names[FIX] = _fix_by_tables(change)
        elif hit.entry.origin:
            hit.names[FIX] = say(_FIX_OF_MODEL_CODE)
        elif is_of_dictionary and owner and (module := _module_of(used, owner)) and "unexpected keyword" in message:
            hit.names[FIX] = say(
                _FIX_OF_CLASS, importer=importer, owner=owner, module=module, argument=hit.names["argument"]
            )
        else:
            hit.names[FIX] = _fix(importer, owner, used, pair, hit.names.get("attribute", ""))


def _mismatch_by_tables(change: ApiChange) -> str:
    library, release = change.library, change.release
    if change.is_overridden and change.is_added:
        return say("{library} asks for it since {release}: the class is older", library=library, release=release)
    if change.is_added:
        return say("{library} has it since {release}: the installed one is older", library=library, release=release)
    return say(
        "{library} removed it in {release}: the code that asks for it is older", library=library, release=release
    )


def _fix_by_tables(change: ApiChange) -> str:
    fitting = change.groupdict()["fitting"]
    if change.is_added and not change.is_overridden:
        return say("`pip show {library}`: pip install -U {fitting}", library=change.library, fitting=fitting)
    return say(
        "`pip show {library}`: pip install {fitting}; or the newest release of the package, or revision of the model's "
        "files, that the older code belongs to",
        library=change.library,
        fitting=fitting,
    )


def _mismatch(importer: str, owner: str, message: str, pair: tuple[str, str] | None) -> str:
    """Which of the two packages is older, as a phrase; empty where nothing says that they do not fit."""
    if pair == (importer, owner) and _is_private(message):
        return say(
            "it is a private name, which a later {newer} most likely dropped: {older} is older",
            older=importer,
            newer=owner,
        )
    if pair is not None:
        return say("{older} is older than {newer}", older=pair[0], newer=pair[1])
    if importer and owner:
        return say("the two are of releases that do not fit each other")
    if "cannot import name" in message:
        return say("another release of it is installed than was meant, or another copy of it is found first")
    if "argument" not in message:
        return ""
    if importer:
        return say("the caller and the library are of releases that do not fit each other")
    is_name = "unexpected keyword" in message
    return (
        say("it is misspelt, or the installed release is another one than the code was written for") if is_name else ""
    )


def _fix(importer: str, owner: str, used: str, pair: tuple[str, str] | None, attribute: str) -> str:
    """What to install, so that both packages go together.

    Args:
        used: the function or class that was used.
        pair: the older and the newer package, where that is known.
        attribute: what an object of the class `used` lacks; empty if the message is about a call.
    """
    if not importer:
        return say("a package makes the call: install what its requirements name (`pip check`)")
    if not owner and attribute and used[:1].isupper():
        return say(
            "`grep -rnE 'class {used}|self.{attribute} =' $(python -c \"import {importer}; "
            'print({importer}.__path__[0])")`: both found: a method that sets it was not called before: call it; the '
            "class alone: a fault of {importer} itself: another release (`pip index versions {importer}`); no such "
            "class: the package that {used} is of, in the release that {importer} names (`pip check`)",
            importer=importer,
            used=used,
            attribute=attribute,
        )
    if not owner:
        return say(
            "`grep -rn 'class {used}' $(python -c \"import {importer}; print({importer}.__path__[0])\")`: found: a "
            "fault of {importer} itself in this case: another release (`pip index versions {importer}`); not found: "
            "the package that {used} is of, in the release that {importer} names (`pip check`)",
            importer=importer,
            used=used.partition(".")[0],
        )
    if (releases := releases_of_pair(importer, owner)) is not None:
        return say(
            "`pip show {importer} {owner}`: install both in releases that go together ({list}), in one command: "
            "pip install {owner}==VERSION {importer}==VERSION",
            importer=importer,
            owner=owner,
            list=releases,
        )
    if pair is not None and _spelt(pair[0]) not in _FOR_OTHERS:
        return say(
            "`pip show {importer} {owner}`: pip install -U {older}; its newest release fails alike: the {newer} that "
            "its requirements name: pip install '{newer}==VERSION'",
            importer=importer,
            owner=owner,
            older=pair[0],
            newer=pair[1],
        )
    return say(
        "`pip show {importer} {owner}`: install the {owner} that the requirements of {importer} name: pip install "
        "'{owner}==VERSION'; {owner} has to stay: the release of {importer} that is made for it",
        importer=importer,
        owner=owner,
    )


def _older_and_newer(importer: str, owner: str, message: str, facts: Facts) -> tuple[str, str] | None:
    """The older and the newer package; None where neither the log's versions nor the kind of error tell."""
    if not (importer and owner):
        return None
    if releases_of_pair(importer, owner) is not None:
        # Both count their releases alike.
        releases = [_release(versions(facts, name)) for name in (importer, owner)]
        if all(releases) and releases[0] != releases[1]:
            return (importer, owner) if releases[0] < releases[1] else (owner, importer)
    is_overridden = _spelt(owner) in _SUBCLASSED.get(_spelt(importer), ()) or _EXTENDED.get(_spelt(owner)) == importer
    if "required" in message:
        # A library adds arguments; of a method that overrides one of the caller's, either side may have changed.
        return None if is_overridden else (importer, owner)
    if _is_private(message) and _spelt(owner) not in _FOR_OTHERS:
        # What a library keeps to itself changes without notice; its caller was made when it was there.
        return importer, owner
    return (owner, importer) if is_overridden else None


def _is_private(message: str) -> bool:
    return _PRIVATE.search(message) is not None


def _release(named: tuple[str, ...]) -> tuple[int, ...]:
    """Major, minor and patch of the one version that the log names; empty if it names none or several."""
    numbers = [
        tuple(map(int, found[0].split("."))) for each in named if (found := re.match(r"\d{1,4}(\.\d{1,4}){2}", each))
    ]
    return numbers[0] if len(set(numbers)) == 1 else ()


def _spelt(name: str) -> str:
    return name.lower().replace("-", "_")
