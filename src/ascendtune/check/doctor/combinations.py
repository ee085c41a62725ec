"""Installed packages that are known not to go together; the facts are in combinations.toml, with their sources."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.doctor.version_range import is_within
from ascendtune.check.finding import Finding, ok

CODE = "combinations"


@dataclass(frozen=True)
class Combination:
    """`when`: package -> range in which it is part of the trouble. `use`: the requirement that ends it."""

    when: dict[str, str]
    breaks: str
    use: str
    source: str


@cache
def known() -> tuple[Combination, ...]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return tuple(Combination(**each) for each in tomllib.loads(text)["combination"])


def _look(outside: Outside) -> Iterator[Finding]:
    broken = [each for each in known() if _applies(outside, each)]
    for each in broken:
        pair = " with ".join(f"{name} {outside.package(name)}" for name in each.when)
        yield Finding(
            CODE,
            "warning",
            f"{pair}: {each.breaks}",
            expected=each.use,
            remedy=f"pip install '{each.use}'",
            evidence=(each.source,),
        )
    names = {name for each in known() for name in each.when if outside.package(name)}
    if not broken and len(names) > 1:
        yield ok(CODE, f"nothing is known against the set of {', '.join(sorted(names))}")


def _applies(outside: Outside, combination: Combination) -> bool:
    versions = {name: outside.package(name) for name in combination.when}
    return all(version is not None and is_within(version, combination.when[name]) for name, version in versions.items())


CHECK = Check(
    CODE,
    what="Looks for pairs among numpy, torch, transformers, accelerate, peft and deepspeed that are known to break "
    "each other, by a table with a source for each.",
    why="pip keeps each package within what it declares, and most declare no upper bound. What breaks later, at import "
    "or in the first step, is reported by one package and mended by another.",
    fix="Install what the remedy names, best into an environment of its own (python -m venv).",
    look=_look,
)
