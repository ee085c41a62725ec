"""An entry of the list of changes, and functions for making entries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ascendtune.core.foreign_json import value_at


@dataclass(frozen=True)
class Advice:
    """A change that may save time.

    Attributes:
        code: stable name of the cause.
        gain: estimated upper bound of the seconds saved in each step.
        is_defect: the time has no benefit; otherwise the change is a trade-off, or needs something that may be missing.
        keys: recipe keys that make the change, if there are any; `--try` measures them.
    """

    code: str
    what: str
    remedy: str
    gain: float
    is_defect: bool = False
    keys: dict[str, Any] = field(default_factory=dict)


def resolved(facts: dict[str, Any], name: str) -> Any:
    """The value that the run chose for an `auto`; None if unknown."""
    return value_at(facts, "resolved", name)


def count_or_one(value: Any) -> int:
    return value if isinstance(value, int) and 1 <= value <= 1 << 16 else 1


def milliseconds(seconds: float) -> str:
    """A duration with three digits: `412 ms`."""
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"
