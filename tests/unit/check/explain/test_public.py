"""Excerpts of logs from public threads, whose cause was written down before `explain` read them.

Lines that an excerpt cuts off are completed in the words of the tool that prints them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import explain

_PUBLIC = Path(__file__).parents[3] / "fixtures" / "explain" / "public"
_ROWS = [line.split("\t") for line in (_PUBLIC / "index.tsv").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("name", "entry", "url", "cause"), _ROWS, ids=[row[0] for row in _ROWS])
def test_cause_of_a_public_log_is_named(name: str, entry: str, url: str, cause: str) -> None:
    assert entry_of(explain([str(_PUBLIC / f"{name}.log")])) == entry, f"{cause} ({url})"
