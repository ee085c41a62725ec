"""Remedies for packages that run from a checkout: `git pull` instead of pip, whose package of that name may be another
one, and in any case is not the code that ran."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ascendtune.check.explain.language import say
from ascendtune.check.explain.package.checkout import checkouts_in
from ascendtune.check.explain.package.distributions import named_for_pip
from ascendtune.check.explain.traceback.trace import Trace

_OF_CLONE = re.compile(r" ?[(（](?:a clone:|clone：) ?`git log -1`[)）]")
_NEWEST = re.compile(r"its newest release|[它其]的?最新版本?")


def of_checkouts(remedies: Iterable[str], trace: Trace) -> tuple[str, ...]:
    """Replace pip by git in remedies for packages whose frames are in a checkout."""
    given = tuple(remedies)
    for package, root in checkouts_in(trace).items():
        given = tuple(_of_checkout(remedy, package, root) for remedy in given)
    return given


def _of_checkout(remedy: str, package: str, root: str) -> str:
    name = named_for_pip(f"pip show {package}").rpartition(" ")[2]
    either = rf"(?:{re.escape(name)}|{re.escape(package)})(?![\w.=<>\[-])"
    pulled = re.sub(rf"pip install (?:-U|--upgrade) {either}", f"git -C {root} pull", remedy)
    if pulled != remedy:
        pulled = _NEWEST.sub(say("its newest commit"), pulled)
    log = f"git -C {root} log -1"
    newest = re.sub(rf"pip index versions {either}", f"git -C {root} ls-remote origin HEAD", pulled)
    alone = re.sub(rf"pip show {either}(?=[`;:|])", log, newest)
    beside = rf"(?P<before>pip show(?: [\w.-]+)*?) {either}(?P<after>(?: [\w.-]+)*)(?=[`;|])"
    shown = re.sub(beside, lambda command: f"{command['before']}{command['after']}; {log}", alone)
    imported = rf"\$\(python -c \"import {re.escape(package)}; print\({re.escape(package)}\.__path__\[0\]\)\"\)"
    shown = re.sub(imported, root, shown)
    return _OF_CLONE.sub("", shown) if shown != remedy else remedy
