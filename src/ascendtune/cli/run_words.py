"""What run.json and metrics.jsonl hold, in words and rounded figures for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ascendtune.core.terminal_text import wrapped
from ascendtune.core.units import format_bytes, format_duration


def in_words(values: Mapping[str, Any], columns: int | None) -> list[str]:
    """A line for each value that is known, names and values aligned.

    Args:
        columns: of the terminal; longer lines are wrapped below their value. None: nothing is wrapped.
    """
    known = {name: value for name, value in values.items() if value not in (None, "", [], {})}
    shown = [(name.removesuffix("_bytes"), _of(name, value)) for name, value in known.items()]
    longest = max((len(name) for name, _ in shown), default=0)
    return [wrapped(f"  {name.ljust(longest)}  {text}", columns, indent=longest + 4) for name, text in shown]


def plain(value: Any) -> str:
    """A value of a recipe, in YAML's words: true, null, [a, b]."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(plain, value))}]"
    return str(value)


def _of(name: str, value: Any) -> str:
    match value:
        case bool():
            return plain(value)
        case int() | float() if name.endswith("_bytes"):
            return format_bytes(value)
        case int() | float() if name.endswith("seconds"):
            return format_duration(value) if value >= 0.1 else f"{value:.2g} s"
        case float() if name == "epoch":
            return f"{value:.3g}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"
        case int():
            return f"{value:,}"
        case dict():
            return _of_section(value)
        case list():
            return ", ".join(_of("", each) for each in value)
    return str(value)


def _of_section(values: Mapping[str, Any]) -> str:
    if values.keys() == {"kind", "name", "world_size"}:
        return f"{values['name']} ({values['kind']} × {values['world_size']})"
    reason = f" ({values['reason']})" if values.get("reason") else ""
    others = {name: _of(name, value) for name, value in values.items() if name != "reason"}
    of_value: dict[str, list[str]] = {}
    for name, text in others.items():
        of_value.setdefault(text, []).append(name)
    if len(of_value) < len(others):
        return "; ".join(f"{', '.join(names)}: {text}" for text, names in of_value.items()) + reason
    return ", ".join(text if name == "name" else f"{name} {text}" for name, text in others.items()) + reason
