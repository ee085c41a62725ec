"""ASFT's start weights: what they compute, and that training finds its own weights again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ascendtune.core.errors import RecipeError
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.batch import DeviceBatch
from ascendtune.train.objective.head import PLAIN
from ascendtune.train.objective.start_weights import StartWeights


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, input_ids: torch.Tensor, **_: object) -> object:
        class Output:
            last_hidden_state = self.dropout(self.table(input_ids))

        return Output


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base_model = Decoder()
        self.head = nn.Linear(4, 11)

    def get_output_embeddings(self) -> nn.Module:
        return self.head


def batch() -> DeviceBatch:
    ids = torch.arange(6)[None]
    return DeviceBatch(ids, None, None, None, target_index=torch.tensor([1, 4]), targets=torch.tensor([2, 5]))


@pytest.mark.parametrize("frozen", [False, True], ids=["full", "frozen head"])
def test_anchor_keeps_the_start_while_the_model_moves(frozen: bool) -> None:
    torch.manual_seed(0)
    model = Model()
    model.head.requires_grad_(not frozen)
    expected = model.head(model.base_model.table(torch.tensor([1, 4]))).detach()
    start = StartWeights(model)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(1.0)
    moved = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    found = start.anchor(batch(), PLAIN, 0.3)
    assert torch.equal(found.output(slice(None)), expected) and found.weight == 0.3
    torch.testing.assert_close(found.output(slice(1, 2)), expected[1:])
    assert model.training
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, moved[name])


def test_casts_of_autocast_are_not_mixed_up() -> None:
    torch.manual_seed(0)
    model = Model()
    start = StartWeights(model)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    with torch.autocast("cpu", torch.bfloat16):
        hidden = torch.randn(2, 4)
        assert not model.head(hidden).any()
        found = start.anchor(batch(), PLAIN, 1.0).output(slice(None))
        after = model.head(hidden)
    assert found.dtype == torch.bfloat16 and found.any()
    assert not after.any() and after.requires_grad


@pytest.mark.parametrize("strategy", ["fsdp", "deepspeed"])
def test_strategies_that_divide_weights_are_refused(strategy: str) -> None:
    recipe = {
        "model": {"path": "m"},
        "data": {"train": "d"},
        "method": {"sft": {"loss": "asft"}},
        "parallel": {"strategy": strategy},
    }
    with pytest.raises(RecipeError, match="asft"):
        Recipe.check(recipe)
    recipe["parallel"] = {"strategy": "ddp"}
    assert Recipe.check(recipe).needs_whole_weights is not None
