"""`ascendtune env install-plan`: the packages to install on this machine, with the reason of each, as one pip command.

The versions come from `required_versions.py`, so the plan agrees with the remedies of the checks.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError
from typing import Any

from ascendtune.check.doctor.cann import loaded_toolkit, operator_packages
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.required_versions import (
    NO_NUMPY_1_FROM_PYTHON,
    NUMPY_1,
    RequiredVersions,
    advice_for,
    needs_numpy_1,
    supported_ranges,
)
from ascendtune.check.doctor.system import System
from ascendtune.machine.compatibility import find_wheel, release_key


@dataclass(frozen=True)
class PlannedPackage:
    """`bounds`: "==2.6.0" or a range; `installed`: the current version, None if it is missing."""

    name: str
    bounds: str
    installed: str | None
    why: str

    @property
    def requirement(self) -> str:
        return f"{self.name}{self.bounds}"


@dataclass(frozen=True)
class InstallPlan:
    """`before`: steps before pip that pip cannot do. `is_possible`: whether a published torch_npu matches."""

    python: str
    driver: str | None
    cann: str | None
    before: tuple[str, ...]
    packages: tuple[PlannedPackage, ...]
    is_possible: bool

    def command(self, program: str) -> list[str]:
        """The argv of pip; `program` is the Python whose packages are changed."""
        # -P: a pip.py in the working directory is not run.
        return [program, "-P", "-m", "pip", "install", *(each.requirement for each in self.packages)]

    def as_json(self, program: str) -> dict[str, Any]:
        content = asdict(self)
        content["command"] = shlex.join(self.command(program)) if self.packages else None
        return content


def make_install_plan(system: System) -> InstallPlan:
    """The missing or wrong packages for training on this machine, with its Python, CANN and driver.

    If no toolkit is loaded, the plan is for the newest installed one, which `env export` loads.
    """
    kit = loaded_toolkit(system)
    if kit is None and system.versions.toolkits:
        kit = max(system.versions.toolkits, key=lambda each: release_key(each.version or ""))
        system = replace(system, env={**system.env, "ASCEND_HOME_PATH": kit.path}, _answers={}, _locks={})
    cann = kit.version if kit else None
    advice = advice_for(system)
    bounds_of = dict(advice.packages)
    release = advice.cann or cann
    if advice.is_possible:
        for name, bounds in _missing(system):
            bounds_of.setdefault(name, bounds)
        is_old_python = release_key(system.python) < NO_NUMPY_1_FROM_PYTHON
        if system.package("numpy") is None and needs_numpy_1("2", release) and is_old_python:
            bounds_of["numpy"] = f"=={NUMPY_1}"
    packages = tuple(
        PlannedPackage(name, bounds, system.package(name), _reason_for(name, bounds, release, system))
        for name, bounds in bounds_of.items()
    )
    return InstallPlan(
        system.python, system.driver_version, cann, _before(system, advice), packages, advice.is_possible
    )


def _missing(system: System) -> list[tuple[str, str]]:
    try:
        ranges = supported_ranges(("train",))
    except PackageNotFoundError:
        return []
    return [(name, bounds) for name, bounds in ranges.items() if system.package(name) is None]


def _before(system: System, advice: RequiredVersions) -> tuple[str, ...]:
    if not advice.is_possible:
        return (say("Python 3.11: no torch_npu that ascendtune supports is published for this Python"),)
    found = []
    if advice.driver:
        found.append(say("driver and firmware {release}, then restart", release=advice.driver))
    if advice.cann:
        operators = operator_packages(system, advice.cann)
        found.append(
            say(
                "CANN {release}: the toolkit, and {operators}; then {command}",
                release=advice.cann,
                operators=operators or say("the kernels (8.5 and later: ops) package of the chip"),
                command='eval "$(ascendtune env export)"',
            )
        )
    return tuple(found)


def _reason_for(name: str, bounds: str, cann: str | None, system: System) -> str:
    have = system.package(name)
    if name == "torch-npu" and (wheel := find_wheel(bounds.lstrip("="))):
        return say(
            "made for torch {torch}, CANN {cann}, Python {python}: {source}",
            torch=wheel.torch,
            cann=wheel.cann,
            python=", ".join(wheel.python),
            source=wheel.source,
        )
    if name == "torch" and bounds.startswith("=="):
        return say("torch-npu needs exactly this torch")
    if name == "numpy" and bounds.startswith("=="):
        return say("CANN {cann} was built for numpy 1; CANN 9.0.0 is the first release for numpy 2", cann=cann)
    if have is None:
        return say("training needs it, and it is missing")
    return say(
        "{version} is outside of what ascendtune supports, or does not work with another package here", version=have
    )
