"""Facts from the output of package managers: uv's hints, packages that conda does not find, last line of a build."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ascendtune.check.explain.facts.build_output import complaint_above, complaint_in, complaint_of_cmake

_HINT = re.compile(r"(?<![^\s:>])hint: (?P<value>\S.+)")
_NOT_FOUND = re.compile(
    r"\b(?:ResolvePackageNotFound|PackagesNotFoundError|LibMambaUnsatisfiableError|SpecNotFound|UnsatisfiableError|"
    r"Encountered problems while solving|Could not solve for environment specs)\b.*"
)
_SPEC = r"[A-Za-z_][\w.-]*(?:::[\w.-]+)?(?:[ =<>!~]+[\d*][^\s,]*)*(?:=[\w.]+)*"
_ROW = re.compile(
    r"(?:\bnothing provides (?:requested )?|^[ \t]+[-└├│][-└├─│ ]*(?!nothing provides)(?:package (?=\S+ requires))?)"
    rf"(?P<spec>{_SPEC})(?=[\s,]|$)",
    re.MULTILINE,
)
_APART_ROW = re.compile(
    r"[├└][─ ]+(?P<spec>(?P<name>[A-Za-z_][\w.-]*)(?: [^\n]{0,80}?)?) *,? *"
    r"(?P<statement>is (?:requested|fixed|pinned) and can be installed|is (?:un|not )installable\b|"
    r"is installable (?:and it requires|with the potential options)|would require|"
    r"which conflicts with any installable|which can be installed)"
)
"""A row of libmamba's tree of conflicting packages."""
_ABSENT = re.compile(r"\bnothing provides\b|\bdoes not exist\b|missing on the system")
_OF_BUILD = re.compile(r" (?:\*|h[0-9a-f]{7}_\d+)$|(?<=\*)\*$")
"""End of a requirement that names any build, or one by its hash."""
_LONGEST_LIST = 4000
_BUILD_STRING = re.compile(r"^[\w.-]+=[=\w.]+=\w*h[0-9a-f]{6,}")
_PLATFORM = re.compile(
    r"\bPlatform: (?P<value>[\w-]+)|/(?:pkgs/main|conda-forge|defaults)/(?P<channel>(?:linux|osx|win)-\w+)"
)
_OUTPUT = re.compile(
    r"\[(?:\d+ lines of output|stderr|stdout)\][ \t]*\n"
    r"(?P<lines>(?:(?!.*\[end of output\]|\s*ERROR: Failed )(?:[ \t>|│].*)?\n)+)"
)
_DOCKER_BUILD = re.compile(
    r"^[ \t]*(?:Step \d+/\d+ : |#\d+ (?:\[|ERROR)|=> ERROR )|returned a non-zero code: \d|"
    r"did not complete successfully: exit",
    re.MULTILINE,
)
_HEADER = "Traceback (most recent call last)"
_OF_FRAME = re.compile(r"[ \t>|│]*(?:File(?: \"|$)|\"[^\"]+\",?(?: line \d+.*)?$|line \d+, in )")
"""A line that names a frame, or a piece of it that uv has wrapped."""
_MARKS_OR_FRAME = re.compile(rf"{_OF_FRAME.pattern}|[ \t>|│]*[~^]+[ \t]*$")
_OTHER_PYTHON = re.compile(r"(?P<version>\d[\w.]*) Requires-Python (?P<spec>[<>=!~][^;\n]*)")
_PIP_WANTS = re.compile(r"satisfies the requirement \S+?==(?P<version>[\w.]+)")
_REPOSITORY = re.compile(
    r"https://(?:huggingface\.co|hf-mirror\.com)/(?:api/)?(?:models/|datasets/)?(?P<name>[\w.-]+/[\w.-]*\w)|"
    r"Access to (?:model|dataset) (?P<restricted>[\w.-]+/[\w.-]+) is restricted"
)
_OFFERED = re.compile(
    r"satisfies the requirement (?P<package>(?!pytorch=)[\w.-]+==(?P<version>\d+(?:\.\d+)*)[^\s(;]*) "
    r"(?:\(from [^()]*\) )?\(from (?:[^()]* )?versions: (?P<offered>\d[^()]*)\)"
)
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})*")
"""Numbers of a release, of limited length: Python does not convert very long ones."""
_CONFLICT = re.compile(r"The conflict (?:is caused by|arises from):")
_WANTS = re.compile(
    r"(?:[\w.-]+(?:\[[\w,.-]+\])? [\w.+-]+ depends on|The user requested|The required version of [\w.-]+ is) [^\n;]+"
)
_REQUIRED = re.compile(
    r"(?:depends on|requested|version of) (?P<package>[\w.-]+)(?:\[[\w,.-]+\])?(?: is)? ?"
    r"(?:(?P<sign>[=<>!~]=|[<>])(?P<version>[\w.*+]+)(?P<more>[,; ].*)?)?$"
)
"""Package that a row of a conflict requires, and its first bound."""
_INDEX = re.compile(r"Looking in indexes: (?P<index>https?://(?!pypi\.org)[^\s,]+?)/?$", re.MULTILINE)
_HASH = re.compile(r"(?P<package>[\w.-]+(?:==\S+)?) from https?://\S+#sha256=\w+:\s*$", re.MULTILINE)
_BOUND = re.compile(r"[<~]|==")
_MOST_SPECS = 4


