"""What is alike on all ranks, and what must not be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ascendtune.machine.torch_backend.find import find_device
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.model_setup import ModelSetup, set_up_model
from ascendtune.train.strategy.base import Strategy


@pytest.fixture(scope="module")
def on_two_ranks(tiny_model: Path) -> list[tuple[ModelSetup, torch.Tensor]]:
    """An adapter with dropout as each of two ranks makes it, and what it makes of a row in its first step."""
    recipe = Recipe.check(
        {
            "model": {"path": str(tiny_model)},
            "data": {"train": "none", "packing": False},
            "method": {"tuner": "lora", "lora": {"rank": 4, "dropout": 0.5}},
            "precision": "fp32",
        }
    )
    found = []
    with torch.random.fork_rng(devices=[]):
        for rank in (0, 1):
            strategy = Strategy(find_device())
            strategy.rank = rank
            trainee = set_up_model(recipe, tiny_model, [], strategy, pad_id=0)
            with torch.no_grad():
                # A new adapter's B is zero, and dropout would not show.
                for name, parameter in trainee.model.named_parameters():
                    if "lora_B" in name:
                        parameter.fill_(0.1)
                found.append((trainee, trainee.model(input_ids=torch.arange(20)[None]).logits))
    return found


def test_ranks_begin_with_the_same_weights(on_two_ranks: list[tuple[ModelSetup, torch.Tensor]]) -> None:
    (one, _), (other, _) = on_two_ranks
    of_other = dict(other.model.named_parameters())
    assert all(torch.equal(weight, of_other[name]) for name, weight in one.model.named_parameters())


def test_ranks_drop_out_differently(on_two_ranks: list[tuple[ModelSetup, torch.Tensor]]) -> None:
    (_, one), (_, other) = on_two_ranks
    assert not torch.allclose(one, other, rtol=1e-3)
