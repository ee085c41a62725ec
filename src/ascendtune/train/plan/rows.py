"""The data of a run: its largest micro-batch, and what its steps hold on average; full rows where nothing is known.

No torch.
"""

from __future__ import annotations

import math

import numpy as np

from ascendtune.data.plan import BatchPlan
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


def largest_micro_batch(
    dataset: TokenDataset, recipe: Recipe, *, padding_free: bool, ranks: int
) -> tuple[Document, ...]:
    """The documents of the micro-batch of the first epoch with most positions, of those the one with most labels."""
    plan = _plan(dataset, recipe, padding_free=padding_free, ranks=ranks)
    steps = min(plan.steps_per_epoch, _all_steps(plan, recipe))
    # kto: an answer and its mismatched one are computed apart.
    members = 1 if recipe.method.task == "singles" else dataset.group_size
    tokens, labels = (
        each.reshape(-1, dataset.group_size)[:, :members] for each in (dataset.lengths, dataset.label_counts)
    )
    epoch, per_device = plan.first_epoch, recipe.batch.micro_batch
    used = slice(min(len(epoch), steps * plan.global_batch))
    # A global batch is a whole number of micro-batches.
    starts = np.arange(0, used.stop, per_device)
    if padding_free:
        positions = np.add.reduceat(epoch.sums(tokens.sum(axis=1))[used], starts)
    else:
        documents = members * np.diff(starts, append=used.stop)
        positions = documents * np.maximum.reduceat(epoch.sums(tokens.max(axis=1))[used], starts)
    labelled = np.add.reduceat(epoch.sums(labels.sum(axis=1))[used], starts)
    most = np.flatnonzero(positions == positions.max())
    begin = int(starts[most[labelled[most].argmax()]])
    groups = [group for sequence in epoch.sequences(begin, min(begin + per_device, used.stop)) for group in sequence]
    return tuple(
        Document(int(tokens[group, each]), int(labels[group, each])) for group in groups for each in range(members)
    )


def steps_of_data(dataset: TokenDataset, recipe: Recipe, *, padding_free: bool, ranks: int) -> Steps:
    """Of tokens on disk."""
    plan = _plan(dataset, recipe, padding_free=padding_free, ranks=ranks)
    each, steps = plan.steps_per_epoch, _all_steps(plan, recipe)
    return Steps(
        steps, float(dataset.lengths.sum()) / each, float(dataset.label_counts.sum()) / each,
        dataset.rows_by_length(),
        0.0 if padding_free else plan.padding_ratio(recipe.batch.micro_batch), min(1.0, each / steps), is_measured=True,
        per_epoch=each,
    )  # fmt: skip


def steps_of_full_rows(recipe: Recipe, documents: tuple[Document, ...], ranks: int) -> Steps:
    """Where the data are not known: every micro-batch is like `documents`."""
    times = recipe.batch.accumulate * ranks
    return Steps(
        recipe.optim.max_steps, times * float(sum(each.tokens for each in documents)),
        times * float(sum(each.labels for each in documents)), histogram([each.tokens for each in documents]),
        0.0, 1.0, is_measured=False,
    )  # fmt: skip


def _plan(dataset: TokenDataset, recipe: Recipe, *, padding_free: bool, ranks: int) -> BatchPlan:
    return BatchPlan(
        dataset.lengths, dataset.label_counts,
        capacity=recipe.capacity(padding_free=padding_free),
        global_batch=recipe.batch.micro_batch * recipe.batch.accumulate * ranks,
        seed=recipe.seed, group_size=dataset.group_size,
    )  # fmt: skip


def _all_steps(plan: BatchPlan, recipe: Recipe) -> int:
    return recipe.optim.max_steps or math.ceil((recipe.optim.epochs or 1) * plan.steps_per_epoch)
