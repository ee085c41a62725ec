"""For two packages that do not fit together: the older one, and the releases to install."""

from __future__ import annotations

import re
from dataclasses import replace

from ascendtune.check.explain.event.caller_and_library import (
    EXTENDED,
    SUBCLASSED,
    is_called_by_name,
    names_fix,
    owners_of,
    spelt,
    used_in,
)
from ascendtune.check.explain.facts.facts import Facts, versions
from ascendtune.check.explain.knowledge.entries import FIX, IMPORTER, MISMATCH, OWN_CODE, OWNER
from ascendtune.check.explain.knowledge.matcher import Hit
from ascendtune.check.explain.knowledge.paired_packages import releases_of_pair
from ascendtune.check.explain.language import say
from ascendtune.check.explain.package.api_change import ApiChange, inherited_in

_PRIVATE = re.compile(
    r"cannot import name '_[a-z]\w*'|has no attribute '_[a-z]\w*'|No module named '[\w.]*\._[a-z]\w*'"
)
"""Messages about a private name of a package."""
_FOR_OTHERS = ("torch", "torch_npu", "triton", "vllm", "vllm_ascend", "sglang")
"""Packages for which others are built: they must not be upgraded alone."""
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


def name_mismatch(hit: Hit, message: str, facts: Facts, code: str = "") -> None:
    """Add to the names of `hit` the older one of its packages, and the releases to install, if its sentences use them.

    Args:
        facts: facts of the log, with versions.
        code: line of code that made the call.
    """
    if not names_fix(hit):
        return
    importer, owner, used = hit.names.get(IMPORTER, ""), hit.names.get(OWNER, ""), used_in(hit)
    if (change := inherited_in(message)) is not None:
        # A library calls its own object with an argument that an older class does not accept.
        change = replace(change, is_overridden=True) if importer in change.modules else change
        hit.names[MISMATCH], hit.names[FIX] = _mismatch_by_tables(change), _fix_by_tables(change)
        return
    is_own = owner == say(OWN_CODE)
    owner = "" if is_own else owner
    pair = _older_and_newer(importer, owner, message, facts)
    is_of_dictionary = pair is None and bool(importer and owner) and _is_made_of_dictionary(used, code)
    is_of_other_class = is_of_dictionary and "unexpected keyword" in message
    if is_of_other_class:
        mismatch = say(
            "another class of {owner} may be the one for this model or setting, or the releases do not fit",
            owner=owner,
        )
    elif is_own or (importer and not owner and code and used and not is_called_by_name(used, code)):
        # A function of the user's, or of a package, that another package got as an argument.
        mismatch = say("its arguments are not those of the call") if "argument" in message else ""
    elif importer and not owner and _may_be_of(used, importer):
        mismatch = say("most likely both sides are {importer}'s own: a fault of this release", importer=importer)
    else:
        mismatch = _mismatch(importer, owner, message, pair)
    if mismatch and not hit.entry.origin:
        hit.names[MISMATCH] = mismatch
    if hit.entry.origin:
        hit.names[FIX] = say(_FIX_OF_MODEL_CODE)
    elif is_of_other_class and (module := _module_of(used, owner)):
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
    """Phrase on the older one of the two packages; empty if nothing shows that they do not fit together."""
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
        return say("a fault of this {importer}, or a library of another release than it needs", importer=importer)
    is_name = "unexpected keyword" in message
    return (
        say("it is misspelt, or the installed release is another one than the code was written for") if is_name else ""
    )


def _fix(importer: str, owner: str, used: str, pair: tuple[str, str] | None, attribute: str) -> str:
    """Remedy: the releases of both packages to install.

    Args:
        used: function or class that was used.
        pair: the older and the newer package, if known.
        attribute: attribute that an object of the class `used` lacks; empty if the message is about a call.
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
            "`grep -rn '{kind} {used}' $(python -c \"import {importer}; print({importer}.__path__[0])\")`: found: a "
            "fault of {importer} itself in this case: another release (`pip index versions {importer}`); not found: a "
            "function or class of yours that {importer} was given: give it the arguments of the call; else the package "
            "that {used} is of, in the release that {importer} names (`pip check`)",
            importer=importer,
            kind="class" if used[:1].isupper() else "def",
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
    if pair is not None and spelt(pair[0]) not in _FOR_OTHERS:
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
    """The older and the newer package; None if neither the log's versions nor the kind of error show it."""
    if not (importer and owner):
        return None
    if releases_of_pair(importer, owner) is not None:
        # Both number their releases alike.
        releases = [_release(versions(facts, name)) for name in (importer, owner)]
        if all(releases) and releases[0] != releases[1]:
            return (importer, owner) if releases[0] < releases[1] else (owner, importer)
    is_overridden = spelt(owner) in SUBCLASSED.get(spelt(importer), ()) or EXTENDED.get(spelt(owner)) == importer
    if "required" in message:
        # A library adds arguments; if the method overrides one of the caller's, either side may have changed.
        return None if is_overridden else (importer, owner)
    if _is_private(message) and spelt(owner) not in _FOR_OTHERS:
        # Private names change without notice; the caller was written when the name existed.
        return importer, owner
    return (owner, importer) if is_overridden else None


def _is_private(message: str) -> bool:
    return _PRIVATE.search(message) is not None


def _release(named: tuple[str, ...]) -> tuple[int, ...]:
    """Major, minor and patch of the only version in the log; empty if there is none, or several."""
    numbers = [
        tuple(map(int, match[0].split("."))) for each in named if (match := re.match(r"\d{1,4}(\.\d{1,4}){2}", each))
    ]
    return numbers[0] if len(set(numbers)) == 1 else ()


def _is_made_of_dictionary(used: str, code: str) -> bool:
    """Whether the line creates an object of the class `used` from a dictionary: Tide(**settings)."""
    owner_class, _, method = used.partition(".")
    return method == "__init__" and re.search(rf"\b{re.escape(owner_class)}\(.*\*\*\w", code) is not None


def _module_of(used: str, library: str) -> str:
    return next((owner.modules[0] for owner in owners_of(used) if owner.library == library and owner.modules), "")


def _may_be_of(name: str, package: str) -> bool:
    """Whether the tables have a class with this name in the package."""
    return any(package in owner.modules for owner in owners_of(name))
