"""Every loss against its closed form at step 0, and against formulas written out in float64, in value and gradient."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ascendtune.recipe.method import PreferenceSection
from ascendtune.train.objective.double_float import DoubleFloat, row_sums, to_double_float
from ascendtune.train.objective.preference_loss import PAIRED, Pairs, kto
from ascendtune.train.objective.reward import pairwise_loss

Array = NDArray[np.float64]

BETA, GAMMA = 0.3, 0.7


def sigma(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


# Each formula gives (loss, d loss/d chosen, d loss/d rejected) for summed log-probabilities c, r, references rc, rr and
# lengths lc, lr, with derivatives worked out by hand.


def _sigmoid(c: Array, r: Array, rc: Array, rr: Array, lc: Array, lr: Array) -> tuple[Array, Array, Array]:
    x = BETA * ((c - rc) - (r - rr))
    slope = -BETA * sigma(-x)
    return np.log1p(np.exp(-x)), slope, -slope


def _smoothed(c: Array, r: Array, rc: Array, rr: Array, lc: Array, lr: Array) -> tuple[Array, Array, Array]:
    x = BETA * ((c - rc) - (r - rr))
    slope = BETA * (-0.9 * sigma(-x) + 0.1 * sigma(x))
    return 0.9 * np.log1p(np.exp(-x)) + 0.1 * np.log1p(np.exp(x)), slope, -slope


def _hinge(c: Array, r: Array, rc: Array, rr: Array, lc: Array, lr: Array) -> tuple[Array, Array, Array]:
    x = 1 - BETA * ((c - rc) - (r - rr))
    slope = np.where(x > 0, -BETA, 0.0)
    return np.maximum(x, 0), slope, -slope


def _ipo(c: Array, r: Array, rc: Array, rr: Array, lc: Array, lr: Array) -> tuple[Array, Array, Array]:
    x = (c - rc) / lc - (r - rr) / lr - 1 / (2 * BETA)
    return x**2, 2 * x / lc, -2 * x / lr


def _orpo(c: Array, r: Array, rc: Array, rr: Array, lc: Array, lr: Array) -> tuple[Array, Array, Array]:
    pc, pr = np.exp(c / lc), np.exp(r / lr)
    x = np.log(pc / (1 - pc)) - np.log(pr / (1 - pr))
    outer = -BETA * sigma(-x)
    return (
        -c / lc + BETA * np.log1p(np.exp(-x)),
        -1 / lc + outer / (1 - pc) / lc,
        -outer / (1 - pr) / lr,
    )


def _simpo(c: Array, r: Array, rc: Array, rr: Array, lc: Array, lr: Array) -> tuple[Array, Array, Array]:
    x = BETA * (c / lc - r / lr) - GAMMA
    slope = -BETA * sigma(-x)
    return np.log1p(np.exp(-x)), slope / lc, -slope / lr


FORMULAS: dict[str, tuple[PreferenceSection, Callable[..., tuple[Array, Array, Array]]]] = {
    "sigmoid": (PreferenceSection(loss="sigmoid", beta=BETA), _sigmoid),
    "smoothed": (PreferenceSection(loss="sigmoid", beta=BETA, label_smoothing=0.1), _smoothed),
    "hinge": (PreferenceSection(loss="hinge", beta=BETA), _hinge),
    "ipo": (PreferenceSection(loss="ipo", beta=BETA), _ipo),
    "orpo": (PreferenceSection(loss="orpo", beta=BETA), _orpo),
    "simpo": (PreferenceSection(loss="simpo", beta=BETA, simpo_gamma=GAMMA), _simpo),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_value_and_gradient_of_a_hundred_random_sets(name: str) -> None:
    options, formula = FORMULAS[name]
    random = np.random.default_rng(7)
    lengths = random.integers(1, 200, (2, 100)).astype(np.float64)
    per_token = -random.gamma(2.0, 0.5, (4, 100)) * random.choice([1, 0.05], (4, 100)) - 1e-3
    chosen, rejected = per_token[0] * lengths[0], per_token[1] * lengths[1]
    # References nearby: far away every loss is flat or linear, and nothing would be tested.
    references = np.stack([chosen, rejected]) + random.normal(0, 3, (2, 100))
    tensors = [torch.tensor(each, requires_grad=True) for each in (chosen, rejected)]
    pairs = Pairs(
        *map(to_double_float, tensors),
        *(torch.tensor(each) for each in lengths),
        *(to_double_float(torch.tensor(each)) for each in references),
    )
    loss = PAIRED[options.loss](pairs, options)
    loss.sum().backward()
    expected, by_chosen, by_rejected = formula(chosen, rejected, *references, *lengths)
    # A Taylor series in orpo ends at 2e-10.
    rtol = 1e-8 if name == "orpo" else 1e-9
    for found, wanted in ((loss.detach(), expected), (tensors[0].grad, by_chosen), (tensors[1].grad, by_rejected)):
        assert found is not None
        np.testing.assert_allclose(found.numpy(), wanted, rtol=rtol, atol=1e-12)


TOKENS = 4000
LONG = {**FORMULAS, "simpo_strong": (PreferenceSection(loss="simpo", beta=10.0, simpo_gamma=5.0), _simpo)}


def _long_answers(answers: int) -> tuple[torch.Tensor, DoubleFloat, Array, Array]:
    """(answers, TOKENS) fp32 log-probabilities; what a reference says of their sums; both as fp64 sums."""
    random = np.random.default_rng(5)
    per_token = (-random.gamma(2.0, 3.0, (answers, TOKENS))).astype(np.float32)
    exact = per_token.astype(np.float64).sum(axis=1)
    reference = exact + random.normal(0, 10, answers)
    high = reference.astype(np.float32)
    low = (reference - high).astype(np.float32)
    tensor = torch.tensor(per_token, requires_grad=True)
    return tensor, DoubleFloat(torch.tensor(high), torch.tensor(low)), exact, reference


@pytest.mark.parametrize("name", LONG)
def test_long_answers_keep_six_digits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, formula = LONG[name]
    for constant, value in (("BETA", options.beta), ("GAMMA", options.simpo_gamma)):
        monkeypatch.setitem(formula.__globals__, constant, value)
    per_token, reference, exact, exact_reference = _long_answers(200)
    half, lengths = slice(0, 100), torch.full((100,), float(TOKENS))
    sums = row_sums(per_token)
    pairs = Pairs(
        sums.at(half), sums.at(slice(100, 200)), lengths, lengths,
        reference.at(half), reference.at(slice(100, 200)),
    )  # fmt: skip
    losses = PAIRED[options.loss](pairs, options)
    losses.sum().backward()
    counts = lengths.double().numpy()
    expected, *slopes = formula(exact[:100], exact[100:], exact_reference[:100], exact_reference[100:], counts, counts)
    np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=1e-6)
    assert per_token.grad is not None
    found = per_token.grad.numpy()
    np.testing.assert_allclose(found, np.concatenate(slopes)[:, None].repeat(TOKENS, 1), rtol=1e-6)


def test_kto_of_long_answers_keeps_six_digits() -> None:
    options = PreferenceSection(loss="kto", beta=BETA)
    per_token, reference, exact, exact_reference = _long_answers(100)
    good, z = np.arange(100) % 2.0, 0.8
    ratio = row_sums(per_token).minus(reference).value
    losses = kto(ratio, torch.tensor(good, dtype=torch.float32), torch.tensor(z), options)
    losses.sum().backward()
    judged = BETA * np.where(good == 1, 1, -1) * (exact - exact_reference - z)
    np.testing.assert_allclose(losses.detach().numpy(), sigma(-judged), rtol=1e-6)
    slope = -np.where(good == 1, 1, -1) * BETA * sigma(judged) * sigma(-judged)
    assert per_token.grad is not None
    np.testing.assert_allclose(per_token.grad.numpy(), slope[:, None].repeat(TOKENS, 1), rtol=1e-6)


def test_kto_of_a_hundred_random_sets() -> None:
    options = PreferenceSection(loss="kto", beta=BETA, desirable_weight=1.5, undesirable_weight=0.5)
    random = np.random.default_rng(8)
    ratio, good, z = random.normal(0, 5, 100), random.integers(0, 2, 100).astype(np.float64), 0.8
    tensor = torch.tensor(ratio, requires_grad=True)
    loss = kto(tensor, torch.tensor(good), torch.tensor(z, dtype=torch.float64), options)
    loss.sum().backward()
    upward, downward = sigma(BETA * (ratio - z)), sigma(BETA * (z - ratio))
    expected = np.where(good == 1, 1.5 * (1 - upward), 0.5 * (1 - downward))
    slope = np.where(good == 1, -1.5 * BETA * upward * (1 - upward), 0.5 * BETA * downward * (1 - downward))
    np.testing.assert_allclose(loss.detach().numpy(), expected, rtol=1e-9)
    assert tensor.grad is not None
    np.testing.assert_allclose(tensor.grad.numpy(), slope, rtol=1e-9)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [("sigmoid", math.log(2)), ("hinge", 1.0), ("ipo", 1 / (4 * BETA**2))],
)
def test_loss_of_a_policy_equal_to_its_reference_is_the_closed_form(loss: str, expected: float) -> None:
    options = PreferenceSection.model_validate({"loss": loss, "beta": BETA})
    log_probs = [to_double_float(torch.tensor(each)) for each in ([-3.0, -50.0], [-7.0, -20.0])]
    pairs = Pairs(*log_probs, *torch.tensor([[2.0, 40.0], [5.0, 11.0]]), *log_probs)
    assert PAIRED[loss](pairs, options).tolist() == pytest.approx([expected, expected])
    alone = kto(torch.zeros(2), torch.tensor([1.0, 0.0]), torch.zeros(()), options)
    assert alone.tolist() == [0.5, 0.5]


def test_odds_of_a_sure_and_of_a_hopeless_answer_have_a_gradient() -> None:
    chosen = torch.tensor([-1e-12, -1e4], requires_grad=True)
    pairs = Pairs(to_double_float(chosen), to_double_float(torch.tensor([-1e4, -1e-12])), torch.ones(2), torch.ones(2))
    PAIRED["orpo"](pairs, PreferenceSection(loss="orpo")).sum().backward()
    assert chosen.grad is not None and torch.isfinite(chosen.grad).all()


def test_reward_loss_of_a_hundred_random_sets() -> None:
    random = np.random.default_rng(9)
    c, r, m = random.normal(0, 2, (3, 100))
    chosen, rejected = (torch.tensor(each, requires_grad=True) for each in (c, r))
    loss = pairwise_loss(chosen, rejected, torch.tensor(m), centring=0.01)
    loss.sum().backward()
    x = c - r - m
    np.testing.assert_allclose(loss.detach().numpy(), np.log1p(np.exp(-x)) + 0.01 * (c + r) ** 2, rtol=1e-9)
    assert chosen.grad is not None and rejected.grad is not None
    np.testing.assert_allclose(chosen.grad.numpy(), -sigma(-x) + 0.02 * (c + r), rtol=1e-9)
    np.testing.assert_allclose(rejected.grad.numpy(), sigma(-x) + 0.02 * (c + r), rtol=1e-9)
