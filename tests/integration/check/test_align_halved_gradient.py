"""A fault that rounding to bf16 hides in each element of a gradient shows in its norm, in deep models, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.stages import TrainingComparison, compare_trainings
from ascendtune.check.align.training_record import read_training_record
from bare_loop import Bare, model_of

MATRIX = "layers.4.self_attn.q_proj.lora_B"


def _adapted(attention: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from peft import LoraConfig, get_peft_model

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            wanted = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"])
            return get_peft_model(model_of(attention, num_hidden_layers=10), wanted).train()

    return make


def _halved(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if MATRIX in name:
            parameter.register_hook(lambda gradient: gradient / 2)


def _align(reference: Path, candidate: Path) -> TrainingComparison:
    one, other = read_training_record(reference), read_training_record(candidate)
    return compare_trainings(one, other, expected_noise(one, other))


def test_halved_gradient_of_one_adapter_matrix_is_named_in_bf16(tmp_path: Path) -> None:
    plain = Bare(model=_adapted("eager"), autocast=torch.bfloat16)
    reference = plain.run(tmp_path / "reference")
    place = _align(reference, replace(plain, edit=_halved).run(tmp_path / "halved")).dumps.place
    assert place is not None and (place.step, place.row.key.phase) == (1, "gradient") and MATRIX in place.module
    honest = _align(reference, replace(plain, model=_adapted("sdpa")).run(tmp_path / "honest"))
    assert honest.divergence is None and honest.dumps.place is None
