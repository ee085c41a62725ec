"""Remedies for packages that run from a checkout: `git pull` instead of pip, whose package of that name may be another
one, and in any case is not the code that ran."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ascendtune.check.explain.language import say
from ascendtune.check.explain.log.frame import is_own, posix
from ascendtune.check.explain.package.distributions import named_for_pip
from ascendtune.check.explain.package.origin import root_of
from ascendtune.check.explain.traceback.trace import Trace

_PLAIN = re.compile(r"(?:~|[A-Za-z]:)?/[\w./+-]+")
"""A path that a shell reads as one word."""
_OF_IMAGE = re.compile(r"/(?:vllm|sgl|verl)-?workspace/")
"""Checkouts in an image with several matching ones: none must be upgraded alone."""
_IS_HOME = re.compile(r"/(?:home|Users|root|data|mnt|workspace)(?:/[^/]+)?")
"""Rest of an anonymised path, or a directory with several projects."""
_OF_CLONE = re.compile(r" ?[(（](?:a clone:|clone：) ?`git log -1`[)）]")
_NEWEST = re.compile(r"its newest release|[它其]的?最新版本?")


def of_checkouts(remedies: Iterable[str], trace: Trace) -> tuple[str, ...]:
    """Replace pip by git in remedies for packages whose frames are in a checkout."""
    given = tuple(remedies)
    for package, root in checkouts_in(trace).items():
        given = tuple(_of_checkout(remedy, package, root) for remedy in given)
    return given


def checkouts_in(trace: Trace) -> dict[str, str]:
    """Packages in the frames that were not installed by pip, each with the directory of its checkout."""
    checkouts = {}
    for frame in trace.frames:
        file, package = posix(frame[0]), trace.package_of(frame)
        root = root_of(file, package) if package and is_own(file) else ""
        if _PLAIN.fullmatch(root) and not (_OF_IMAGE.match(f"{root}/") or _is_shared(root, package)):
            checkouts[package] = root
    return checkouts


def _is_shared(root: str, package: str) -> bool:
    """Whether a directory contains several projects, or the path was anonymised above the package."""
    return _IS_HOME.fullmatch(root) is not None and package[:3].lower() not in root.lower()


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
    return _OF_CLONE.sub("", shown) if shown != remedy else remedy
