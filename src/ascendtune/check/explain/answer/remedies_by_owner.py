"""Adapts the remedies of general entries to the owner of the failed code: the user, or a library.

An entry for a message of torch or Python does not know the owner of the code that raised it. Advice for the user's own
code (change the line) does not help if the line belongs to a library.
"""

from __future__ import annotations

import re

from ascendtune.check.explain.answer.applicable_remedies import clauses_of, without_clauses
from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.knowledge.entries import GENERAL, IMPORTER, RAISED, KnownFailure
from ascendtune.check.explain.language import say
from ascendtune.check.explain.log.frame import from_package_on
from ascendtune.check.explain.package.distributions import named_for_pip
from ascendtune.check.explain.package.origin import asked_of_library, in_checkout
from ascendtune.check.explain.traceback.trace import Trace

_FAMILIES = (
    *("python-code", "tensors", "models", "raised/torch", "raised/general_tensors", "raised/general_torch"),
    *("raised/general_python_code", "raised/general_models"),
)
"""Families of messages that any code may raise. Messages of other families belong to the package that raised them: its
caller, with the invalid arguments, is above its frames."""
_OF_ONES_OWN = re.compile(
    r"(?:[Ii]n )?(?:code of your own|(?:your )?own code)(?: at the frame shown)?:|自己的代码[：:]"
)
"""Beginning of a clause for the user's own code."""
_FOR_ONES_OWN = re.compile(
    r"(?:in )?(?:(?:the )?(?:call at the )?(?:frame shown(?: is)?,? ))?"
    r"(?:(?:your )?own code|your code(?=:)|code of (?:yours|your own|one's own))\b|"
    r"(?:(?:所示|显示的)栈帧(?:的调用)?)?是?你?自己的代码(?!里没有)"
)
"""Beginning of a remedy for the user's own code."""
_FUNCTION_OF_ONES_OWN = re.compile(r"[\w.<>]+ is (?:code of )?yours\b|[\w.<>]+ 是(?:你)?自己的代码")
"""Beginning of a clause for the user's own function, which a library calls."""
_IN_THE_CODE = re.compile(r"\bthe frame shown\b|one line above|栈帧|上面一行|上一行")
"""Words of a remedy that looks at, or changes, the failed line."""
_NO_MORE_THAN_LOOK = re.compile(r"(?:look at the frame shown|查?看\w*栈帧)[^:;：；]*")
_COMMAND = re.compile(r"`(?:env|grep|echo|ls|cat|file|pip|python)\b")
"""A command that shows the origin of a value. Such a remedy helps with code of any owner."""
_NAMES_PLACE = re.compile(r"\{(?:importer|owner|package|place|file)\}")
_CALLED = (
    "{package} failed in its own code ({file}:{line} in {function}): print what the frame shown gives to it; that is "
    "as its documentation asks: `pip show {package}`, and search its issues for '{type} {function}': a newer release"
)


def for_owner(remedies: tuple[str, ...], event: Event) -> tuple[str, ...]:
    """Adapt the remedies of an event's entry to the owner of the failed code; unchanged for the user's own code."""
    trace, entry = event.trace, event.entry
    library = library_that_failed(trace) if trace is not None else ""
    if trace is None or not library:
        return remedies
    is_alone = trace.library_alone != "" and not trace.headless
    of_ones_own = [_OF_ONES_OWN] if is_alone or entry.family in _FAMILIES else []
    of_ones_own += [_FUNCTION_OF_ONES_OWN] if is_alone else []
    kept = without_clauses(remedies, *of_ones_own)
    if not entry.by_owner and (not entry.family.startswith(RAISED) or entry.family.startswith(GENERAL)):
        # A package's own message is about what its caller gave it; any other is about the code that failed.
        kept.sort(key=lambda remedy: _FOR_ONES_OWN.match(remedy) is not None)
    if not is_of_line(entry):
        return tuple(kept) or remedies
    of_library = asked_of_library(trace, trace.library_alone) if trace.library_alone else _of_called(trace, library)
    only_looks = not kept or (_IN_THE_CODE.search(kept[0]) and not _COMMAND.search(kept[0]))
    if is_alone and kept and _NO_MORE_THAN_LOOK.fullmatch(kept[0]):
        # The remedy for the library already names the place.
        kept = kept[1:]
    return (of_library, *kept) if only_looks else (*kept, of_library)


def library_that_failed(trace: Trace) -> str:
    """Package of the innermost frame outside of torch; empty if that is the user's own code, or there is none."""
    return trace.importer_of("torch") if trace.frames else ""


def is_of_line(entry: KnownFailure) -> bool:
    """Whether the remedies of an entry depend on the owner of the failed line.

    They do if the entry matches only the message, and advises to look at that line or to change it. A remedy that
    names a setting or the package is valid for any owner.
    """
    is_general = entry.family in _FAMILIES and not (
        entry.frame or entry.origin or entry.is_conditional or entry.by_owner
    )
    speaks_of_owner = any(f"{{{IMPORTER}}}" in sentence for sentence in entry.remedies)
    clauses = [clause.strip() for remedy in entry.remedies for clause in clauses_of(remedy)]
    is_about_line = any(_IN_THE_CODE.search(each) or _OF_ONES_OWN.match(each) for each in clauses)
    return is_general and is_about_line and not speaks_of_owner


def place_in_library(event: Event) -> str:
    """Place in a library that raised a general message, for the headline; empty for the user's own code, and if the
    sentence names the place."""
    trace, entry = event.trace, event.entry
    library = library_that_failed(trace) if trace is not None else ""
    if trace is None or not library or not is_of_line(entry) or _NAMES_PLACE.search(entry.what):
        return ""
    _, _, function = _innermost_in(trace, library)
    return say(" (in {function} of {package})", function=function, package=library) if function.isidentifier() else ""


def _of_called(trace: Trace, library: str) -> str:
    """Remedy for a library that failed when the user's own code called it."""
    file, line, function = _innermost_in(trace, library)
    shown = from_package_on(file)
    if of_checkout := in_checkout(trace, library, (shown, line, function)):
        return of_checkout
    words = say(_CALLED, package=library, file=shown, line=line, function=function, type=trace.type)
    return named_for_pip(words)


def _innermost_in(trace: Trace, library: str) -> tuple[str, int, str]:
    """Innermost frame (file, line, function) in the code of `library`."""
    frames = (frame for frame in reversed(trace.frames) if trace.package_of(frame) == library)
    return next(frames, trace.frames[-1])
