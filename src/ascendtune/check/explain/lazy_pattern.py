"""Regular expressions that are compiled at first use: a log needs few of the knowledge's thousands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property


class LazyPattern:
    """A pattern that is compiled at first use. The tests compile all patterns of the knowledge and so find errors."""

    def __init__(self, text: str, flags: int = 0) -> None:
        self._text, self._flags = text, flags

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self._text, self._flags)

    @property
    def names(self) -> frozenset[str]:
        """Names of its groups."""
        return frozenset(self._compiled.groupindex)

    def search(self, text: str) -> re.Match[str] | None:
        return self._compiled.search(text)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        return self._compiled.finditer(text)
