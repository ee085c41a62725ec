"""Rows as the conversations that are tokenised for them: one, or two that stay together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ascendtune.core.errors import DataError
from ascendtune.data.conversation import Conversation
from ascendtune.data.spec import ROWS_OF_A_GROUP, Task
from ascendtune.data.store import Float32


@dataclass(frozen=True)
class Groups:
    """Conversations, `size` of them for every row."""

    conversations: Sequence[Conversation]
    size: int = 1
    values: Float32 | None = None
    """(groups,) as `TokenDataset.values`; None where groups are one row."""
    borrows: bool = False
    """The second conversation of every group has another row's answer, so its length is no reason to drop the row."""


def groups_of(rows: Sequence[Any], task: Task) -> Groups:
    """The conversations of rows that are all of the kind that `task` asks for.

    A pair is its chosen, then its rejected answer. A single answer is followed by a mismatched one, the same prompt
    with the answer of the next row (after the last the first): KTO estimates the divergence from the reference by it.

    Raises:
        DataError: a single answer has no other row to take a mismatched answer from.
    """
    size = ROWS_OF_A_GROUP[task]
    if task == "pairs":
        flat = [each for pair in rows for each in (pair.chosen, pair.rejected)]
        return Groups(flat, size, np.array([pair.margin for pair in rows], np.float32))
    if task == "singles":
        if len(rows) < 2:
            raise DataError(
                "loss kto compares every answer with that of another row, and there is only one row",
                remedy="give more rows, also for the evaluation data",
            )
        others = [*rows[1:], rows[0]]
        flat = [
            each
            for row, other in zip(rows, others, strict=True)
            for each in (row.conversation, _mismatched(row.conversation, other.conversation))
        ]
        return Groups(flat, size, np.array([row.desirable for row in rows], np.float32), borrows=True)
    return Groups(rows, size)


def _mismatched(conversation: Conversation, other: Conversation) -> Conversation:
    return Conversation([*conversation.messages[:-1], other.messages[-1]], conversation.tools)
