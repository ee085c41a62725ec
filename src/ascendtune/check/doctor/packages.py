"""Installed packages: versions that ascendtune supports, and combinations known to fail."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError

from ascendtune.check.doctor.cann import loaded_toolkit
from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.required_versions import (
    NUMPY_2_FROM_CANN,
    advice_for,
    is_within,
    known_combinations,
    needs_numpy_1,
    ranges_of,
    supported_ranges,
)
from ascendtune.check.doctor.system import System
from ascendtune.check.finding import Finding, ok, unknown, warning

PACKAGES = "packages"
_CHECKS_AT_IMPORT = ("transformers", "peft")
"""Packages whose import fails if versions of others do not fit."""


def _look_at_packages(system: System) -> Iterator[Finding]:
    try:
        ranges = supported_ranges()
    except PackageNotFoundError:
        yield unknown(PACKAGES, say("ascendtune is not installed as a package, so its version ranges are unknown"))
        return
    found = [*_outside_of_range(system, ranges), *_unmet_requirements(system), *_numpy(system)]
    yield from found
    if not found:
        versions = {name: system.package(name) for name in ("torch", "transformers", "peft", "numpy")}
        described = ", ".join(f"{name} {version or say('not installed')}" for name, version in versions.items())
        yield ok(PACKAGES, described)


def _outside_of_range(system: System, ranges: dict[str, str]) -> Iterator[Finding]:
    for name, bounds in ranges.items():
        version = system.package(name)
        if version is not None and not is_within(version, bounds):
            yield warning(
                PACKAGES,
                say("{name} {version} is outside of the range that ascendtune supports", name=name, version=version),
                expected=f"{name} {bounds}",
                remedy=advice_for(system).text,
            )


def _unmet_requirements(system: System) -> Iterator[Finding]:
    for package in _CHECKS_AT_IMPORT:
        for name, bounds in ranges_of(system.package_requirements(package)).items():
            version = system.package(name)
            if version is not None and not is_within(version, bounds):
                yield warning(
                    PACKAGES,
                    say(
                        "{package} {release} needs {name} {bounds}, and {version} is installed",
                        package=package, release=system.package(package), name=name, bounds=bounds, version=version,
                    ),
                    expected=f"{name} {bounds}",
                    remedy=f"pip install '{name}{bounds}'",
                )  # fmt: skip


def _numpy(system: System) -> Iterator[Finding]:
    numpy, kit = system.package("numpy"), loaded_toolkit(system)
    if kit is not None and needs_numpy_1(numpy, kit.version):
        yield warning(
            PACKAGES,
            say(
                "numpy {numpy} with CANN {cann}: before {first} its Python code needs numpy 1",
                numpy=numpy,
                cann=kit.version,
                first=NUMPY_2_FROM_CANN,
            ),
            expected=say("numpy 1.26"),
            remedy=advice_for(system).text,
            evidence=("CANN 9.0.0 release notes; torch_npu's pip instructions pin numpy 1.26.2 for Python 3.11",),
        )


PACKAGES_CHECK = Check(
    PACKAGES,
    what="Compares installed packages with the ranges that ascendtune, transformers and PEFT declare, and numpy with "
    "the loaded CANN.",
    why="Installing another tool may silently change a package that ascendtune depends on. numpy 2 breaks the Python "
    "code of CANN releases before 9.0.0, in operators that are compiled at run time.",
    fix="Install the version in the remedy, preferably in a separate environment (python -m venv).",
    look=_look_at_packages,
)


COMBINATIONS = "combinations"


def _look_at_combinations(system: System) -> Iterator[Finding]:
    versions = {name: system.package(name) for each in known_combinations() for name in each.when}
    broken = [each for each in known_combinations() if each.applies(versions)]
    for each in broken:
        pair = say(" with ").join(f"{name} {versions[name]}" for name in each.when)
        yield warning(
            COMBINATIONS,
            f"{pair}: {say(each.breaks)}",
            expected=each.use,
            remedy=advice_for(system).text,
            evidence=(each.source,),
        )
    names = sorted(name for name, version in versions.items() if version)
    if not broken and len(names) > 1:
        yield ok(COMBINATIONS, say("no known problem with {names}", names=", ".join(names)))


COMBINATIONS_CHECK = Check(
    COMBINATIONS,
    what="Checks for combinations of numpy, torch, transformers, accelerate, peft and deepspeed that are known to "
    "fail, and releases of DeepSpeed that compute wrong gradients, using a table that names a source for each.",
    why="pip only respects declared ranges, and most packages declare no upper bound. The combination fails at import "
    "or in the first step, with an error in one package whose fix is another version of the other.",
    fix="Install the version in the remedy, preferably in a separate environment (python -m venv).",
    look=_look_at_combinations,
)
