"""The name of the moment of a peak of memory in `plan`."""

from __future__ import annotations

import pytest

from ascendtune.cli.plan import _moment


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("backward 0", "backward pass of block 0"),
        ("forward -1", "forward pass of the last block"),
        ("backward -2", "backward pass of block 2 from the end"),
        ("optimizer step", "optimizer step"),
    ],
)
def test_blocks_are_named_from_the_end_that_they_are_counted_from(name: str, shown: str) -> None:
    assert _moment(name) == shown
