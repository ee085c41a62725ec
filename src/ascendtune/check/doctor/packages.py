"""Installed packages against the ranges that ascendtune is tested with, and numpy against CANN."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires

from ascendtune.check.doctor.cann import loaded_toolkit
from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.doctor.version_range import is_within
from ascendtune.check.finding import Finding, ok, unknown
from ascendtune.machine.compatibility import release_key

CODE = "packages"

_NUMPY_2_FROM_CANN = "9.0.0"
"""CANN 9.0.0's release notes name numpy 2 as supported; earlier releases were built for numpy 1."""


def _look(outside: Outside) -> Iterator[Finding]:
    try:
        wanted = _ranges(requires("ascendtune") or [])
    except PackageNotFoundError:
        yield unknown(CODE, "ascendtune runs from a directory that is not installed, so its ranges are not known")
        return
    found = [*_outside_of_range(outside, wanted), *_numpy(outside)]
    yield from found
    if not found:
        versions = {name: outside.package(name) for name in ("torch", "transformers", "peft", "numpy")}
        said = ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items())
        yield ok(CODE, said)


def _ranges(requirements: list[str]) -> dict[str, str]:
    """Name -> ">=2.6,<2.14"; of the extras only those that training needs."""
    found = {}
    for line in requirements:
        name, _, marker = line.partition(";")
        if "extra" in marker and not re.search(r"extra == ['\"](train|npu|cuda|deepspeed|liger)['\"]", marker):
            continue
        if parts := re.match(r"\s*([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*\(?([^)]*)", name):
            found[parts[1].lower()] = parts[2].strip()
    return found


def _outside_of_range(outside: Outside, wanted: dict[str, str]) -> Iterator[Finding]:
    for name, bounds in wanted.items():
        version = outside.package(name)
        if version is not None and not is_within(version, bounds):
            yield Finding(
                CODE,
                "warning",
                f"{name} {version} is outside of what ascendtune is made for",
                expected=f"{name} {bounds}",
                remedy=f"pip install '{name}{bounds.replace(' ', '')}'",
            )


def _numpy(outside: Outside) -> Iterator[Finding]:
    numpy, kit = outside.package("numpy"), loaded_toolkit(outside)
    if numpy is None or kit is None or kit.version is None or release_key(numpy) < release_key("2"):
        return
    if release_key(kit.version) < release_key(_NUMPY_2_FROM_CANN):
        yield Finding(
            CODE,
            "warning",
            f"numpy {numpy} with CANN {kit.version}: before {_NUMPY_2_FROM_CANN} its Python parts are made for numpy 1",
            expected="numpy 1.26",
            remedy="pip install 'numpy==1.26.4'",
            evidence=("CANN 9.0.0 release notes; torch_npu's pip instructions pin numpy 1.26.2 for Python 3.11",),
        )


CHECK = Check(
    CODE,
    what="Compares installed packages with the ranges that ascendtune declares, and numpy with the loaded CANN.",
    why="Another tool's installation silently moves a package that this one depends on. numpy 2 breaks the Python "
    "parts of CANN releases before 9.0.0, in operators that are compiled at run time.",
    fix="Install what the remedy names, best into an environment of its own (python -m venv).",
    look=_look,
)
