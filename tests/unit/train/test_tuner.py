"""The arithmetic of tuners, on single matrices."""

from __future__ import annotations

import pytest
import torch

from ascendtune.train.optimizer import parameter_groups
from ascendtune.train.tuner import fold, pissa
from ascendtune.train.tuner.freeze import decoder_blocks


@pytest.mark.parametrize("whole_up_to", [1024, 0])
def test_the_principal_part(monkeypatch, whole_up_to):
    """Of a weight whose singular values are known: by the whole decomposition, and by subspace iteration."""
    monkeypatch.setattr(pissa, "_WHOLE_UP_TO", whole_up_to)
    torch.manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(size, 20)).Q for size in (40, 30))
    values = 0.7 ** torch.arange(20.0)
    a, b = pissa.principal_part((left * values) @ right.T, 4, scale=2.0)
    assert (a.shape, b.shape) == ((4, 30), (40, 4))
    torch.testing.assert_close(2.0 * b @ a, (left[:, :4] * values[:4]) @ right[:, :4].T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [5, 40])
def test_a_sum_of_adapters(rank):
    torch.manual_seed(0)
    pairs = [(torch.randn(2, 30), torch.randn(20, 2)), (torch.randn(3, 30), torch.randn(20, 3))]
    a, b = fold.add(pairs, rank)
    assert (a.shape, b.shape) == ((rank, 30), (20, rank))
    torch.testing.assert_close(b @ a, sum(up @ down for down, up in pairs), rtol=1e-5, atol=1e-5)


def test_a_small_difference_leaves_as_small_matrices():
    torch.manual_seed(0)
    a, b = torch.randn(4, 30), torch.randn(20, 4)
    change = 1e-3 * torch.randn(20, 4)
    down, up = fold.add([(a, b + change), (a, -b)], 8)
    assert max(down.abs().max(), up.abs().max()) < 0.2
    rounded = up.bfloat16().float() @ down.bfloat16().float()
    assert (rounded - change @ a).norm() < 0.01 * (change @ a).norm()


def test_groups_of_parameters():
    names = ["x.lora_A.default.weight", "x.lora_B.default.weight", "norm.weight", "x.lora_B.default.bias", "frozen"]
    shapes = [(2, 4), (4, 2), (4,), (4,), (4, 4)]
    named = [(name, torch.nn.Parameter(torch.zeros(shape))) for name, shape in zip(names, shapes, strict=True)]
    named[-1][1].requires_grad_(False)
    found = {
        name: (group["weight_decay"], group["learning_rate_factor"])
        for group in parameter_groups(named, 0.1, plus_ratio=16.0)
        for name, parameter in named
        if any(parameter is each for each in group["params"])
    }
    assert list(map(found.get, names)) == [(0.1, 1.0), (0.1, 16.0), (0.0, 1.0), (0.0, 16.0), None]
    assert [len(group["params"]) for group in parameter_groups(named, 0.1)] == [2, 2]


def test_blocks_are_not_experts():
    block = torch.nn.Module()
    block.experts = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(8))
    model = torch.nn.ModuleDict({"few": torch.nn.ModuleList([torch.nn.Linear(2, 2)])})
    model["inner"] = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([block, block, block])})
    assert decoder_blocks(model)[0] == "inner.layers"
