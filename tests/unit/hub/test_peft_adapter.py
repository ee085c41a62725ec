"""PEFT's names and settings, read without torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import save_file

from ascendtune.core.errors import InputError
from ascendtune.hub.peft_adapter import Adapter, read_adapter

_SHAPES = {"lora_A.weight": (4, 6), "lora_B.weight": (8, 4)}


def _adapter(directory: Path, tensors: dict[str, tuple[int, ...]], **config: Any) -> Adapter:
    directory.mkdir(exist_ok=True)
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 12, **config}
    (directory / "adapter_config.json").write_text(json.dumps(settings))
    save_file(
        {f"base_model.model.{name}": numpy.zeros(shape, numpy.float32) for name, shape in tensors.items()},
        directory / "adapter_model.safetensors",
    )
    return read_adapter(directory, config.get("weight", 1.0))


def _module(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.{part}": shape for part, shape in _SHAPES.items()}


@pytest.mark.parametrize(
    ("config", "scaling"),
    [
        ({}, 3.0),
        ({"use_rslora": True}, 6.0),
        ({"alpha_pattern": {"q_proj": 2}}, 0.5),
        ({"alpha_pattern": {"proj": 2}}, 3.0),
        ({"alpha_pattern": {"layers.0.q_proj": 2, "q_proj": 4}}, 0.5),
        ({"alpha_pattern": {"layers\\.[1-9]\\.q_proj": 2}}, 3.0),
        ({"weight": 0.1}, 0.1 * 12 / 4),
        ({"weight": 0.1, "use_rslora": True}, 0.1 * 12 / math.sqrt(4)),
    ],
    ids=str,
)
def test_scaling_follows_alpha_rank_and_rslora(config: dict[str, Any], scaling: float, tmp_path: Path) -> None:
    [found] = _adapter(tmp_path, _module("layers.0.q_proj"), **config).low_rank
    assert (found.module, found.scaling, found.shape) == ("layers.0.q_proj", scaling, (8, 6))


@pytest.mark.parametrize(
    ("pattern", "scaling"), [("gate", 3.0), ("gate.weight", 0.5), ("mlp.gate.weight", 0.5), ("q_proj", 3.0)]
)
def test_patterns_of_a_target_parameter_match_the_name_of_the_parameter(
    pattern: str, scaling: float, tmp_path: Path
) -> None:
    """As in PEFT, which makes the router of a mixture, a target module `gate`, the target parameter `gate.weight`."""
    tensors = {**_module("layers.0.mlp.gate"), **_module("layers.0.q_proj")}
    config = {"target_modules": ["q_proj"], "target_parameters": ["gate.weight"], "alpha_pattern": {pattern: 2}}
    gate, q_proj = sorted(_adapter(tmp_path, tensors, **config).low_rank, key=lambda each: each.module)
    assert (gate.module, gate.scaling) == ("layers.0.mlp.gate", scaling)
    assert q_proj.scaling == (0.5 if pattern == "q_proj" else 3.0)


def test_ranks_of_patterns_do_not_make_matrices_of_experts_nor_experts_of_a_matrix(tmp_path: Path) -> None:
    experts = {"mlp.experts.lora_A.weight": (4, 6), "mlp.experts.lora_B.weight": (8, 4)}
    config = {
        "target_parameters": ["gate.weight", "experts.gate_up_proj"],
        "rank_pattern": {"gate": 2, "experts.gate_up_proj": 2},
    }
    found = _adapter(tmp_path, {**_module("mlp.gate"), **experts}, **config)
    assert [each.module for each in found.low_rank] == ["mlp.gate"]
    assert [each.module for each in found.expert_loras] == ["mlp.experts"]


def test_whole_weights_and_whose_they_are(tmp_path: Path) -> None:
    tensors = {"embed.weight": (9, 2), "norm.modules_to_save.weight": (2,), "head.base_layer.weight": (9, 2)}
    adapter = _adapter(tmp_path, {**_module("q"), **tensors}, modules_to_save=["norm", "head"])
    assert set(adapter.whole) == {"embed.weight", "norm.weight", "head.weight"}
    assert adapter.whole_base == {"embed.weight", "head.weight"}
    assert not adapter.uses_dora
    assert _adapter(tmp_path, {**_module("q"), "q.lora_magnitude_vector": (8,)}).uses_dora


@pytest.mark.parametrize(
    "name",
    ["x.token_adapter.trainable_tokens_delta", "x.lora_E", "experts.lora_A.0.weight", "x.some_other_part"],
)
def test_unknown_parts_are_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        _adapter(tmp_path, {**_module("q"), name: (2, 2)})
    assert caught.value.code == "adapter-not-mergeable" and name in caught.value.what


def test_an_adapter_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        _adapter(tmp_path, {"x": (1,)}, peft_type="PREFIX_TUNING")
    assert caught.value.code == "adapter-not-mergeable" and "PREFIX_TUNING" in caught.value.what


def test_dora_magnitude_of_wrong_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        _adapter(tmp_path, {**_module("q"), "q.lora_magnitude_vector": (7,)})
    assert caught.value.code == "adapter-config-mismatch" and "8 rows" in caught.value.what


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("trainable_token_indices", [1, 2]),
        ("layer_replication", [[0, 4], [2, 5]]),
        ("use_qalora", True),
        ("use_bdlora", {"target_modules_bd_a": ["q_proj"]}),
        ("alora_invocation_tokens", [7]),
        ("arrow_config", {"top_k": 2}),
    ],
)
def test_a_form_of_lora_that_is_not_a_product_of_two_matrices_is_refused(
    setting: str, value: object, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        _adapter(tmp_path, _module("q"), **{setting: value})
    assert caught.value.code == "adapter-not-mergeable" and setting in caught.value.what
    _adapter(tmp_path, _module("q"), **{setting: None})


@pytest.mark.parametrize("start", ["pissa_niter_4", "OLoRA", "loftq"])
def test_adapter_that_belongs_to_a_changed_base_is_refused(start: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="changed the base in memory") as caught:
        _adapter(tmp_path, _module("layers.0.q_proj"), init_lora_weights=start)
    # PEFT converts no LoftQ.
    assert ("conversion" in caught.value.remedy) == (start != "loftq")


@pytest.mark.parametrize("start", ["gaussian", "mica", "eva", "orthogonal", True])
def test_adapter_that_left_the_base_as_it_was_is_read(start: str | bool, tmp_path: Path) -> None:
    assert _adapter(tmp_path, _module("layers.0.q_proj"), init_lora_weights=start).low_rank
