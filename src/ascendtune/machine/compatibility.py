"""Releases of Python, torch, torch_npu, CANN and driver that are compatible, by the vendor's tables.

The tables are in compatibility.toml with their sources. Names of releases are ordered as by the vendor:
8.0.RC3 < 8.0.0 < 8.1.RC1; `9.1.X` stands for every 9.1 release.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

Key = tuple[tuple[float, int], ...]

_END = (0.5, 0)


@dataclass(frozen=True)
class Wheel:
    """A published torch_npu, and the versions that it was built for."""

    version: str
    torch: str
    cann: str
    python: tuple[str, ...]
    product: str
    also: tuple[str, ...]
    """Further CANN releases that the vendor declares compatible."""
    source: str

    def takes_python(self, python: str) -> bool:
        return not self.python or python in self.python

    def is_made_for(self, cann: str) -> bool:
        return is_release(cann, self.cann)

    def takes_cann(self, cann: str) -> bool:
        return self.is_made_for(cann) or any(is_release(cann, each) for each in self.also)


@dataclass(frozen=True)
class DriverRange:
    """The drivers named for a CANN release; `cann` may be an older release if the release itself is not listed."""

    cann: str
    versions: tuple[str, ...]
    sources: tuple[str, ...]

    @property
    def oldest(self) -> str:
        return min(self.versions, key=release_key)


def release_key(version: str) -> Key:
    """A key to compare releases by; unknown letters are ignored."""
    return (*(_part(part) for part in re.split(r"[.-]", version.strip().lower()) if part), _END)


def is_release(version: str, release: str) -> bool:
    """Whether `version` is `wanted`, or one of "9.1.X"."""
    stem, is_open, _ = release.lower().partition(".x")
    if is_open:
        return release_key(version)[:-1][: stem.count(".") + 1] == release_key(stem)[:-1]
    return release_key(version) == release_key(release)


def base_version(version: str) -> str:
    """ "2.7.1+cpu", "2.7.1.post2", "2.7.1.dev20250724" -> "2.7.1": the part that torch_npu and torch must share."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return found[0] if found else version


def wheels() -> tuple[Wheel, ...]:
    """All wheels, newest torch first."""
    return _tables()[0]


def find_wheel(version: str) -> Wheel | None:
    """The row of an installed torch_npu; a local part (+git4c901a4) is ignored."""
    public = version.partition("+")[0]
    return next((wheel for wheel in wheels() if wheel.version == public), None)


def fitting_wheels(python: str, cann: str | None) -> list[Wheel]:
    """Wheels that can be installed for this Python and CANN (None: any), newest torch first, exact pairs before
    others."""
    usable = [wheel for wheel in wheels() if wheel.takes_python(python) and (cann is None or wheel.takes_cann(cann))]
    return sorted(usable, key=lambda wheel: cann is not None and not wheel.is_made_for(cann))


def drivers_for(cann: str) -> DriverRange | None:
    """The drivers named for a CANN release, else those of the newest earlier release; None if there is none."""
    rows = _tables()[1]
    exact = [row for row in rows if is_release(cann, row.cann)]
    if not exact:
        before = [row for row in rows if release_key(row.cann) < release_key(cann)]
        newest = max((row.cann for row in before), key=release_key, default=None)
        exact = [row for row in before if row.cann == newest]
    if not exact:
        return None
    versions = tuple(dict.fromkeys(version for row in exact for version in row.versions))
    return DriverRange(exact[0].cann, versions, tuple(source for row in exact for source in row.sources))


def _part(part: str) -> tuple[float, int]:
    found = re.fullmatch(r"(alpha|beta|rc|[a-z]*)(\d*)", part)
    stage, number = (found[1], int(found[2] or 0)) if found else ("", 0)
    if stage == "x":
        return (-3.0, 0)
    return ({"alpha": -2.0, "beta": -1.0, "rc": 0.0}.get(stage, 1.0), number)


@cache
def _tables() -> tuple[tuple[Wheel, ...], tuple[DriverRange, ...]]:
    content = tomllib.loads(Path(__file__).with_name("compatibility.toml").read_text(encoding="utf-8"))
    sources = content["sources"]
    found = []
    for row in content["torch_npu"]:
        also = [
            cann for other in content["also"] if is_release(row["product"], other["product"]) for cann in other["cann"]
        ]
        names = (row["version"], row["torch"], row["cann"], tuple(row["python"]), row["product"])
        found.append(Wheel(*names, tuple(also), sources[row["source"]]))
    found.sort(key=lambda wheel: (release_key(wheel.torch), release_key(wheel.version)), reverse=True)
    drivers = [DriverRange(row["cann"], tuple(row["versions"]), (sources[row["source"]],)) for row in content["driver"]]
    return tuple(found), tuple(drivers)
