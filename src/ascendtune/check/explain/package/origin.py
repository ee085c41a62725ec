"""Origin of the code of a failed import or call: the user's own code, an installed package, a package that lacks a
part of itself, or another copy of the script's project."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, get_args

from ascendtune.check.explain.language import say
from ascendtune.check.explain.log.frame import from_package_on, is_of_build, is_of_standard_library, is_own, posix
from ascendtune.check.explain.package.api_change import IMPORTED, change_in, is_known_module
from ascendtune.check.explain.package.checkout import INSTALLED, SOURCES, checkouts_in, root_of
from ascendtune.check.explain.package.distributions import named_for_pip
from ascendtune.check.explain.package.patches import patch_in
from ascendtune.check.explain.traceback.trace import ASSERT, Trace

Origin = Literal[
    "", "own-code", "package-code", "own-package", "two-checkouts", "installed-copy", "model-code", "patch",
    "generated-code", "own-folder", "package-alone", "read-by-itself",
]  # fmt: skip
ORIGINS: tuple[Origin, ...] = get_args(Origin)
NAMES = frozenset({"package", "missing", "file", "folder", "checkout", "copy"})
"""Names that the sentences of an entry with an origin may use.

    package, missing   the package that lacks a name or module, and that name or module; for a patch the package that
                       contains it, and the patched one
    file, folder       the file of a package that imports it, and the directory of that package
    folder             of the user's own directory that hides a package: its path
    checkout, copy     the directory of the script's project, and of the copy that Python imports
"""
_MISSING = re.compile(
    rf"{IMPORTED.pattern}|"
    r"No module named ['\"]?(?P<missing>\w+\.[\w.]+)(?!.*is not a package)|"
    r"module '(?P<owner>[\w.]+)' has no attribute '(?P<attribute>\w+)'"
)
_GENERATED = re.compile(r".*/?unsloth_compiled_cache/(?P<file>\w+\.py)$")
"""Code that a package generated from other packages, for the releases that were installed then."""
_CALLER_AND_CALLED = 2
"""Fewest frames of a package if it called itself."""
_RAISES = re.compile(r"(?:^|: )raise ")
FAULTS_OF_CODE = (
    *("AssertionError", "AttributeError", "IndexError", "KeyError", "NameError"),
    *("StopIteration", "TypeError", "UnboundLocalError", "ZeroDivisionError"),
)
"""Exceptions of code that did not expect a value, if it does not raise them itself."""
_LEAST_TELLING = 5
"""Fewest words of a message that is more useful than the place of its exception."""
_NO_FILES = ("<stdin>", "<string>", "<unknown>", "<module>")
"""Python's names for code that is not in a file."""
_ASSERTED = (
    "{package} asserts this of what it is called with: print these values where you call it; they are what its "
    "documentation asks for: `pip show {package}`, and search its issues for '{type} {function}'"
)
_OF_LIBRARY = (
    "no line of this traceback is your own code: {package} failed with what it was given by its options and data, "
    "at {file}:{line}: `pip show {package}` (a clone: `git log -1`), then search its issues for '{type} {function}'; "
    "print the values of that line; a newer release or commit, or the option that leads there off"
)
_OF_CHECKOUT = (
    "`git -C {root} status --short; git -C {root} log -1`: {shown} is listed, or the project is yours: print the "
    "values of line {line} there; not listed: {package} failed with what its options and data gave it: search its "
    "issues for '{type} {function}', then `git -C {root} pull`, or the option that leads there off"
)
_RELEASE = re.compile(r"[-_](?:main|master|dev(?:elop)?|v?\d[\w.]*)$")
"""Suffix that a GitHub archive adds to the directory's name."""
_ANYBODYS = re.compile(
    r"apps?|build|codes?|data|datasets?|documents|desktop|downloads|eval|evaluate|git|github|home|"
    r"inference|lib|lib64|mnt|models?|opt|projects?|python|repos?|root|shared?|src|tmp|users?|usr|work|workdir|workspaces?",
    re.IGNORECASE,
)
"""Names of directories that do not identify a project."""
_HOMES = ("home", "Users", "users")