def of_packages(text: str, lower: str) -> Iterator[tuple[str, str]]:
    """Facts from the output of package managers.

    `uv_hint`; `conda_missing` with `conda_platform` and `conda_pins`; `conda_apart`: two conflicting requirements;
    `build_said`: the complaint of a build, or its last line; `docker_build`; `hub_repo`; `pip_conflict`; `pip_hash`:
    the package with another hash; `pip_index`: the only index, if it is not PyPI; `pip_python`: the Python
    that ignored versions require;
    `pip_only_newer`: a requested release with the first ones in the index, if all of them are newer.

    Args:
        lower: `text` in lower case.
    """
    if "hint: " in lower:
        for hint in _HINT.finditer(text):
            yield "uv_hint", hint["value"]
    if any(map(lower.__contains__, ("notfound", "unsatisfiableerror", "ems while solving", "not solve for env"))):
        yield from _of_conda(text)
    yield from (("build_said", said) for said in _of_build(text, lower))
    if "requires-python" in lower:
        specs = {other["version"]: other["spec"].strip() for other in _OTHER_PYTHON.finditer(text)}
        requested = _PIP_WANTS.search(text)
        if spec := specs.get(requested["version"] if requested else "", "") or next(reversed(specs.values()), ""):
            yield "pip_python", spec
    if "versions: " in lower:
        for offer in _OFFERED.finditer(text):
            if newer := _only_newer(offer["version"], offer["offered"].split(", ")):
                yield "pip_only_newer", f"{offer['package']}, {', '.join(newer[:_MOST_SPECS])}"
    if "repo" in lower or "is restricted" in lower:
        for repository in _REPOSITORY.finditer(text):
            yield "hub_repo", repository["name"] or repository["restricted"]
    if conflict := _CONFLICT.search(text):
        wants = _WANTS.finditer(text, conflict.end(), conflict.end() + _LONGEST_LIST)
        # Requirements with an upper bound or one version first: they exclude most others.
        rows = sorted((want[0].strip() for want in wants), key=lambda row: _BOUND.search(row) is None)
        yield "pip_conflict", "; ".join(_in_conflict(rows)[:_MOST_SPECS])
    if "looking in indexes: " in lower and (index := _INDEX.search(text)):
        yield "pip_index", index["index"]
    if "do not match the hashes" in lower and (broken_file := _HASH.search(text)):
        yield "pip_hash", broken_file["package"]
    if _DOCKER_BUILD.search(text):
        yield "docker_build", "yes"


def _of_build(text: str, lower: str) -> Iterator[str]:
    """The complaint of a build, or its last row."""
    if "cmake error at " in lower and (refused := complaint_of_cmake(text)):
        yield refused
        return
    outputs = list(_OUTPUT.finditer(text)) if "[end of output]" in lower or "[stderr]" in lower else []
    for output in outputs:
        rows = output["lines"].splitlines()
        if said := complaint_in(rows) or _last_words(rows):
            yield said
    if not outputs and (said := complaint_above(text)):
        # The log lacks pip's frame around the output, or its first line.
        yield said


def _in_conflict(rows: list[str]) -> list[str]:
    """Remove the rows (requirements of packages) that are satisfied by the versions that others pin."""
    required = [_REQUIRED.search(row) for row in rows]
    pins: dict[str, set[str]] = {}
    for want in filter(None, required):
        if want["sign"] == "==" and "*" not in want["version"] and not want["more"]:
            pins.setdefault(_spelt(want["package"]), set()).add(want["version"])
    kept = [
        row
        for row, want in zip(rows, required, strict=True)
        if want is None or not _admits_all(want, pins.get(_spelt(want["package"]), set()))
    ]
    return kept if len(kept) > 1 else rows


