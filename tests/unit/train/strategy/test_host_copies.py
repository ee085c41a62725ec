"""Copies of gathered weights that the host's memory has no room for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from ascendtune.machine.torch_backend.find import find_device
from ascendtune.train.strategy.base import Strategy
from ascendtune.train.strategy.host_copies import HostCopies


def test_copies_beyond_the_memory_are_in_a_file_and_equal(tmp_path: Path) -> None:
    weights = [torch.randn(300, 7), torch.randn(4099), torch.randn(()), torch.randn(2, 3, 5).bfloat16(), torch.empty(0)]
    copies = HostCopies(tmp_path, in_memory=0)

    copied = [copies.copy(each, torch.float16) for each in weights]
    in_file = copies._end
    copies.close()

    assert in_file > 0
    assert not list(tmp_path.iterdir())
    for each, weight in zip(copied, weights, strict=True):
        assert each.dtype == torch.float16
        assert torch.equal(each, weight.half())


def test_copies_are_in_memory_up_to_the_limit(tmp_path: Path) -> None:
    copies = HostCopies(tmp_path, in_memory=4 * 100)

    copies.copy(torch.ones(100).bfloat16(), torch.float32)
    assert copies._file is None
    copies.copy(torch.ones(1).bfloat16(), torch.float32)
    assert copies._file is not None
    copies.close()


def test_weight_that_is_on_the_host_already_is_not_copied(tmp_path: Path) -> None:
    weight = torch.ones(100)

    assert HostCopies(tmp_path, in_memory=0).copy(weight, torch.float32) is weight


def test_full_disk_is_an_error_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int, _start: int, _size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        HostCopies(tmp_path, in_memory=0).copy(torch.ones(100).bfloat16(), torch.float32)


def test_model_whose_weights_are_in_a_file_is_exported_like_one_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    expected = {name: weight.bfloat16() for name, weight in model.state_dict().items()}
    monkeypatch.setattr("ascendtune.train.strategy.base.bytes_in_memory", lambda: 2 * 64 * 16)

    Strategy(find_device()).gather_full(model, list(model.parameters()), torch.bfloat16, tmp_path)
    model.save_pretrained(tmp_path / "model")

    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert model.lm_head.weight is model.get_input_embeddings().weight
    written = load_file(tmp_path / "model/model.safetensors")
    assert written.keys() == expected.keys() - {"lm_head.weight"}
    assert all(torch.equal(weight, expected[name]) for name, weight in written.items())
