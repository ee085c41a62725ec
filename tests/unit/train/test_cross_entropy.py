import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ascendtune.train.objective.embedding_noise import EmbeddingNoise
from ascendtune.train.objective.head import HeadForm
from ascendtune.train.objective.logit_chunks import add_weight_gradient
from ascendtune.train.objective.sft import linear_cross_entropy
from ascendtune.train.objective.start_weights import Anchor
from ascendtune.train.objective.token_weight import dft_weight, eaft_weight


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


@pytest.mark.long
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
@pytest.mark.parametrize("weigh", [None, dft_weight], ids=["plain", "weighted"])
def test_no_position_costs_nothing_and_still_has_a_gradient(wrap, weigh):
    hidden, head, targets = case()
    loss = linear_cross_entropy(hidden[:0], wrap(head), targets[:0], weigh=weigh)
    assert loss.item() == 0
    assert all(gradient.abs().sum() == 0 for gradient in gradients(hidden, head, loss))


def test_a_frozen_head_gets_no_gradient():
    hidden, head, targets = case()
    head.requires_grad_(False)
    expected = nn.functional.cross_entropy(head(hidden), targets, reduction="sum")
    found = linear_cross_entropy(hidden, head, targets)
    (ours,), (theirs,) = (torch.autograd.grad(loss, [hidden]) for loss in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


class Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function._schema.name)
        return function(*args, **(kwargs or {}))


def test_a_gradient_in_another_type_is_added_where_it_is():
    """`total[part] += x` assigns the sum to itself, too: an NPU copies it, all of the head's gradient."""
    generator = torch.Generator().manual_seed(0)
    grad, hidden = (torch.randn(6, size, generator=generator).bfloat16() for size in (40, 8))
    total = torch.ones(40, 8)
    with Operations() as operations:
        add_weight_gradient(total, grad, hidden)
    assert operations.names.count("aten::add_") == 1 and "aten::copy_" not in operations.names
    assert torch.equal(total, 1 + (grad.t() @ hidden).float())


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


def reference_dft(logits, targets):
    """-sg(p) log p, summed (Wu et al. 2025)."""
    probabilities = torch.softmax(logits, -1).gather(1, targets[:, None]).squeeze(1)
    return -(probabilities.detach() * probabilities.log()).sum()


def reference_eaft(logits, targets, alpha=1.0):
    """-(H / ln 20)^alpha log p, summed; H of the renormalised 20 largest probabilities (Diao et al. 2026)."""
    probabilities = torch.softmax(logits, -1)
    largest = probabilities.detach().sort(-1, descending=True).values[:, :20]
    largest = largest / largest.sum(-1, keepdim=True)
    entropy = -(largest * largest.log()).sum(-1)
    return -((entropy / math.log(20)) ** alpha * probabilities.gather(1, targets[:, None]).squeeze(1).log()).sum()


@pytest.mark.parametrize("wrap", [lambda head: head, Wrapped], ids=["fused", "chunkwise"])
@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize(
    ("weigh", "reference"),
    [
        (dft_weight, reference_dft),
        (eaft_weight(1.0), reference_eaft),
        (eaft_weight(2.5), lambda logits, targets: reference_eaft(logits, targets, 2.5)),
    ],
    ids=["dft", "eaft", "eaft-2.5"],
)
def test_weighted_losses_equal_the_papers_formulas_in_fp64(wrap, cap, weigh, reference):
    hidden, head, targets = case()
    logits = 3 * head(hidden)
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    found = linear_cross_entropy(hidden, wrap(head), targets, HeadForm(3, cap), weigh)
    expected = reference(logits, targets)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)
    for ours, theirs in zip(gradients(hidden, head, 3 * found), gradients(hidden, head, 3 * expected), strict=True):
        # Near the cap the slope, 1 - (logit / cap)², has few digits in fp32, and is small.
        assert (ours - theirs).abs().max() <= 1e-6 * theirs.abs().max()


@pytest.mark.parametrize("wrap", [lambda head: head, Wrapped], ids=["fused", "chunkwise"])
@pytest.mark.parametrize("cap", [None, 1.5])
def test_anchored_loss_equals_the_papers_formula_in_fp64(wrap, cap):
    """-sg(p) log p + 0.3 · Σ q (log q - log p), summed over positions (Zhu et al. 2025)."""

    def logits_of(output):
        return 3 * output if cap is None else cap * torch.tanh(3 * output / cap)

    hidden, head, targets = case()
    before = torch.randn(len(hidden), head.out_features, dtype=head.weight.dtype)
    anchor = Anchor(0.3, lambda part: before[part])
    found = linear_cross_entropy(hidden, wrap(head), targets, HeadForm(3, cap), dft_weight, anchor)
    now, q = torch.log_softmax(logits_of(head(hidden)), -1), torch.softmax(logits_of(before), -1)
    expected = reference_dft(logits_of(head(hidden)), targets) + 0.3 * (q * (q.log() - now)).sum()
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)
    for ours, theirs in zip(gradients(hidden, head, 3 * found), gradients(hidden, head, 3 * expected), strict=True):
        assert (ours - theirs).abs().max() <= 1e-6 * theirs.abs().max()


def test_a_certain_prediction_counts_nothing_for_eaft_and_a_uniform_one_counts_whole():
    logits = torch.zeros(2, 50)
    logits[0, 3] = 200.0
    torch.testing.assert_close(eaft_weight(0.5)(logits, torch.zeros(2)), torch.tensor([0.0, 1.0]))
    assert eaft_weight(1.0)(torch.zeros(1, 5), torch.zeros(1)).item() == pytest.approx(1)


@pytest.mark.parametrize(("ends", "lengths"), [(None, [40]), ((0, 10, 40), [10, 30])])
def test_noise_on_embeddings_is_uniform_within_the_papers_bound(ends, lengths):
    """alpha / sqrt(L · d) (Jain et al. 2023); a uniform variable on ±b has the variance b² / 3."""
    torch.manual_seed(0)
    table, noise = nn.Embedding(9, 256), EmbeddingNoise(5.0)
    ids = torch.randint(0, 9, (1, 40))
    plain = table(ids)
    table.register_forward_hook(noise)
    noise.document_ends = ends
    difference = (table(ids) - plain)[0]
    at = 0
    for length in lengths:
        bound, found = 5.0 / math.sqrt(length * 256), difference[at : at + length]
        assert 0.98 * bound < found.abs().max() <= bound * (1 + 1e-4)
        assert found.pow(2).mean().item() == pytest.approx(bound**2 / 3, rel=0.06)
        at += length
    table.eval()
    assert torch.equal(table(ids), plain)
