"""Names of the plain model under every wrapper."""

from __future__ import annotations

import pytest
from torch import nn

from ascendtune.train.dump.names import plain_modules, plain_name


@pytest.mark.parametrize(
    ("wrapped", "plain"),
    [
        ("module.model.layers.0.mlp.weight", "model.layers.0.mlp.weight"),
        ("module.base_model.model.model.norm.weight", "model.norm.weight"),
        ("_orig_mod.module.model.norm", "model.norm"),
        ("module.module.model.norm", "model.norm"),
        (
            "_fsdp_wrapped_module.model.layers.1._fsdp_wrapped_module._checkpoint_wrapped_module.mlp",
            "model.layers.1.mlp",
        ),
        ("base_model.model.model.q_proj.base_layer.weight", "model.q_proj.weight"),
        ("base_model.model.model.q_proj.lora_A.default.weight", "model.q_proj.lora_A.default.weight"),
        ("base_model.model.lm_head.modules_to_save.default.weight", "lm_head.weight"),
        ("base_model.model", ""),
        ("base_model", ""),
        ("", ""),
    ],
)
def test_wrappers_are_not_part_of_a_name(wrapped: str, plain: str) -> None:
    assert plain_name(wrapped) == plain


def test_modules_of_an_adapter_are_named_as_in_the_plain_model() -> None:
    from peft import LoraConfig, get_peft_model

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    plain = set(plain_modules(model))
    tuned = get_peft_model(model, LoraConfig(target_modules=["0"], modules_to_save=["2"], r=2))
    found = plain_modules(tuned)
    assert plain <= set(found)
    assert found["0"].__class__.__name__ == "Linear" and hasattr(found["0"], "base_layer")
    assert "0.lora_A.default" in found and not any("base_layer" in name or "original" in name for name in found)
