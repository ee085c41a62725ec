"""No pattern of the knowledge is slow on a line that was written to be slow to match."""

from __future__ import annotations

import time

import pytest

from ascendtune.check.explain.knowledge.entries import KnownFailure, entries, raised_entries
from ascendtune.check.explain.lazy_pattern import LazyPattern
from ascendtune.check.explain.log.message_lines import LONGEST_TEXT

_MOST_SECONDS = 2.0
"""One that backtracks without bound takes minutes; one that tries each beginning of a word a tenth of a second."""


def _patterns(entry: KnownFailure) -> list[LazyPattern]:
    return [pattern for pattern in (entry.pattern, entry.capture) if isinstance(pattern, LazyPattern)]


@pytest.mark.long
@pytest.mark.parametrize("filling", ["a_", "a.", "7"])
def test_a_line_of_one_kind_of_character_is_read_quickly(filling: str) -> None:
    slow = []
    for entry in (*entries(), *raised_entries()):
        ending = entry.test.splitlines()[-1][: LONGEST_TEXT // 4]
        line = filling * ((LONGEST_TEXT - len(ending)) // len(filling)) + ending
        for pattern in _patterns(entry):
            began = time.process_time()
            pattern.search(line)
            if time.process_time() - began > _MOST_SECONDS:
                slow.append(entry.id)

    assert slow == []
