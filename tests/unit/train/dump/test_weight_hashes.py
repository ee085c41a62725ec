"""Hashes of the weights before the first step, by parameter."""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from ascendtune.train.dump.checksum import as_hex, checksum
from ascendtune.train.dump.weight_hashes import hashes_of_weights


class Tied(nn.Module):
    """A model whose head has the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.up, self.head = nn.Embedding(6, 4), nn.Linear(4, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight


def hashes(model: nn.Module) -> dict[str, str]:
    found: dict[str, str] = hashes_of_weights(model, lambda own: [own])["parameters"]
    return found


def checksum_of(weight: torch.Tensor) -> str:
    return as_hex(int(checksum(weight)))


def test_tied_weights_are_listed_once() -> None:
    assert list(hashes(Tied())) == ["embedding.weight", "up.weight", "up.bias"]


def test_originals_of_modules_to_save_are_not_listed() -> None:
    plain = hashes(Tied())
    saved = LoraConfig(target_modules=["up"], modules_to_save=["embedding"], r=2)
    tuned = get_peft_model(Tied(), saved)
    found = hashes(tuned)
    assert not [name for name in found if "original_module" in name]
    assert {name: found[name] for name in plain} == plain
    # The head keeps the embedding that is not trained: its weight is a parameter of its own now.
    assert found["head.weight"] == plain["embedding.weight"] == checksum_of(tuned.base_model.model.head.weight)
