"""The keys of a LLaMA-Factory file that an error names beside the native ones."""

from __future__ import annotations

from ascendtune.recipe.llamafactory.llamafactory_recipe import V0
from ascendtune.recipe.llamafactory.v1 import V1


def test_no_switch_with_another_meaning_is_named_for_a_native_key() -> None:
    names = V0.names_of_native_keys()
    # disable_gradient_checkpointing: true is gradient_checkpointing: false.
    assert names.keys().isdisjoint({"memory.gradient_checkpointing", "data.loss_on", "model.init", "method.sft.loss"})
    assert names["optim.epochs"] == "num_train_epochs"
    assert names["checkpoint.best"] == "load_best_model_at_end"


def test_the_key_with_the_number_is_named_among_several() -> None:
    assert V0.names_of_native_keys()["eval.every_steps"] == "eval_steps"
    assert V1.names_of_native_keys()["checkpoint.every_steps"] == "save_steps"
