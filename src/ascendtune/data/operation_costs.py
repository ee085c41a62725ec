"""Characters that operations of a chat template add to their operands; the limits are in `limits.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

WIDEST = 100_000
WIDE_FORMAT = re.compile(r"\d{6}|\*|\{[^{}]*\{")
_FEW_CHARACTERS = 16
_FORBIDDEN = 1 << 60
"""More than any template may spend."""


def length(value: Any) -> int:
    """Calls `str.__len__`: a placeholder of `skeleton` records calls of its own `__len__`."""
    return str.__len__(value) if isinstance(value, str) else len(value)


def texts_in(values: list[Any]) -> Iterator[str]:
    for each in values:
        if isinstance(each, str):
            yield each
        elif isinstance(each, tuple | list | dict):
            yield from texts_in(list(each.values()) if isinstance(each, dict) else list(each))


def _of_replacing(text: Any, given: Any) -> int:
    old, new = given[0], given[1]
    return (str(text).count(str(old)) + 1) * len(str(new)) if not isinstance(text, bytes) else len(text) * len(new)


# Additional characters of the result, beyond those of the input.
GROWING_METHODS: dict[str, Callable[[Any, Any], int]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), lambda text, given: int(given[0])),
    **dict.fromkeys(("split", "rsplit", "splitlines"), lambda text, given: 8 * length(text)),
    "expandtabs": lambda text, given: len(text) * int(given[0] if given else 8),
    "join": lambda text, given: len(text) * len(given[0]),
    "replace": _of_replacing,
    "translate": lambda text, given: len(text) * max((len(each) for each in texts_in([given[0]])), default=1),
    # Each character is looked for among the given ones.
    **dict.fromkeys(("strip", "lstrip", "rstrip"), lambda text, given: length(text) * _characters(given)),
    "to_bytes": lambda number, given: int(given[0]),
}
GROWING_FILTERS: dict[str, Callable[[Any, Any], int]] = {
    "batch": lambda value, given: 8 * sum(each for each in given if isinstance(each, int)),
    "format": lambda pattern, given: (
        pattern.count("%") * max((len(each) for each in texts_in(given)), default=1)
        + (_FORBIDDEN if WIDE_FORMAT.search(pattern) else 0)
    ),
    "indent": lambda text, given: (str(text).count("\n") + 1) * _width(given, 4),
    "join": lambda values, given: len(values) * _width(given, 0),
    "replace": _of_replacing,
    "sum": lambda values, given: _FORBIDDEN if any(isinstance(each, list | tuple) for each in given) else 0,
    "tojson": lambda value, given: _nodes_in(value) * _width(given, 0),
    "trim": lambda text, given: _characters(given) * (length(text) if isinstance(text, str | list) else 0),
}


def _characters(given: Iterable[Any]) -> int:
    """Cost, for each character of a text, of removing the given ones at its ends; the usual few cost nothing."""
    return max((length(each) // _FEW_CHARACTERS for each in given if isinstance(each, str | bytes)), default=0)


def _width(given: Iterable[Any], default: int) -> int:
    widths = [len(each) if isinstance(each, str) else each for each in given if isinstance(each, str | int)]
    return max([default, *widths])


def _nodes_in(value: Any) -> int:
    """Number of values in a value; called after it was weighed, so the recursion is bounded."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return 1 + sum(map(_nodes_in, inner))
