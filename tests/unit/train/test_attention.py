"""Every attention against the written-out one, and each document against itself alone."""

from functools import wraps

import pytest
import torch
from torch import nn

from ascendtune.core.errors import MachineError, RecipeError
from ascendtune.train.attention.interface import (
    eager_attention,
    register,
    sdpa_attention,
    sdpa_fp32_attention,
    varlen_attention,
)
from ascendtune.train.attention.sinks import attend_with_sinks

HEADS, KEY_VALUE_HEADS, DIMENSION = 4, 2, 8
BORDERS = (0, 5, 6, 13)


class Layer(nn.Module):
    num_key_value_groups = HEADS // KEY_VALUE_HEADS


def tensors(batch=1, tokens=BORDERS[-1], seed=0):
    torch.manual_seed(seed)
    shapes = [(batch, heads, tokens, DIMENSION) for heads in (HEADS, KEY_VALUE_HEADS, KEY_VALUE_HEADS)]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("window", [None, 3, 100])
@pytest.mark.parametrize("borders", [None, BORDERS, (0, 13)])
def test_sdpa_equals_the_written_out_formula_and_its_gradient(window, borders):
    results = []
    for attention in (eager_attention, sdpa_attention):
        inputs = tensors()
        output, _ = attention(Layer(), *inputs, None, cu_seqlens=borders, sliding_window=window)
        (output * torch.arange(output.numel()).reshape(output.shape)).sum().backward()
        results.append([output, *(each.grad for each in inputs)])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("attention", [eager_attention, sdpa_attention])
def test_a_document_in_company_is_what_it_is_alone(attention):
    inputs = tensors()
    together, _ = attention(Layer(), *inputs, None, cu_seqlens=BORDERS)
    for start, end in ((0, 5), (5, 6), (6, 13)):
        alone, _ = attention(Layer(), *(each[:, :, start:end] for each in inputs), None)
        torch.testing.assert_close(together[:, start:end], alone, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("attention", [eager_attention, sdpa_attention])
def test_padding_on_the_right_is_never_seen(attention):
    inputs = tensors(batch=2)
    before, _ = attention(Layer(), *inputs, None)
    with torch.no_grad():
        for each in inputs:
            each[1, :, 9:] = 1e3
    after, _ = attention(Layer(), *inputs, None)
    torch.testing.assert_close(after[1, :9], before[1, :9])


def test_a_window_sees_itself_and_what_is_left_of_it():
    query, key, value = tensors(tokens=6)
    output, _ = eager_attention(Layer(), query, key, value, None, sliding_window=1)
    # A window of one: each token sees only itself, so its output is its own value.
    own = value.repeat_interleave(2, dim=1).transpose(1, 2)
    torch.testing.assert_close(output, own)


def test_autocast_leaves_fp32_where_it_is_promised():
    """torch's autocast for CPU makes bf16 of whatever SDPA is given."""
    found = []
    for is_enabled in (False, True):
        inputs = [each.detach().float().requires_grad_() for each in tensors()]
        with torch.autocast("cpu", torch.bfloat16, enabled=is_enabled):
            output, _ = sdpa_fp32_attention(Layer(), *inputs, None, cu_seqlens=BORDERS)
        output.square().sum().backward()
        found.append([output, *(each.grad for each in inputs)])
    for without, within in zip(*found, strict=True):
        assert torch.equal(without, within)


def test_soft_capping_and_sinks_are_computed_or_refused():
    inputs = tensors()
    sinks = torch.zeros(HEADS, dtype=torch.float64)
    capped, _ = eager_attention(Layer(), *inputs, None, softcap=0.5)
    sunk, _ = eager_attention(Layer(), *inputs, None, s_aux=sinks)
    plain, _ = eager_attention(Layer(), *inputs, None)
    assert not torch.allclose(capped, plain) and not torch.allclose(sunk, plain)
    # The first token sees itself with score z and a sink with score 0: weight sigmoid(z).
    score = (inputs[0][0, 0, 0] * inputs[1][0, 0, 0]).sum() * DIMENSION**-0.5
    torch.testing.assert_close(sunk[0, 0, 0], inputs[2][0, 0, 0] * torch.sigmoid(score))
    assert torch.equal(sdpa_attention(Layer(), *inputs, None, s_aux=sinks)[0], sunk)
    with pytest.raises(RecipeError) as caught:
        sdpa_attention(Layer(), *inputs, None, softcap=0.5)
    assert caught.value.code == "attention-lacks-softcap"


class WrittenOut:
    """An attention in fp64 that gives what a fused one gives, with the derivative that a fused one computes."""

    scale = 0.3

    def scores(self, query, key):
        hidden = torch.ones(len(query), len(key)).triu(1).bool()
        scores = torch.einsum("qhd,khd->hqk", query, key) * self.scale
        return scores.masked_fill(hidden, float("-inf"))

    def forward(self, query, key, value):
        scores = self.scores(query, key)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value), scores.logsumexp(-1)

    def backward(self, gradient, inputs, output, log_sums):
        query, key, value = inputs
        weights = (self.scores(query, key) - log_sums[..., None]).exp()
        of_weights = torch.einsum("qhd,khd->hqk", gradient, value)
        of_scores = weights * (of_weights - (gradient * output).sum(-1).t()[..., None]) * self.scale
        return (
            torch.einsum("hqk,khd->qhd", of_scores, key),
            torch.einsum("hqk,qhd->khd", of_scores, query),
            torch.einsum("hqk,qhd->khd", weights, gradient),
        )