def names_of(origin: Origin, message: str, trace: Trace | None) -> dict[str, str] | None:
    """Values for `NAMES`, read from the traceback; None if the exception has another origin.

    Args:
        message: the exception's type and message.
        trace: None if the line is not an exception.
    """
    if origin in ("", "own-code"):
        return {} if not origin or trace is None or not trace.package else None
    if origin == "model-code":
        return {} if trace is not None and trace.is_between_model_and_transformers else None
    if origin == "patch":
        return patch_in(message, trace) if trace is not None else None
    if origin == "generated-code":
        return _generated_code(trace) if trace is not None and trace.frames else None
    if origin == "package-code":
        return _package_code(trace) if trace is not None and trace.frames else None
    if origin == "package-alone":
        return _package_alone(trace) if trace is not None and trace.frames else None
    if origin == "read-by-itself":
        return {} if trace is not None and is_read_by_itself(message, trace) else None
    missing = _MISSING.search(message)
    if trace is None or missing is None or not trace.frames:
        return None
    module = missing["module"] or missing["missing"] or missing["owner"]
    package, file = module.partition(".")[0], posix(missing["file"] or "")
    if origin == "own-package":
        names = _own_package(package, file, trace)
    elif origin == "own-folder":
        names = _own_folder(package, file, trace) if module == package else None
    else:
        names = _copy(package, file, trace, is_installed=origin == "installed-copy")
    lacking = missing["name"] or missing["missing"] or missing["attribute"]
    return names and {"package": package, "missing": lacking, **names}


def is_read_by_itself(message: str, trace: Trace) -> bool:
    """Whether the library that added a name reads it itself from an object without it: the object's class belongs to
    another package, because no library uses a name that only its next release has."""
    if not trace.frames or trace.asks_for_attribute or "' object has no attribute" not in message:
        return False
    change = change_in(message)
    if change is None or not (change.is_added and change.release):
        return False
    return trace.package in change.modules


def advice_on_frames(trace: Trace) -> tuple[str, ...]:
    """Advice on the place to look at, and on an installed package that failed in its own code without `raise`.

    Empty if all frames are outside of files, in the standard library, or in the build of a package.
    """
    file, line, _ = trace.place or ("", 0, "")
    if not file or file in _NO_FILES or is_of_standard_library(file) or is_of_build(file):
        return ()
    if not (trace.type or is_own(file)):
        # Without the exception a package's code is not informative.
        return ()
    package = trace.package_that_failed
    # In a package that raised an error on purpose the line is not to be corrected.
    is_to_look_at = is_own(file) or not (trace.type and package)
    look = (say("look at {file}:{line}", file=file, line=line),) if is_to_look_at else ()
    if library := _library_that_failed(trace):
        return (asked_of_library(trace, library),)
    if not package or trace.type not in FAULTS_OF_CODE or not trace.code or trace.code.startswith("raise"):
        return look
    if trace.code.startswith(ASSERT):
        return (*look, say(_ASSERTED, package=package, type=trace.type, function=trace.frames[-1][2]))
    return (
        *look,
        say(
            "{package} failed in its own code and refused nothing: `pip show {package}`, and search its issues for "
            "'{type} {function}': a defect that another release does not have, or a value that it does not expect",
            package=package,
            type=trace.type,
            function=trace.frames[-1][2],
        ),
    )


def asked_of_library(trace: Trace, library: str) -> str:
    """Remedy for a package that contains the whole traceback."""
    file, line, _ = trace.place or ("", 0, "")
    function, shown = trace.frames[-1][2], from_package_on(file)
    if of_checkout := in_checkout(trace, library, (shown, line, function)):
        return of_checkout
    return named_for_pip(say(_OF_LIBRARY, package=library, function=function, file=shown, line=line, type=trace.type))


def in_checkout(trace: Trace, library: str, place: tuple[str, int, str]) -> str:
    """Remedy for a library that failed at `place` (file, line, function) in a checkout: its own code, or that of the
    user, who may have changed it; empty if pip installed it.
    """
    file, line, function = place
    root = checkouts_in(trace).get(library, "")
    shown = posix(file).removeprefix(f"{root}/")
    if not root or shown == posix(file):
        return ""
    names = {"root": root, "shown": shown, "package": library, "type": trace.type, "function": function}
    return say(_OF_CHECKOUT, line=line, **names)


def advises_search(trace: Trace) -> bool:
    """Whether `advice_on_frames` names a search in the issues of a package."""
    is_fault = trace.type in FAULTS_OF_CODE and trace.code and not trace.code.startswith("raise")
    return bool(_library_that_failed(trace) or (trace.package_that_failed and is_fault))


