"""The data of a run: its largest micro-batch, and what its steps hold on average; full rows where nothing is known.

No torch.
"""

from __future__ import annotations

import math

from ascendtune.data.plan import BatchPlan, PackedSequence, share_of_rank
from ascendtune.data.store import TokenDataset
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.flops import histogram
from ascendtune.train.plan.request import Document
from ascendtune.train.plan.work import Steps


def full_rows(recipe: Recipe) -> tuple[Document, ...]:
    """`batch.per_device` rows of `data.max_length` tokens, two for each pair; the loss counts every token."""
    documents = 2 if recipe.method.task == "pairs" else 1
    length = recipe.data.max_length
    return (Document(length, length - 1),) * (documents * recipe.batch.micro_batch)


def largest_micro_batch(dataset: TokenDataset, recipe: Recipe, *, packed: bool, ranks: int) -> tuple[Document, ...]:
    """The documents of the micro-batch of the first epoch with most positions, of those the one with most labels."""
    plan = _plan(dataset, recipe, packed=packed, ranks=ranks)
    steps = min(plan.steps_per_epoch, _all_steps(plan, recipe))
    # kto: an answer and its mismatched one are computed apart.
    members = range(1 if recipe.method.task == "singles" else dataset.group_size)

    def documents(sequences: list[PackedSequence]) -> tuple[Document, ...]:
        rows = [group * dataset.group_size + each for sequence in sequences for group in sequence for each in members]
        return tuple(Document(int(dataset.lengths[row]), int(dataset.label_counts[row])) for row in rows)

    def size(found: tuple[Document, ...]) -> tuple[int, int]:
        positions = sum(each.tokens for each in found) if packed else len(found) * max(each.tokens for each in found)
        return positions, sum(each.labels for each in found)

    shares = (
        documents(share)
        for step in range(steps)
        for rank in range(ranks)
        for share in share_of_rank(plan.batch(step), rank=rank, world_size=ranks, per_device=recipe.batch.micro_batch)
        if share
    )
    return max(shares, key=size)


def steps_of_data(dataset: TokenDataset, recipe: Recipe, *, packed: bool, ranks: int) -> Steps:
    """Of tokens on disk."""
    plan = _plan(dataset, recipe, packed=packed, ranks=ranks)
    each, steps = plan.steps_per_epoch, _all_steps(plan, recipe)
    return Steps(
        steps, float(dataset.lengths.sum()) / each, float(dataset.label_counts.sum()) / each,
        dataset.rows_by_length(),
        plan.padding_ratio(recipe.batch.micro_batch), min(1.0, each / steps), is_measured=True,
    )  # fmt: skip


def steps_of_full_rows(recipe: Recipe, documents: tuple[Document, ...], ranks: int) -> Steps:
    """Where the data are not known: every micro-batch is like `documents`."""
    times = recipe.batch.accumulate * ranks
    return Steps(
        recipe.optim.max_steps, times * float(sum(each.tokens for each in documents)),
        times * float(sum(each.labels for each in documents)), histogram([each.tokens for each in documents]),
        0.0, 1.0, is_measured=False,
    )  # fmt: skip


def _plan(dataset: TokenDataset, recipe: Recipe, *, packed: bool, ranks: int) -> BatchPlan:
    return BatchPlan(
        dataset.lengths, dataset.label_counts,
        capacity=recipe.data.max_length if packed else None,
        global_batch=recipe.batch.micro_batch * recipe.batch.accumulate * ranks,
        seed=recipe.seed, group_size=dataset.group_size,
    )  # fmt: skip


def _all_steps(plan: BatchPlan, recipe: Recipe) -> int:
    return recipe.optim.max_steps or math.ceil((recipe.optim.epochs or 1) * plan.steps_per_epoch)
