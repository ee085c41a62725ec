"""The data of a run: its largest micro-batch and the averages over its steps; full rows if the data are unknown.

Free of torch.
"""

from __future__ import annotations

import math

import numpy as np

from ascendtune.data.plan import BatchPlan
from ascendtune.data.store import TokenDataset
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.flops import histogram
from ascendtune.train.plan.request import DocumentSize
from ascendtune.train.plan.work import Steps


def full_rows(recipe: Recipe) -> tuple[DocumentSize, ...]:
    """`batch.per_device` rows of `data.max_length` tokens, two for each pair; the loss counts every token."""
    documents = 2 if recipe.method.task == "pairs" else 1
    length = recipe.data.max_length
    return (DocumentSize(length, length - 1),) * (documents * recipe.batch.micro_batch)


def largest_micro_batch(
    dataset: TokenDataset, recipe: Recipe, *, padding_free: bool, ranks: int, global_batch: int | None = None
) -> tuple[DocumentSize, ...]:
    """The documents of the first epoch's micro-batch with the most positions and, among equal ones, the most labels.

    Args:
        global_batch: of the resumed run; None: that of the recipe.
    """
    plan = _plan(dataset, recipe, padding_free=padding_free, ranks=ranks, global_batch=global_batch)
    steps = min(plan.steps_per_epoch, _all_steps(plan, recipe))
    # kto computes an answer and its mismatched one in separate batches.
    members = 1 if recipe.method.task == "singles" else dataset.group_size
    tokens, labels = (
        each.reshape(-1, dataset.group_size)[:, :members] for each in (dataset.lengths, dataset.label_counts)
    )
    epoch, per_device = plan.first_epoch, recipe.batch.micro_batch
    used = slice(min(len(epoch), steps * plan.global_batch))
    starts = plan.micro_batch_starts(per_device, used.stop)
    if padding_free:
        positions = np.add.reduceat(epoch.sums(tokens.sum(axis=1))[used], starts)
    else:
        documents = members * np.diff(starts, append=used.stop)
        positions = documents * np.maximum.reduceat(epoch.sums(tokens.max(axis=1))[used], starts)
    labelled = np.add.reduceat(epoch.sums(labels.sum(axis=1))[used], starts)
    most = np.flatnonzero(positions == positions.max())
    index = int(most[labelled[most].argmax()])
    begin, end = np.append(starts, used.stop)[index : index + 2].tolist()
    groups = [group for sequence in epoch.sequences(begin, end) for group in sequence]
    return tuple(
        DocumentSize(int(tokens[group, each]), int(labels[group, each])) for group in groups for each in range(members)
    )


def steps_of_data(
    dataset: TokenDataset, recipe: Recipe, *, padding_free: bool, ranks: int, global_batch: int | None = None
) -> Steps:
    """Averages over the steps, from tokens on disk.

    Args:
        global_batch: of the resumed run; None: that of the recipe.
    """
    plan = _plan(dataset, recipe, padding_free=padding_free, ranks=ranks, global_batch=global_batch)
    each, steps = plan.steps_per_epoch, _all_steps(plan, recipe)
    return Steps(
        steps, float(dataset.lengths.sum()) / each, float(dataset.label_counts.sum()) / each,
        dataset.rows_by_length(),
        0.0 if padding_free else plan.padding_ratio(recipe.batch.micro_batch), min(1.0, each / steps), per_epoch=each,
    )  # fmt: skip


def steps_of_full_rows(recipe: Recipe, documents: tuple[DocumentSize, ...], ranks: int) -> Steps:
    """Averages over the steps if the data are unknown: every micro-batch is like `documents`."""
    # kto: each row has a mismatched answer beside it.
    times = recipe.batch.accumulate * ranks * (2 if recipe.method.task == "singles" else 1)
    return Steps(
        recipe.optim.max_steps, times * float(sum(each.tokens for each in documents)),
        times * float(sum(each.labels for each in documents)), histogram([each.tokens for each in documents]),
        0.0, 1.0,
    )  # fmt: skip


def _plan(
    dataset: TokenDataset, recipe: Recipe, *, padding_free: bool, ranks: int, global_batch: int | None
) -> BatchPlan:
    return BatchPlan(
        dataset.lengths, dataset.label_counts,
        capacity=recipe.capacity(padding_free=padding_free),
        global_batch=global_batch or recipe.batch.micro_batch * recipe.batch.accumulate * ranks,
        seed=recipe.seed, group_size=dataset.group_size,
    )  # fmt: skip


def _all_steps(plan: BatchPlan, recipe: Recipe) -> int:
    return recipe.optim.max_steps or math.ceil((recipe.optim.epochs or 1) * plan.steps_per_epoch)
