"""Regular expressions for names of modules, from an adapter's config: those that may never end are found."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"\\."  # an escaped character
    r"|\[\^?\]?(?:\\.|[^\]\\])*\]"  # a set of characters
    r"|\((?:\?(?:P?<\w+>|[:=!>]|<[=!]|[a-zA-Z-]+:))?"  # the beginning of a group
    r"|[*+?][+?]?|\{\d*,?\d*\}\??"  # a quantifier
    r"|.",
    re.DOTALL,
)
_MOST_REPEATS = 5
_LONGEST = 10_000


@dataclass
class _Group:
    """A group as far as it was read: the most repeats that follow one another, and whether its length is fixed."""

    branch: int = 0
    other_branches: int = 0
    is_fixed: bool = True

    @property
    def repeats(self) -> int:
        return max(self.branch, self.other_branches)


def may_be_endless(pattern: str) -> bool:
    """Whether matching a name with `pattern` may take exponential time, or a high power of the name's length.

    A repeat of something that is itself of variable length, as in `(a+)+` or `(a|aa)*`, can divide a name in any number
    of ways. Patterns that are not valid are left to `re`.
    """
    if len(pattern) > _LONGEST:
        return True
    open_groups = [_Group()]
    last: _Group | None = None
    for found in _TOKEN.finditer(pattern):
        token, here = found[0], open_groups[-1]
        if token[0] == "(":
            open_groups.append(_Group())
            last = None
        elif token == ")" and len(open_groups) > 1:
            last = open_groups.pop()
            open_groups[-1].branch += last.repeats
            open_groups[-1].is_fixed &= last.is_fixed
        elif token == "|":
            here.other_branches, here.branch, here.is_fixed = here.repeats, 0, False
            last = None
        elif token[0] in "*+?" or (token[0] == "{" and len(token) > 2):
            is_repeat = token[0] != "?"
            if is_repeat and last is not None and not last.is_fixed:
                return True
            here.branch += is_repeat
            here.is_fixed = False
            last = None
        else:
            last = None
    return any(each.repeats > _MOST_REPEATS for each in open_groups)
