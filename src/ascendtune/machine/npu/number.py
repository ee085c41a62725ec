"""Parsers for lines, words and numbers in the vendor's format. Other text is None: NA, -, noise."""

from __future__ import annotations

import re

# The driver divides bytes by 1024 twice and writes MB (npu-smi's source); a 64 GB card reports 65536.
_BYTES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


def integer(text: str | None) -> int | None:
    """A whole number in plain digits; Python would also accept "1_000" and other scripts' digits."""
    return int(text) if text is not None and re.fullmatch(r"-?[0-9]{1,18}", text) else None


def decimal(text: str | None) -> float | None:
    """84.7, or 84,7 in some locales."""
    if text is None or not re.fullmatch(r"-?[0-9]{1,18}(?:\.[0-9]+|,[0-9]{1,2})?", text):
        return None
    return float(text.replace(",", "."))


def natural(text: str | None) -> int | None:
    """A count: a whole number that is not negative."""
    number = integer(text)
    return number if number is not None and number >= 0 else None


def ratio(percent: str | None) -> float | None:
    """ "85" -> 0.85; None outside 0 to 100."""
    number = decimal(percent)
    return number / 100 if number is not None and 0 <= number <= 100 else None


def pair(text: str | None) -> tuple[str | None, str | None]:
    """ "65098 / 65536" -> both numbers."""
    first, slash, second = (text or "").partition("/")
    return (first.strip(), second.strip()) if slash else (None, None)


def bytes_of(text: str | None, unit: str) -> int | None:
    """An amount of memory; None if the unit is unknown."""
    number, factor = natural(text), _BYTES.get(unit.upper().replace("IB", "B"))
    return None if number is None or factor is None else number * factor


def word(text: str | None) -> str | None:
    """A name; None for placeholders of unknown values, and for text with undecodable characters."""
    if text is None or text.strip() in ("", "-", "NA", "N/A") or "\ufffd" in text:
        return None
    return text.strip()


def whole_lines(text: str) -> str:
    """`text` without an incomplete last line: the tool or its connection ended within it."""
    return text[: text.rfind("\n") + 1]
