"""KTO of one micro-batch, against its formula in float64 from the same model's log-probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from ascendtune.recipe.method import PreferenceSection
from ascendtune.train.batch import AnswerGroups, DeviceBatch
from ascendtune.train.objective.double_float import to_double_float
from ascendtune.train.objective.preference import KtoObjective
from ascendtune.train.strategy.base import RootModule

BETA, GOOD_WEIGHT, BAD_WEIGHT = 0.3, 1.5, 0.5
GOOD = np.array([1.0, 0.0, 1.0])
RATIO = np.array([2.0, -1.0, 0.5])
"""Of each answer: its log-probability under the policy minus that under the reference."""


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=20, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        bos_token_id=None, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def answers(model: Any, ids: torch.Tensor, ratio: NDArray[np.float64]) -> DeviceBatch:
    """Rows of which all but the first token are labelled, with a reference so far from the policy as `ratio` says."""
    rows, length = ids.shape
    with torch.no_grad():
        log_probs = model(input_ids=ids).logits.double().log_softmax(-1)
    sums = log_probs[:, :-1].gather(-1, ids[:, 1:, None]).sum((1, 2))
    index = torch.arange(rows * length).view(rows, length)[:, :-1].flatten()
    groups = AnswerGroups(
        documents=rows,
        target_slot=torch.arange(rows * (length - 1)),
        most_labels=length - 1,
        label_counts=torch.full((rows,), length - 1.0),
        last_index=torch.arange(1, rows + 1) * length - 1,
        values=torch.tensor(GOOD).float(),
        reference=to_double_float((sums - torch.tensor(ratio)).float()),
    )
    return DeviceBatch(ids, None, None, None, index, ids[:, 1:].flatten(), groups)


@pytest.mark.parametrize(
    ("drift", "divergence"),
    [
        pytest.param([0.4, 1.0, 0.7], 0.7, id="above the reference"),
        # An estimate from few rows may be below 0, the divergence itself cannot.
        pytest.param([-0.4, -2.0, 0.3], 0.0, id="below the reference"),
    ],
)
def test_the_divergence_is_the_mean_of_mismatched_answers_and_never_negative(
    model: Any, drift: list[float], divergence: float
) -> None:
    options = PreferenceSection(loss="kto", beta=BETA, desirable_weight=GOOD_WEIGHT, undesirable_weight=BAD_WEIGHT)
    objective = KtoObjective(model, options, head_form=None, mean_over_ranks=lambda total, count: total / count)
    ids = torch.randint(3, 20, (2, 3, 6), generator=torch.Generator().manual_seed(1))
    objective.begin([answers(model, ids[1], np.array(drift))], RootModule(model))
    found = objective(answers(model, ids[0], RATIO))
    sign = np.where(GOOD == 1, 1, -1)
    weight = np.where(GOOD == 1, GOOD_WEIGHT, BAD_WEIGHT)
    losses = weight * (1 - 1 / (1 + np.exp(-BETA * sign * (RATIO - divergence))))
    assert found.loss.item() == pytest.approx(losses.sum(), rel=1e-4)
    extras = {name: float(value) for name, value in found.extras.items()}
    assert extras["kl"] == pytest.approx(3 * divergence, abs=1e-4)
    recorded = objective.to_metrics({name: value / 3 for name, value in extras.items()})
    assert recorded["kl"] == pytest.approx(divergence, abs=1e-4)
    assert recorded["chosen_reward"] == pytest.approx(BETA * 1.25, abs=1e-4)
    assert recorded["rejected_reward"] == pytest.approx(-BETA, abs=1e-4)
    assert recorded["margin"] == pytest.approx(BETA * 2.25, abs=1e-4)
