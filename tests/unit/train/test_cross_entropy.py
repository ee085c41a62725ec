import math

import pytest
import torch
from torch import nn

from ascendtune.train.objective.head import HeadForm
from ascendtune.train.objective.sft import linear_cross_entropy


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("ascendtune.train.objective.logit_chunks.softmax_rows", lambda vocabulary: 4)
    monkeypatch.setattr(
        "ascendtune.train.objective.logit_chunks.product_rows", lambda vocabulary, hidden, is_trained: 7
    )


class Wrapped(nn.Module):
    """Not a plain nn.Linear, like a head with an adapter: takes the other path."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear
        self.out_features = linear.out_features

    def forward(self, hidden):
        return self.linear(hidden)


def case(bias=True, positions=23, dtype=torch.float64):
    torch.manual_seed(0)
    head = nn.Linear(16, 101, bias=bias, dtype=dtype)
    return torch.randn(positions, 16, dtype=dtype, requires_grad=True), head, torch.randint(0, 101, (positions,))


def gradients(hidden, head, loss):
    wanted = [hidden, *head.parameters()]
    return torch.autograd.grad(loss, wanted)


@pytest.mark.parametrize("wrap", [lambda head: head, Wrapped], ids=["fused", "chunkwise"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("positions", [1, 7, 23])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
def test_value_and_gradients_equal_torch(wrap, bias, positions, dtype):
    hidden, head, targets = case(bias, positions, dtype)
    expected = nn.functional.cross_entropy(head(hidden), targets, reduction="sum")
    found = linear_cross_entropy(hidden, wrap(head), targets)
    torch.testing.assert_close(found.to(dtype), expected, rtol=1e-6, atol=0)
    for ours, theirs in zip(gradients(hidden, head, 3 * found), gradients(hidden, head, 3 * expected), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrap", [lambda head: head, Wrapped], ids=["fused", "chunkwise"])
@pytest.mark.parametrize("cap", [None, 1.5])
def test_scaled_and_capped_logits_equal_torch(wrap, cap):
    hidden, head, targets = case()
    logits = 3 * head(hidden)
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
        assert (logits.abs() > 0.9 * cap).any(), "no logit shows the cap"
    expected = nn.functional.cross_entropy(logits, targets, reduction="sum")
    found = linear_cross_entropy(hidden, wrap(head), targets, HeadForm(3, cap))
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)
    for ours, theirs in zip(gradients(hidden, head, 3 * found), gradients(hidden, head, 3 * expected), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_uniform_logits_cost_the_log_of_the_vocabulary():
    hidden, head, targets = case()
    with torch.no_grad():
        for each in head.parameters():
            each.zero_()
    assert linear_cross_entropy(hidden, head, targets).item() == pytest.approx(len(targets) * math.log(101), rel=1e-6)


@pytest.mark.parametrize("wrap", [lambda head: head, Wrapped], ids=["fused", "chunkwise"])
def test_the_sum_over_a_million_labels_equals_fp64(wrap, monkeypatch):
    """Each of them counts, in 8,192 chunks, as a large vocabulary makes them."""
    monkeypatch.setattr("ascendtune.train.objective.logit_chunks.softmax_rows", lambda vocabulary: 128)
    torch.manual_seed(0)
    head = nn.Linear(4, 8).requires_grad_(False)
    hidden, targets = torch.randn(1 << 20, 4), torch.randint(0, 8, (1 << 20,))
    expected = nn.functional.cross_entropy(head.double()(hidden.double()), targets, reduction="sum").item()
    with torch.no_grad():
        found = linear_cross_entropy(hidden, wrap(head.float()), targets).item()
    assert found == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("wrap", [lambda head: head, Wrapped], ids=["fused", "chunkwise"])
def test_no_position_costs_nothing_and_still_has_a_gradient(wrap):
    hidden, head, targets = case()
    loss = linear_cross_entropy(hidden[:0], wrap(head), targets[:0])
    assert loss.item() == 0
    assert all(gradient.abs().sum() == 0 for gradient in gradients(hidden, head, loss))


def test_a_frozen_head_gets_no_gradient():
    hidden, head, targets = case()
    head.requires_grad_(False)
    expected = nn.functional.cross_entropy(head(hidden), targets, reduction="sum")
    found = linear_cross_entropy(hidden, head, targets)
    (ours,), (theirs,) = (torch.autograd.grad(loss, [hidden]) for loss in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_under_autocast_products_are_bf16_and_sums_are_not():
    hidden, head, targets = case(dtype=torch.float32, positions=200)
    with torch.autocast("cpu", torch.bfloat16):
        found = linear_cross_entropy(hidden, head, targets)
        expected = nn.functional.cross_entropy(head(hidden).float(), targets, reduction="sum")
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    ours, theirs = gradients(hidden, head, found), gradients(hidden, head, expected)
    for mine, reference in zip(ours, theirs, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, reference, rtol=0.03, atol=0.03)
