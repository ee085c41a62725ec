"""Installed packages: versions that ascendtune supports, and combinations known to fail."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from ascendtune.check.doctor.cann import loaded_toolkit
from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok, unknown, warning
from ascendtune.machine.compatibility import release_key

_BOUND = re.compile(r"(>=|<=|==|!=|<|>)\s*([\w.]+)")


def is_within(version: str, bounds: str) -> bool:
    """Whether `version` ("2.6.0+cpu") satisfies `bounds` (">=2.6,<2.14"); local version parts are ignored."""
    have = release_key(version.partition("+")[0])
    answers = {
        ">=": lambda want: have >= want,
        "<=": lambda want: have <= want,
        "==": lambda want: have == want,
        "!=": lambda want: have != want,
        "<": lambda want: have < want,
        ">": lambda want: have > want,
    }
    return all(answers[sign](release_key(want)) for sign, want in _BOUND.findall(bounds))


PACKAGES = "packages"

_NUMPY_2_FROM_CANN = "9.0.0"
"""The release notes of CANN 9.0.0 list numpy 2 as supported; earlier releases were built for numpy 1."""


def _look_at_packages(outside: Outside) -> Iterator[Finding]:
    try:
        wanted = _ranges(requires("ascendtune") or [])
    except PackageNotFoundError:
        yield unknown(PACKAGES, say("ascendtune is not installed as a package, so its version ranges are unknown"))
        return
    found = [*_outside_of_range(outside, wanted), *_numpy(outside)]
    yield from found
    if not found:
        versions = {name: outside.package(name) for name in ("torch", "transformers", "peft", "numpy")}
        said = ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items())
        yield ok(PACKAGES, said)


def _ranges(requirements: list[str]) -> dict[str, str]:
    """Name -> ">=2.6,<2.14", for the base install and the extras for training."""
    found = {}
    for line in requirements:
        name, _, marker = line.partition(";")
        if "extra" in marker and not re.search(r"extra == ['\"](train|npu|cuda|deepspeed)['\"]", marker):
            continue
        if parts := re.match(r"\s*([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*\(?([^)]*)", name):
            found[parts[1].lower()] = parts[2].strip()
    return found


def _outside_of_range(outside: Outside, wanted: dict[str, str]) -> Iterator[Finding]:
    for name, bounds in wanted.items():
        version = outside.package(name)
        if version is not None and not is_within(version, bounds):
            yield warning(
                PACKAGES,
                say("{name} {version} is outside of the range that ascendtune supports", name=name, version=version),
                expected=f"{name} {bounds}",
                remedy=say("pip install '{name}{value}'", name=name, value=bounds.replace(" ", "")),
            )


def _numpy(outside: Outside) -> Iterator[Finding]:
    numpy, kit = outside.package("numpy"), loaded_toolkit(outside)
    if numpy is None or kit is None or kit.version is None or release_key(numpy) < release_key("2"):
        return
    if release_key(kit.version) < release_key(_NUMPY_2_FROM_CANN):
        yield warning(
            PACKAGES,
            say(
                "numpy {numpy} with CANN {version}: before {numpy_2_from_cann} its Python code needs numpy 1",
                numpy=numpy,
                version=kit.version,
                numpy_2_from_cann=_NUMPY_2_FROM_CANN,
            ),
            expected=say("numpy 1.26"),
            remedy=say("pip install 'numpy==1.26.4'"),
            evidence=("CANN 9.0.0 release notes; torch_npu's pip instructions pin numpy 1.26.2 for Python 3.11",),
        )


PACKAGES_CHECK = Check(
    PACKAGES,
    what="Compares installed packages with the ranges that ascendtune declares, and numpy with the loaded CANN.",
    why="Installing another tool may silently change a package that ascendtune depends on. numpy 2 breaks the Python "
    "code of CANN releases before 9.0.0, in operators that are compiled at run time.",
    fix="Install the version in the remedy, preferably in a separate environment (python -m venv).",
    look=_look_at_packages,
)


COMBINATIONS = "combinations"


@dataclass(frozen=True)
class Combination:
    """`when`: package -> affected range. `use`: the requirement that avoids the problem."""

    when: dict[str, str]
    breaks: str
    use: str
    source: str


@cache
def known() -> tuple[Combination, ...]:
    text = Path(__file__).with_name("combinations.toml").read_text(encoding="utf-8")
    return tuple(Combination(**each) for each in tomllib.loads(text)["combination"])


def _look_at_combinations(outside: Outside) -> Iterator[Finding]:
    broken = [each for each in known() if _applies(outside, each)]
    for each in broken:
        pair = " with ".join(f"{name} {outside.package(name)}" for name in each.when)
        yield warning(
            COMBINATIONS,
            f"{pair}: {each.breaks}",
            expected=each.use,
            remedy=say("pip install '{use}'", use=each.use),
            evidence=(each.source,),
        )
    names = {name for each in known() for name in each.when if outside.package(name)}
    if not broken and len(names) > 1:
        yield ok(COMBINATIONS, say("no known problem with {names}", names=", ".join(sorted(names))))


def _applies(outside: Outside, combination: Combination) -> bool:
    versions = {name: outside.package(name) for name in combination.when}
    return all(version is not None and is_within(version, combination.when[name]) for name, version in versions.items())


COMBINATIONS_CHECK = Check(
    COMBINATIONS,
    what="Checks for combinations of numpy, torch, transformers, accelerate, peft and deepspeed that are known to "
    "fail, by a table with a source for each.",
    why="pip only respects declared ranges, and most packages declare no upper bound. The combination fails at import "
    "or in the first step, with an error in one package whose fix is another version of the other.",
    fix="Install the version in the remedy, preferably in a separate environment (python -m venv).",
    look=_look_at_combinations,
)
