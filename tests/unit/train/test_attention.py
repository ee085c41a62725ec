"""Every attention against the written-out one, and each document against itself alone."""

import pytest
import torch
from torch import nn

from ascendtune.core.errors import RecipeError
from ascendtune.train.attention.interface import eager_attention, sdpa_attention

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
    for argument in ({"softcap": 0.5}, {"s_aux": sinks}):
        with pytest.raises(RecipeError) as caught:
            sdpa_attention(Layer(), *inputs, None, **argument)
        assert caught.value.code == "attention-lacks-softcap"