def _library_that_failed(trace: Trace) -> str:
    """Package that contains the whole traceback, unless it raised an error with its own message."""
    says_itself = trace.type not in FAULTS_OF_CODE and len(trace.message.split()) >= _LEAST_TELLING
    return trace.library_alone if trace.type and not (says_itself or _RAISES.search(trace.code)) else ""


def _package_code(trace: Trace) -> dict[str, str] | None:
    """Installed package whose code raised the exception."""
    file, line, _ = trace.frames[-1]
    installed = INSTALLED.match(posix(file))
    if installed is None:
        return None
    package, folder = installed["package"], installed["folder"]
    return {"package": package, "folder": folder, "file": f"{posix(file)[len(folder) - len(package) :]}:{line}"}


def _package_alone(trace: Trace) -> dict[str, str] | None:
    """Package that called itself: it alone has frames, several of them, besides Python's."""
    package = trace.library_alone
    of_package = [frame for frame in trace.frames if trace.package_of(frame) == package]
    others = {trace.package_of(frame) for frame in trace.frames} - {package, "torch", ""}
    if not package or trace.headless or others or len(of_package) < _CALLER_AND_CALLED:
        return None
    return _package_code(trace)


def _generated_code(trace: Trace) -> dict[str, str] | None:
    """Generated file whose code failed, unless it raised an error itself."""
    file, line, _ = trace.frames[-1]
    generated = _GENERATED.match(posix(file))
    return {"file": f"{generated['file']}:{line}"} if generated and not _RAISES.search(trace.code) else None


def _own_package(package: str, file: str, trace: Trace) -> dict[str, str] | None:
    """Installed package whose own code imports a part that it lacks."""
    importer = posix(trace.frames[-1][0])
    installed = INSTALLED.match(importer)
    if installed is None or installed["package"] != package or (file and not file.startswith(installed["folder"])):
        return None
    return {"file": importer[len(installed["folder"]) - len(package) :], "folder": installed["folder"]}


def _own_folder(package: str, file: str, trace: Trace) -> dict[str, str] | None:
    """The user's own directory with the name of a known package, imported instead of it: it is beside the script, or a
    part of a package in the traceback."""
    if not file or INSTALLED.match(file) or not is_known_module(package):
        return None
    hiding = file.removesuffix("/__init__.py")
    parent, _, name = hiding.rpartition("/")
    files = [posix(each) for each, _, _ in trace.frames]
    is_checkout = parent.rpartition("/")[2] in SOURCES or _spelt(parent.rpartition("/")[2]) == _spelt(package)
    is_beside = files[0].rpartition("/")[0] == parent and not is_checkout
    is_part = f"{parent}/__init__.py" in files
    return {"folder": hiding} if name == package and (is_beside or is_part) else None


def _copy(package: str, file: str, trace: Trace, *, is_installed: bool) -> dict[str, str] | None:
    """Project of the script, and the copy of it that Python imports."""
    files = [posix(each) for each, _, _ in trace.frames]
    imported = next(filter(None, (root_of(each, package) for each in [*([file] if file else files[:0:-1])])), "")
    is_of_pip = INSTALLED.match(f"{imported}/") is not None
    if not imported or is_of_pip != is_installed:
        return None
    name = imported.rpartition("/")[2]
    for folder in _folders(files[0]):
        *_, above, own = ("", *folder.split("/"))
        is_project = (own == name and not is_of_pip) or _spelt(_RELEASE.sub("", own)) == _spelt(package)
        is_anybodys = _ANYBODYS.fullmatch(own) or above in _HOMES
        is_apart = not f"{imported}/".startswith(f"{folder}/") and not folder.startswith(f"{imported}/")
        if is_project and not is_anybodys and is_apart:
            return {"checkout": folder, "copy": imported}
    return None


def _folders(file: str) -> Iterator[str]:
    """Directories above a file of the user's own, the innermost first."""
    folder = file.rpartition("/")[0] if "-packages/" not in file and file[:1] != "<" else ""
    while folder.strip("/"):
        yield folder
        folder = folder.rpartition("/")[0]


def _spelt(name: str) -> str:
    return re.sub(r"[-_.]", "", name).lower()
