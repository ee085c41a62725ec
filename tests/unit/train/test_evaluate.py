"""The evaluation loss, against the same number from the table itself."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests.unit.train.table_model import LENGTHS, FirstOfTwo, MakeLoop
from torch import nn

from ascendtune.data.plan import BatchPlan
from ascendtune.train.batch import DeviceBatch
from ascendtune.train.evaluate import evaluate
from ascendtune.train.loop import Loop
from ascendtune.train.objective.base import LossOutput


def loss_of(loop: Loop) -> float:
    assert loop.held_out is not None
    return evaluate(loop.held_out, loop.objective, loop.root, loop.precision, lambda done, total: None).loss


def expected(loop: Loop, rows: range) -> float:
    """Sum of the cross-entropies of all next tokens of `rows`, in fp64."""
    table, total = loop.objective.model.weight.detach().double(), 0.0
    for row in rows:
        for before, after in pairwise(loop.batches.dataset.row(row)[0].tolist()):
            total -= float(table[before].log_softmax(-1)[after])
    return total


LABELLED = sum(LENGTHS) - len(LENGTHS)


def test_the_loss_is_the_mean_over_all_labelled_tokens(make_loop: MakeLoop) -> None:
    loop, _ = make_loop()
    assert loss_of(loop) == pytest.approx(expected(loop, range(len(LENGTHS))) / LABELLED, rel=1e-6)


def test_the_perplexity_is_that_of_the_mean_over_all_labelled_tokens(make_loop: MakeLoop) -> None:
    loop, _ = make_loop()
    assert loop.held_out is not None
    extras = evaluate(loop.held_out, loop.objective, loop.root, loop.precision, lambda done, total: None).extras
    mean = expected(loop, range(len(LENGTHS))) / LABELLED
    assert extras == {"perplexity": pytest.approx(math.exp(mean), rel=1e-5)}


def test_each_data_set_of_a_mixture_has_its_own_means(make_loop: MakeLoop) -> None:
    loop, _ = make_loop()
    assert loop.held_out is not None
    dataset, whole = loop.held_out.dataset, loss_of(loop)
    sizes = {"a": 2, "none": 0, "b": len(LENGTHS) - 2}
    plan = BatchPlan(
        dataset.lengths, dataset.label_counts, capacity=max(LENGTHS), global_batch=2, seed=None, datasets=sizes,
        apart=True,
    )  # fmt: skip
    mixture = replace(loop.held_out, plan=plan, per_device=2)
    found = evaluate(mixture, loop.objective, loop.root, loop.precision, lambda done, total: None)
    assert found.loss == pytest.approx(whole, rel=1e-6) and found.labelled_tokens == LABELLED
    for name, rows in (("a", range(2)), ("b", range(2, len(LENGTHS)))):
        of_set, labelled = found.of_datasets[name], sum(LENGTHS[row] - 1 for row in rows)
        mean = expected(loop, rows) / labelled
        assert of_set.labelled_tokens == labelled and of_set.loss == pytest.approx(mean, rel=1e-6)
        assert of_set.extras == {"perplexity": pytest.approx(math.exp(mean), rel=1e-5)}
    assert found.of_datasets.keys() == {"a", "b"}


def test_a_perplexity_beyond_the_largest_number_is_infinite(make_loop: MakeLoop) -> None:
    loop, _ = make_loop()
    assert loop.held_out is not None
    with torch.no_grad():
        loop.objective.model.weight.fill_(0)
        loop.objective.model.weight[:, 0] = 1e6
    found = evaluate(loop.held_out, loop.objective, loop.root, loop.precision, lambda done, total: None)
    assert found.loss > 710 and found.extras["perplexity"] == math.inf


def test_a_rank_without_work_adds_nothing(make_loop: MakeLoop) -> None:
    """Seven rows on two ranks, whose last batch has one: rank 1 has nothing to do there."""
    strategy = FirstOfTwo()
    strategy.rank = 1
    loop, _ = make_loop(strategy)
    assert loop.held_out is not None
    plan = loop.held_out.plan
    ((last,),) = plan.batch(plan.steps_per_epoch - 1)
    (idle,) = loop.held_out.micro_batches(plan.batch(plan.steps_per_epoch - 1))
    assert idle.weight == 0 and len(idle.targets) == 0
    mine = [sequence[0] for step in range(plan.steps_per_epoch) for sequence in plan.batch(step)[1:]]
    assert last not in mine
    total = sum(expected(loop, range(row, row + 1)) for row in mine)
    assert loss_of(loop) == pytest.approx(total / LABELLED, rel=1e-6)


def test_evaluation_switches_dropout_off_and_on_again(make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, _ = make_loop()
    modes = []

    def forward(batch: DeviceBatch) -> LossOutput:
        modes.append((loop.objective.training, loop.objective.model.training, torch.is_grad_enabled()))
        return LossOutput(torch.zeros(()), {})

    monkeypatch.setattr(loop.objective, "forward", forward)
    loss_of(loop)
    assert set(modes) == {(False, False, False)} and len(modes) == len(LENGTHS)
    assert loop.objective.training and loop.objective.model.training


def test_progress_is_announced_before_each_global_batch(make_loop: MakeLoop) -> None:
    loop, _ = make_loop()
    assert loop.held_out is not None and isinstance(loop.objective, nn.Module)
    announced: list[tuple[int, int]] = []
    evaluate(
        loop.held_out, loop.objective, loop.root, loop.precision, lambda done, total: announced.append((done, total))
    )
    batches = loop.held_out.plan.steps_per_epoch
    assert announced == [(done, batches) for done in range(batches)]
