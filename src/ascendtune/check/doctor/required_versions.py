"""One set of versions that satisfies every rule of the doctor at once; each remedy about packages installs this set."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from ascendtune.check.doctor.cann import loaded_toolkit
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.system import System
from ascendtune.machine.compatibility import (
    Wheel,
    base_version,
    drivers_for,
    fitting_wheels,
    is_release,
    release_key,
)

_BOUND = re.compile(r"(>=|<=|==|!=|<|>)\s*([\w.]+)")
_SHELL = re.compile("[<>!]")
_OLDEST_TORCH = release_key("2.6")
"""The oldest torch that ascendtune supports; older wheels are not recommended."""
NUMPY_2_FROM_CANN = "9.0.0"
"""The release notes of CANN 9.0.0 list numpy 2 as supported; earlier releases were built for numpy 1."""
NUMPY_1 = "1.26.4"
NO_NUMPY_1_FROM_PYTHON = release_key("3.13")
"""numpy 1 has no wheels for this Python and later ones."""
_PAIR = ("torch", "torch-npu")


@dataclass(frozen=True)
class Combination:
    """`when`: package -> affected range. `use`: the requirement that avoids the problem."""

    when: dict[str, str]
    breaks: str
    use: str
    source: str

    def applies(self, versions: dict[str, str | None]) -> bool:
        present = {name: versions.get(name) for name in self.when}
        return all(version is not None and is_within(version, self.when[name]) for name, version in present.items())


@cache
def known_combinations() -> tuple[Combination, ...]:
    text = Path(__file__).with_name("combinations.toml").read_text(encoding="utf-8")
    return tuple(Combination(**each) for each in tomllib.loads(text)["combination"])


@dataclass(frozen=True)
class RequiredVersions:
    """Packages, CANN and driver to install.

    `packages`: name -> range, only those that are wrong or missing. `cann`: the release to install before, None if the
    loaded one is kept; `driver` likewise.
    """

    packages: dict[str, str]
    cann: str | None = None
    driver: str | None = None
    is_possible: bool = True

    @property
    def keeps_pair(self) -> bool:
        """Whether torch, torch_npu and CANN are kept, because nothing matches the machine better."""
        return self.is_possible and self.cann is None and not any(name in self.packages for name in _PAIR)

    @property
    def text(self) -> str:
        """The advice as one command, preceded by other software to install."""
        words = [f"{name}{bounds}" for name, bounds in self.packages.items()]
        command = " ".join(("pip install", *(f"'{each}'" if _SHELL.search(each) else each for each in words)))
        if not self.is_possible:
            return say("use Python 3.11: no torch_npu that ascendtune supports is published for this Python")
        if self.cann is None:
            return command if words else say("keep the installed packages")
        before = [say("CANN {cann} (toolkit, and kernels or ops of the chip)", cann=self.cann)]
        if self.driver:
            before.append(say("driver and firmware {driver} (restart)", driver=self.driver))
        return say(
            "install {before}, source its set_env.sh, then: {command}", before=", ".join(before), command=command
        )


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


def supported_ranges(extras: Sequence[str] = ("train", "npu", "cuda", "deepspeed")) -> dict[str, str]:
    """Name -> ">=2.6,<2.14", for the base install and these extras.

    Raises:
        PackageNotFoundError: ascendtune is not installed as a package.
    """
    found = dict[str, str]()
    for line in requires("ascendtune") or []:
        name, _, marker = line.partition(";")
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
        if ("extra" in marker and (extra is None or extra[1] not in extras)) or "ascendtune" in name:
            continue
        found |= ranges_of([name])
    return found


def ranges_of(requirements: Iterable[str]) -> dict[str, str]:
    """Name -> ">=0.22,<0.23", of the requirements that have no marker."""
    found = {}
    for line in requirements:
        if parts := re.fullmatch(r"\s*([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*", line):
            bounds = sorted(parts[2].replace(" ", "").split(","), key=lambda bound: not bound.startswith(">"))
            found[parts[1].lower()] = ",".join(bounds)
    return found


def advice_for(system: System) -> RequiredVersions:
    """The nearest set: it keeps Python, then CANN, then torch, then every package that no rule forbids."""
    return system.once("requirements", lambda: _advise(system))


def needs_numpy_1(numpy: str | None, cann: str | None) -> bool:
    return (
        numpy is not None
        and cann is not None
        and release_key(numpy) >= release_key("2")
        and release_key(cann) < release_key(NUMPY_2_FROM_CANN)
    )


@cache
def _seen_working() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("seen_working.toml").read_text(encoding="utf-8"))


def user_of_working_pair(torch_npu: str | None, cann: str | None) -> str | None:
    """The user of a pair of torch_npu and CANN that is known to work; None if none is known."""
    public = (torch_npu or "").partition("+")[0]
    rows = _seen_working()["pair"] if cann else ()
    return next(
        (row["user"] for row in rows if row["torch_npu"] == public and is_release(cann or "", row["cann"])), None
    )


def is_reported_working(driver: str, cann: str) -> bool:
    """Whether a public report shows a driver working with a CANN that the vendor lists for newer drivers only."""
    return any(is_release(driver, row["driver"]) and is_release(cann, row["cann"]) for row in _seen_working()["driver"])


def _advise(system: System) -> RequiredVersions:
    kit = loaded_toolkit(system)
    cann = kit.version if kit else None
    packages: dict[str, str] = {}
    wheel, is_pair = None, system.has_npus or system.package("torch-npu") is not None
    if is_pair and not _works(system, cann):
        wheel = _wheel(system, cann)
        if wheel is None:
            return RequiredVersions({}, is_possible=False)
        packages |= _pins(system, wheel)
    is_new_cann = wheel is not None and (cann is None or not wheel.takes_cann(cann))
    release = wheel.cann if wheel and is_new_cann else cann
    packages |= dict(_out_of_range(system, is_pair))
    if needs_numpy_1(system.package("numpy"), release) and release_key(system.python) < NO_NUMPY_1_FROM_PYTHON:
        packages["numpy"] = f"=={NUMPY_1}"
    _avoid_combinations(system, packages)
    if not is_new_cann or release is None:
        return RequiredVersions(packages)
    named = drivers_for(release)
    fits = named is None or system.driver_version is None or _accepts(named.oldest, system.driver_version)
    return RequiredVersions(packages, release, None if fits or named is None else named.versions[0])


def _avoid_combinations(system: System, packages: dict[str, str]) -> None:
    """Add versions that avoid combinations that are known to fail; avoiding one may cause another."""
    for _ in known_combinations():
        versions = {name: _lowest(system, packages, name) for each in known_combinations() for name in each.when}
        broken = next((each for each in known_combinations() if each.applies(versions)), None)
        if broken is None:
            return
        name, bounds = _split(broken.use)
        packages[name] = f"{bounds},{_upper(name)}".rstrip(",")


def _works(system: System, cann: str | None) -> bool:
    """Whether the installed pair of torch and torch_npu is known to work with the loaded CANN."""
    torch, torch_npu = system.package("torch"), system.package("torch-npu")
    is_one = torch is not None and torch_npu is not None and base_version(torch) == base_version(torch_npu)
    return is_one and user_of_working_pair(torch_npu, cann) is not None


def _wheel(system: System, cann: str | None) -> Wheel | None:
    """The torch_npu to use: the installed one if it matches, then one for the installed torch, then the newest."""
    torch, torch_npu = system.package("torch"), (system.package("torch-npu") or "").partition("+")[0]
    keep = base_version(torch) if torch else None
    usable = [each for each in fitting_wheels(system.python, cann) if release_key(each.torch) >= _OLDEST_TORCH]
    if not usable:
        usable = [each for each in fitting_wheels(system.python, None) if release_key(each.torch) >= _OLDEST_TORCH]
        driver = system.driver_version
        # Another CANN is needed anyway: preferably one that the installed driver supports.
        usable.sort(key=lambda each: driver is not None and not _serves(driver, each.cann))
    installed = [
        each
        for each in usable
        if each.version == torch_npu and each.torch == keep and (cann is None or each.is_made_for(cann))
    ]
    return next(iter([*installed, *(each for each in usable if each.torch == keep), *usable]), None)


def _serves(driver: str, cann: str) -> bool:
    named = drivers_for(cann)
    return named is None or any(is_release(driver, each) for each in named.versions) or _accepts(named.oldest, driver)


def _accepts(oldest: str, driver: str) -> bool:
    return release_key(driver) >= release_key(oldest)


def _pins(system: System, wheel: Wheel) -> dict[str, str]:
    torch, torch_npu = system.package("torch"), system.package("torch-npu")
    is_there = torch is not None and base_version(torch) == wheel.torch
    if is_there and torch_npu is not None and torch_npu.partition("+")[0] == wheel.version:
        return {}
    return {"torch": f"=={wheel.torch}", "torch-npu": f"=={wheel.version}"}


def _out_of_range(system: System, is_pair: bool) -> Iterator[tuple[str, str]]:
    try:
        ranges = supported_ranges()
    except PackageNotFoundError:
        return
    for name, bounds in ranges.items():
        version = system.package(name)
        if version is not None and not is_within(version, bounds) and not (is_pair and name in _PAIR):
            yield name, bounds


def _lowest(system: System, packages: dict[str, str], name: str) -> str | None:
    """The version of a package after the advice was followed; the lowest one if a range is advised."""
    bounds = packages.get(name)
    return system.package(name) if bounds is None else next(want for sign, want in _BOUND.findall(bounds))


def _split(requirement: str) -> tuple[str, str]:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return found[0], requirement[found.end() :]


def _upper(name: str) -> str:
    """The upper bound that ascendtune declares for a package; empty if there is none."""
    try:
        bounds = supported_ranges().get(name, "")
    except PackageNotFoundError:
        return ""
    return ",".join(bound for bound in bounds.split(",") if bound.startswith("<"))
