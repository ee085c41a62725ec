"""Shows the rows that share a packed sequence, and how each of them is trained on there."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ascendtune.core.units import count_of
from ascendtune.data.inspect import Segment, TokenSequence
from ascendtune.data.plan import BatchPlan
from ascendtune.data.store import IGNORED, TokenDataset
from ascendtune.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class InspectedPack:
    """Rows that share a packed sequence, each isolated from the others."""

    number: int
    """Counted from 1, in the order of the first epoch."""
    of: int
    """Sequences of an epoch."""
    tokens: int
    capacity: int
    sequences: list[TokenSequence]
    """One for each row; its name contains the row's number among the kept rows, from 1."""

    values: dict[str, Any] = field(default_factory=dict)
    """Empty: a packed sequence has no values of its own."""
    problem: None = None

    @property
    def title(self) -> str:
        rows = count_of(len(self.sequences), "row")
        return f"sequence {self.number} of {self.of:,}: {rows}, {self.tokens:,} of {self.capacity:,} tokens"


def packs(
    dataset: TokenDataset, tokenizer: Tokenizer, *, capacity: int, seed: int, first: int, count: int
) -> list[InspectedPack]:
    """`count` packed sequences of the first epoch from number `first` on, counted from 1.

    Args:
        dataset: tokens as they are trained on, cut and without rows that were dropped.
        capacity: tokens of a sequence.
        seed: of the recipe, which decides the order.
    """
    plan = BatchPlan(dataset.lengths, dataset.label_counts, capacity=capacity, global_batch=1, seed=seed)
    numbers = range(min(first - 1, plan.sequences_per_epoch), min(first - 1 + count, plan.sequences_per_epoch))
    inspected = []
    for number in numbers:
        (rows,) = plan.batch(number)
        sequences = [_of_tokens(f"kept row {row + 1:,}", *dataset.row(row), tokenizer) for row in rows]
        tokens = sum(len(each.token_ids) for each in sequences)
        inspected.append(InspectedPack(number + 1, plan.sequences_per_epoch, tokens, capacity, sequences))
    return inspected


def _of_tokens(name: str, ids: NDArray[np.int32], labels: NDArray[np.int32], tokenizer: Tokenizer) -> TokenSequence:
    """Args:
    ids, labels: (tokens,) of one row; labels are -100 for tokens that are not trained on.
    """
    numbers, trained = ids.tolist(), [each != IGNORED for each in labels.tolist()]
    edges = [0, *(at for at in range(1, len(numbers)) if trained[at] != trained[at - 1]), len(numbers)]
    segments = [
        Segment(tokenizer.decode(numbers[begin:end]), end - begin, trained[begin], is_cut=False)
        for begin, end in pairwise(edges)
    ]
    texts = [tokenizer.decode([each]) for each in numbers]
    return TokenSequence(name, segments, numbers, texts, trained, is_beginning=False)
