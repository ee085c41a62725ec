"""Whether a version lies within a range as pip writes it."""

from __future__ import annotations

import re

from ascendtune.machine.compatibility import release_key

_BOUND = re.compile(r"(>=|<=|==|!=|<|>)\s*([\w.]+)")


def is_within(version: str, bounds: str) -> bool:
    """Whether `version` ("2.6.0+cpu") fulfils every part of `bounds` (">=2.6,<2.14"); local parts do not count."""
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
