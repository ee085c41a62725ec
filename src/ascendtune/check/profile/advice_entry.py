"""One entry of the list of what to change, and what all that make entries use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ascendtune.core.foreign_json import value_at


@dataclass(frozen=True)
class Advice:
    """One thing to change.

    Attributes:
        code: the stable name of the cause.
        gain: seconds of a step that the change saves at most, as an estimate.
        is_defect: the time buys nothing; else it is a trade, or needs something that may not be there.
        keys: recipe keys that make the change, where there are such; `--try` measures them.
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
    """With three digits: `412 ms`."""
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"
