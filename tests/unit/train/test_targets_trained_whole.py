"""Targets of an adapter that are also trained whole, which PEFT leaves out."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from ascendtune.core.errors import RecipeError
from ascendtune.recipe.method import MethodSection
from ascendtune.train.model import apply_tuner

_SIZES = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}


def _tuned(tuner: str, target: list[str], whole: list[str]) -> Any:
    model = LlamaForCausalLM(LlamaConfig(**_SIZES, num_attention_heads=2))
    section = {"target": target, "modules_to_save": whole}
    return apply_tuner(model, MethodSection.model_validate({"tuner": tuner, tuner: section}))


@pytest.mark.parametrize("tuner", ["lora", "oft"])
def test_nothing_but_modules_that_are_trained_whole_is_refused(tuner: str) -> None:
    with pytest.raises(RecipeError) as refused:
        _tuned(tuner, ["q_proj"], ["q_proj"])
    assert refused.value.code == "targets-trained-whole"


@pytest.mark.parametrize("tuner", ["lora", "oft"])
def test_modules_beside_those_that_are_trained_whole_are_adapted(tuner: str) -> None:
    trained = [
        name for name, each in _tuned(tuner, ["q_proj", "k_proj"], ["q_proj"]).named_parameters() if each.requires_grad
    ]
    assert any("q_proj.modules_to_save" in name for name in trained)
    assert any("k_proj" in name for name in trained)