def test_sinks_beside_a_fused_attention_have_the_derivative_of_the_formula():
    torch.manual_seed(1)
    query, key, value = (torch.randn(9, 3, 4, dtype=torch.float64) for _ in range(3))
    sinks = torch.tensor([-2.0, 0.0, 3.0], dtype=torch.float64)
    found, expected = ([each.clone().requires_grad_() for each in (query, key, value, sinks)] for _ in range(2))
    output = attend_with_sinks(WrittenOut(), *found)
    heads_first = (each.transpose(0, 1)[None] for each in expected[:3])
    reference, _ = eager_attention(nn.Module(), *heads_first, None, scaling=WrittenOut.scale, s_aux=expected[3])
    weights = torch.randn(9, 3, 4, dtype=torch.float64)
    (output * weights).sum().backward()
    (reference[0] * weights).sum().backward()
    torch.testing.assert_close(output, reference[0], rtol=1e-6, atol=1e-6)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-6, atol=1e-6)


def flash(q, k, v, ends, longest, *, scale=None, window=None):
    """What the kernel computes, per document: q (tokens, heads, head_dim), k and v with fewer heads."""
    assert longest == max(ends.diff())
    q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))
    layer, borders = Layer(), tuple(ends.tolist())
    output, _ = eager_attention(layer, q, k, v, None, cu_seqlens=borders, scaling=scale, sliding_window=window)
    return output[0]


def of_torch_2_10(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, return_aux=None):
    assert is_causal
    return flash(query, key, value, cu_seq_q, max_q)


def of_torch_2_11(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)
):
    left, right = window_size
    assert right == 0
    return flash(query, key, value, cu_seq_q, max_q, scale=scale, window=None if left == -1 else left + 1)


def of_torch_2_12(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1),
    enable_gqa=False, seqused_k=None, block_table=None, num_splits=None,
):  # fmt: skip
    assert enable_gqa, "the heads differ in number"
    return of_torch_2_11(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=scale, window_size=window_size)


@pytest.mark.parametrize("scale", [None, DIMENSION**-0.5, 0.7])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("released", [of_torch_2_10, of_torch_2_11, of_torch_2_12])
def test_varlen_calls_what_each_torch_has(monkeypatch, released, window, scale):
    calls = []

    @wraps(released)
    def called(*args, **options):
        calls.append(options)
        return released(*args, **options)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", called)
    inputs = [each.detach().bfloat16() for each in tensors()]
    ends = torch.tensor(BORDERS, dtype=torch.int32)
    options = {"cu_seqlens": BORDERS, "sliding_window": window, "scaling": scale}
    found, _ = varlen_attention(Layer(), *inputs, None, cu_seqlens_device=ends, **options)
    expected, _ = eager_attention(Layer(), *inputs, None, **options)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    # What 2.10 does not have is left to SDPA.
    assert bool(calls) == (released is not of_torch_2_10 or (window is None and scale != 0.7))


def test_varlen_computes_what_autocast_leaves_in_two_types(monkeypatch):
    """Rotated queries and keys of a model with fp32 weights are fp32, its values bf16."""
    types = []

    def called(query, key, value, *args, **options):
        types.append([query.dtype, key.dtype, value.dtype])
        return of_torch_2_12(query, key, value, *args, **options)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", wraps(of_torch_2_12)(called))
    query, key, value = (each.detach().float() for each in tensors())
    ends = torch.tensor(BORDERS, dtype=torch.int32)
    with torch.autocast("cpu", torch.bfloat16):
        varlen_attention(Layer(), query, key, value.bfloat16(), None, cu_seqlens=BORDERS, cu_seqlens_device=ends)
    assert types == [[torch.bfloat16] * 3]


def test_varlen_gives_the_kernel_narrow_values_with_zeros(monkeypatch):
    """Those of DeepSeek, MiniCPM3 and GLM 4.7 Flash."""
    widths = []

    def called(query, key, value, *args, **options):
        widths.append((query.shape[-1], value.shape[-1]))
        return of_torch_2_12(query, key, value, *args, **options)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", wraps(of_torch_2_12)(called))
    torch.manual_seed(0)
    sizes = (HEADS, 24), (KEY_VALUE_HEADS, 24), (KEY_VALUE_HEADS, 16)
    inputs = [torch.randn(1, heads, BORDERS[-1], each, dtype=torch.bfloat16) for heads, each in sizes]
    ends = torch.tensor(BORDERS, dtype=torch.int32)
    found, _ = varlen_attention(Layer(), *inputs, None, cu_seqlens=BORDERS, cu_seqlens_device=ends)
    expected, _ = eager_attention(Layer(), *inputs, None, cu_seqlens=BORDERS)
    assert widths == [(24, 24)]
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("width", "of_values"), [(16, 24), (12, 12), (512, 512)])
def test_heads_that_the_flash_kernel_does_not_take_go_to_sdpa(monkeypatch, width, of_values):
    """Values that are wider, and widths that it has no kernel for (Gemma 4)."""

    def refusing(query, key, value, *_, **__):
        raise RuntimeError("v must have shape (total_k, num_heads_k, head_size_og)")

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", refusing)
    torch.manual_seed(0)
    sizes = (HEADS, width), (KEY_VALUE_HEADS, width), (KEY_VALUE_HEADS, of_values)
    inputs = [torch.randn(1, heads, BORDERS[-1], each, dtype=torch.bfloat16) for heads, each in sizes]
    ends = torch.tensor(BORDERS, dtype=torch.int32)
    found, _ = varlen_attention(Layer(), *inputs, None, cu_seqlens=BORDERS, cu_seqlens_device=ends)
    expected, _ = eager_attention(Layer(), *inputs, None, cu_seqlens=BORDERS)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_varlen_of_a_torch_that_lacks_it_is_refused(monkeypatch):
    monkeypatch.setattr("ascendtune.train.attention.interface.find_spec", lambda name: None)
    with pytest.raises(MachineError) as caught:
        register("varlen")
    assert caught.value.code == "package-missing"
