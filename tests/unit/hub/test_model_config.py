"""Fields of config.json that cannot be, or that lead to foreign code, are named before a model is built."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.errors import RecipeError
from ascendtune.hub.model_config import (
    read_model_config,
    require_layers,
    require_rows_for_tokens,
    signs_of_other_tokenizer,
    unknown_name_fault,
)

QWEN2 = {
    "model_type": "qwen2",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}


def written(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**QWEN2, **changes}))
    return path


def refused(tmp_path: Path, **changes: Any) -> str:
    with pytest.raises(RecipeError) as raised:
        read_model_config(written(tmp_path, **changes))
    assert raised.value.where == str(tmp_path / "config.json") and raised.value.remedy
    return raised.value.what


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("num_hidden_layers", value) for value in (0, -1, "4", 4.0, True, 10**30, {}, float("nan"))),
        *(("num_attention_heads", value) for value in (0, -4, "four")),
        *(("num_key_value_heads", value) for value in (0, 3, [2, 0])),
        *(("hidden_size", value) for value in (0, "64", 10**12)),
        *(("vocab_size", value) for value in (0, -512, "512", 10**12)),
        *(("rms_norm_eps", value) for value in (-1e-6, "1e-6", float("inf"))),
        *(("attention_dropout", value) for value in (-0.1, 1.5, "0")),
        *(("rope_theta", value) for value in (-1, "10000", float("nan"), 10**400)),
        *(("rope_scaling", value) for value in ("linear", 1, [])),
        *(("tie_word_embeddings", value) for value in ("true", 1)),
        *(("model_type", value) for value in ("", 1, None, ["qwen2"])),
        *(("architectures", value) for value in ("Qwen2ForCausalLM", [1])),
        *(("eos_token_id", value) for value in ("2", [2.0], {}, 2**40)),
        *(("torch_dtype", value) for value in ("hub", "float31", 16, [])),
        *(("num_labels", value) for value in (10**9, "two")),
        *(("id2label", value) for value in ([], "x")),
        ("text_config", [1]),
    ],
)
def test_impossible_field_is_named_with_its_value(tmp_path: Path, key: str, value: Any) -> None:
    what = refused(tmp_path, **{key: value})
    assert what.startswith("config.json: ") and f"{key} is " in what


def test_fields_of_the_language_model_inside_are_checked(tmp_path: Path) -> None:
    assert "text_config.num_hidden_layers is -1" in refused(tmp_path, text_config={**QWEN2, "num_hidden_layers": -1})


def test_heads_that_do_not_divide_are_named(tmp_path: Path) -> None:
    assert "num_attention_heads is 5, and must be a divisor of the hidden size, 64" in refused(
        tmp_path, num_attention_heads=5, num_key_value_heads=5
    )
    read_model_config(written(tmp_path, num_attention_heads=5, num_key_value_heads=5, head_dim=16))


@pytest.mark.parametrize(
    "changes",
    [
        {"auto_map": {"AutoConfig": "someone/else--configuration.Config"}},
        {"auto_map": {"AutoTokenizer": ["a/b--tokenization.T", None]}},
        {"auto_map": "configuration.Config"},
        {"auto_map": {"AutoConfig": 1}},
        {"text_config": {**QWEN2, "auto_map": {"AutoModel": "modeling.Model"}}},
        {"vision_config": {"parts": [{"auto_map": {"AutoModel": "modeling.Model"}}]}},
        {"configuration_files": ["config.4.0.0.json"]},
        {"transformers_weights": "other.safetensors"},
        {"fusion_config": {"moe": True}},
        {"custom_generate": "someone/else"},
    ],
)
def test_field_that_leads_to_foreign_code_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    what = refused(tmp_path, **changes)
    assert any(key in what for key in ("auto_map", "configuration_files", "transformers_weights", "fusion", "custom"))


def test_own_code_of_a_model_is_accepted(tmp_path: Path) -> None:
    read_model_config(written(tmp_path, auto_map={"AutoConfig": "configuration_x.XConfig"}))


def test_configs_of_other_architectures_are_accepted(tmp_path: Path) -> None:
    gemma = {"model_type": "gemma3n_text", "intermediate_size": [16384] * 4, "layer_types": ["full_attention"] * 4}
    mamba = {"model_type": "mamba2", "time_step_limit": [0.0, float("inf")], "n_routed_experts": None}
    for each in (gemma, mamba, {"num_key_value_heads": 1}, {"sliding_window": None, "id2label": {"0": "score"}}):
        read_model_config(written(tmp_path, **each))


@pytest.mark.parametrize(("held", "named"), [(4, True), (2, False), (5, False)])
def test_layers_of_files_and_config_must_agree(tmp_path: Path, held: int, named: bool) -> None:
    shapes = {f"model.layers.{number}.mlp.up_proj.weight": (8, 8) for number in range(held)}
    path = written(tmp_path)
    if named:
        require_layers(path, read_model_config(path), shapes)
        return
    with pytest.raises(RecipeError) as caught:
        require_layers(path, read_model_config(path), shapes)
    assert caught.value.code == "weights-config-mismatch" and f"{held} layers" in caught.value.what


def test_fewer_layer_types_than_layers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        read_model_config(written(tmp_path, layer_types=["full_attention"] * 2))
    assert caught.value.code == "invalid-field" and "layer_types" in caught.value.what
    assert caught.value.code == "invalid-field" and "layer_types" in caught.value.remedy


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"hidden_act": "new"}, "hidden_act"),
        ({"text_config": {"hidden_activation": "new"}}, "text_config.hidden_activation"),
        ({"rope_scaling": {"type": "new", "factor": 2.0}}, "rope_scaling.type"),
        ({"rope_scaling": "linear", "hidden_act": "new"}, "hidden_act"),
        ({"rope_parameters": {"full_attention": {"rope_type": "new"}}}, "rope_parameters.full_attention.rope_type"),
    ],
)
def test_name_that_transformers_does_not_know_is_reported_with_its_field(
    tmp_path: Path, fields: dict[str, Any], place: str
) -> None:
    path = written(tmp_path, **fields)
    fault = unknown_name_fault(path, KeyError("new"))
    assert fault is not None and fault.code == "invalid-field"
    assert f'{place} is "new"' in fault.what and place in fault.remedy
    assert unknown_name_fault(path, KeyError("model_type")) is None
    assert unknown_name_fault(path, ValueError("new")) is None


def test_layers_that_predict_further_tokens_are_not_surplus(tmp_path: Path) -> None:
    shapes = {f"model.layers.{number}.mlp.up_proj.weight": (8, 8) for number in range(5)}
    for changes in ({"model_type": "deepseek_v3"}, {"num_nextn_predict_layers": 1}):
        path = written(tmp_path, **changes)
        require_layers(path, read_model_config(path), shapes)


def test_embeddings_and_tokenizer_must_fit_vocab_size(tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(RecipeError) as caught:
        require_layers(path, read_model_config(path), {"model.embed_tokens.weight": (600, 64)})
    assert caught.value.code == "weights-config-mismatch" and "600 rows" in caught.value.what
    require_rows_for_tokens(path, 512, 0)
    require_rows_for_tokens(path, 513, 1)
    with pytest.raises(RecipeError) as caught:
        require_rows_for_tokens(path, 513, 0)
    assert caught.value.code == "tokenizer-model-mismatch"


def _directory(path: Path) -> None:
    path.mkdir()


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_directory, "cannot be read|not a regular file"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (_large, "larger than"),
        (lambda path: path.write_bytes(b""), "not readable as JSON"),
        (lambda path: path.write_bytes(b"\xff\xfe{}"), "not readable as JSON"),
        (lambda path: path.write_bytes(b"[" * 100_000), "nested too deeply"),
        (lambda path: path.write_text("[" * 90 + "]" * 90), "nested more than 64 levels deep"),
        (lambda path: path.write_text('{"a": ' + "9" * 5000 + "}"), "not readable as JSON"),
        (lambda path: path.write_text('{"a": 1, "a": 2}'), 'the key "a" occurs twice'),
        (lambda path: path.write_text('{"a": "\\ud800"}'), "half of a surrogate pair"),
        (lambda path: path.write_text("[]"), "contains a list, not an object"),
        (lambda path: path.symlink_to(path), "not a regular file"),
    ],
)
def test_file_that_is_not_a_config_is_refused_at_once(tmp_path: Path, make: Any, said: str) -> None:
    make(tmp_path / "config.json")
    with pytest.raises(RecipeError, match=said):
        read_model_config(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("config", "vocab_size", "added", "said"),
    [
        # Public models: padded vocabularies, several ids of EOS, no BOS.
        (
            {"vocab_size": 151_936, "bos_token_id": 151_643, "eos_token_id": 151_645},
            151_665,
            range(151_643, 151_665),
            [],
        ),
        ({"vocab_size": 128_256, "eos_token_id": [128_001, 128_008, 128_009]}, 128_256, range(128_000, 128_256), []),
        ({"vocab_size": 51_200, "bos_token_id": 50_256, "eos_token_id": 50_256}, 50_295, range(50_256, 50_295), []),
        ({"vocab_size": 32_000, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": -1}, 32_000, [0, 1, 2], []),
        (
            {"vocab_size": 262_208, "text_config": {"eos_token_id": [1, 106], "vocab_size": 262_208}},
            262_145,
            [1, 2],
            [],
        ),
        ({"vocab_size": 100, "bos_token_id": None, "eos_token_id": -1}, 100, [], []),
        # Another tokenizer: smaller; of the same size.
        (
            {"vocab_size": 151_936, "eos_token_id": 151_645},
            32_000,
            [0, 1, 2],
            ["32,000 tokens, and the model 151,936", "eos_token_id 151645 of config.json is no token"],
        ),
        (
            {"vocab_size": 50_304, "bos_token_id": 0, "eos_token_id": [0, 1]},
            50_257,
            [50_256],
            ["bos_token_id 0 of config.json is ordinary text", "eos_token_id 0, 1 of config.json is ordinary text"],
        ),
    ],
)
def test_signs_of_another_models_tokenizer(
    config: dict[str, object], vocab_size: int, added: Collection[int], said: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **config}))
    found = signs_of_other_tokenizer(path, vocab_size, added)
    assert len(found) == bool(said) and all(each in found[0] for each in said)