def _admits_all(want: re.Match[str], versions: set[str]) -> bool:
    """Whether a requirement without a bound, or with one lower bound, admits all of `versions`; False if empty."""
    if not versions or want["more"] or want["sign"] not in (None, ">="):
        return False
    return want["sign"] is None or all(_numbers_of(each) >= _numbers_of(want["version"]) for each in versions)


def _spelt(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _only_newer(version: str, offered: list[str]) -> list[str]:
    """The releases that are newer than `version`, if hardly another one is offered: the sources of one release before
    1.0 fit every Python (torch 0.1.2). A build or a post-release of the same numbers is not newer.
    """
    requested = _numbers_of(version)
    older = {numbers for numbers in map(_numbers_of, offered) if numbers <= requested}
    is_gap = not older or (len(older) == 1 and max(older)[0] == 0 and max(older)[:2] < requested[:2])
    return [release for release in offered if _numbers_of(release) > requested] if is_gap else []


def _numbers_of(version: str) -> tuple[int, ...]:
    match = _NUMBER.match(version)
    numbers = tuple(map(int, match[0].split("."))) if match else ()
    return (*numbers, 0, 0, 0)[:4]


def _last_words(rows: list[str]) -> str:
    """Last row of a build's output; empty if it is code in a traceback that is cut off."""
    rows = [row for row in rows if row.strip(" \t>|│")]
    header = next((index for index in reversed(range(len(rows))) if _HEADER in rows[index]), None)
    if header is not None:
        indent = _indent(rows[header])
        if not any(_indent(row) <= indent and not _OF_FRAME.match(row) for row in rows[header + 1 :]):
            return ""
    if not rows or _MARKS_OR_FRAME.match(rows[-1]):
        return ""
    is_code = len(rows) > 1 and _OF_FRAME.match(rows[-2]) is not None and _indent(rows[-1]) > _indent(rows[-2])
    return "" if is_code else rows[-1].strip(" \t>|│")


def _indent(row: str) -> int:
    return len(row) - len(row.lstrip(" \t>|│"))


def _conflicting_requirements(text: str) -> str:
    """Conflict in libmamba's tree: "A 2 requires B 1.*; B ==3 is asked for", or "…; C requires B ==3"; else empty."""
    requirements: dict[str, str] = {}
    conflicts: dict[tuple[str, str], list[str]] = {}
    holder = holder_of_others = ""
    for row in _APART_ROW.finditer(text):
        name, spec, statement = row["name"], _OF_BUILD.sub("", " ".join(row["spec"].split())), row["statement"]
        if "and can be installed" in statement:
            requirements.setdefault(name, f"{spec} is asked for")
        elif "installable" in statement and not statement.startswith("which"):
            is_refused = not statement.startswith("is installable")
            holder, holder_of_others = (spec, "") if is_refused else ("", spec)
        elif statement == "which can be installed" and holder_of_others:
            requirements.setdefault(name, f"{holder_of_others} requires {spec}")
        elif statement.startswith("which conflicts") and holder:
            conflicting = conflicts.setdefault((holder, name), [])
            if spec not in conflicting:
                conflicting.append(spec)
    # The package with the most tried versions is the relevant one: the others may only name a kind of build.
    candidates = [(len(specs), refused, name) for (refused, name), specs in conflicts.items() if name in requirements]
    if not candidates:
        return ""
    _, refused, name = max(candidates, key=lambda each: each[0])
    first, *others = conflicts[refused, name][:_MOST_SPECS]
    needs = " or ".join((first, *(each.removeprefix(f"{name} ") for each in others)))
    return f"{refused} requires {needs}; {requirements[name]}"


def _of_conda(text: str) -> Iterator[tuple[str, str]]:
    listed = _NOT_FOUND.search(text)
    if listed is None:
        return
    tree = text[listed.end() : listed.end() + _LONGEST_LIST]
    if not _ABSENT.search(tree) and (conflict := _conflicting_requirements(tree)):
        yield "conda_apart", conflict
        return
    rows = _ROW.finditer(text, listed.end(), listed.end() + _LONGEST_LIST)
    specs = list(dict.fromkeys(" ".join(row["spec"].split()) for row in rows))
    if specs:
        more = len(specs) - _MOST_SPECS
        yield "conda_missing", ", ".join(specs[:_MOST_SPECS]) + (f" (+{more})" if more > 0 else "")
    if any(map(_BUILD_STRING.match, specs)):
        yield "conda_pins", "yes"
    if platform := _PLATFORM.search(text):
        yield "conda_platform", platform["value"] or platform["channel"]
