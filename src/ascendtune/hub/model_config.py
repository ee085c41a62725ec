"""Checks of a model's config.json: invalid fields, and fields that load foreign code. Free of torch."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ascendtune.core.errors import RecipeError
from ascendtune.core.foreign_json import (
    FLAG,
    TEXT_LIST,
    FieldRule,
    bad_field,
    check_fields,
    is_number,
    read_json_object,
    shown_value,
)
from ascendtune.core.units import count_of

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
_DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "auto")


def _count(least: int, most: int) -> FieldRule:
    def accepts(value: Any) -> bool:
        # Some architectures have a number for each layer.
        values = value if isinstance(value, list) and len(value) <= 10_000 else [value]
        return all(type(each) is int and least <= each <= most for each in values)

    return FieldRule(accepts, f"a whole number from {least} to {most:,}")


def _number(least: float, most: float) -> FieldRule:
    return FieldRule(lambda value: is_number(value, least, most), f"a number from {least:g} to {most:g}")


def _is_ids(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(type(each) is int and -1 <= each < 1 << 31 for each in values)


_RULES = {
    _count(1, 10_000): LAYERS,
    _count(1, 1_000_000): ("hidden_size", "n_embd", "d_model"),
    _count(1, 100_000): ("num_attention_heads", "n_head", "n_heads", "num_key_value_heads", "head_dim"),
    _count(1, 1_000_000_000): ("vocab_size", "max_position_embeddings", "n_positions"),
    _count(0, 10_000_000): ("intermediate_size", "ffn_hidden_size", "moe_intermediate_size", "n_inner"),
    _count(0, 100_000): ("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok"),
    _count(0, 1_000_000): ("num_labels", "type_vocab_size", "num_nextn_predict_layers", "first_k_dense_replace"),
    _number(0, 1e30): ("rope_theta", "hidden_multiplier"),
    _number(0, 1): (
        "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps",
        "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop",
    ),
    _number(0, 1000): ("initializer_range", "partial_rotary_factor"),
    FLAG: (
        "tie_word_embeddings", "use_cache", "attention_bias", "mlp_bias", "use_sliding_window", "is_encoder_decoder",
    ),
    FieldRule(lambda value: isinstance(value, str) and value != "", "a text"): ("model_type", *_ACTIVATIONS),
    FieldRule(lambda value: isinstance(value, dict), "an object"): (
        "rope_scaling", "rope_parameters", "id2label", "label2id", "text_config", "auto_map",
    ),
    FieldRule(_is_ids, "a token id, or a list of them"): ("bos_token_id", "eos_token_id", "pad_token_id"),
    FieldRule(lambda value: value in _DTYPES or isinstance(value, dict), f"one of {', '.join(_DTYPES)}"): (
        "torch_dtype", "dtype",
    ),
    TEXT_LIST: ("architectures", "layer_types"),
}  # fmt: skip
# Architectures whose config class derives head_dim from hidden_size and num_attention_heads if it is not set.
_DIVIDING = ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "gpt2", "gpt_neox", "phi", "phi3", "olmo", "olmo2")
_DECODER_LAYER = re.compile(
    r"(?:(?:model|transformer|gpt_neox|language_model)\.|model\.decoder\.|model\.language_model\.|language_model\.model\.)?"
    r"(?:layers|h)\.(\d+)\."
)
_TABLES = ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight", "transformer.wte.weight")
# Each makes transformers read other files, run other code or fetch a package.
_FOREIGN = {
    "configuration_files": "it names another config.json to be read in place of this one",
    "transformers_weights": "it names another file of weights to be read",
    "fusion_config": "it replaces the code of the model's layers",
    "custom_generate": "it names code that generates",
}
# Fields with which a model computes the same.
_WITHOUT_EFFECT = frozenset({"_name_or_path", "architectures", "transformers_version", "use_cache"})


def read_model_config(path: Path) -> dict[str, Any]:
    """The content of a config.json, its fields checked.

    Args:
        path: of the file.

    Raises:
        RecipeError: a field has a wrong type or an impossible value, or leads to foreign code; names field and value.
        MachineError: permission is denied, or the disk fails.
    """
    config = read_json_object(path)
    if "model_type" not in config:
        raise RecipeError(
            "config.json has no model_type",
            code="model-type-missing",
            remedy="copy config.json from the source of the model",
            where=path,
        )
    _require_no_foreign_code(path, config)
    for section, prefix in _sections(path, config):
        check_fields(path, section, _RULES, prefix, never_null="model_type")
        _check_layer_types(path, section, prefix)
        _check_heads(path, section, prefix)
    return config


def hash_of_model_config(path: Path) -> str:
    """A hash, in hexadecimal, of the fields of a config.json that decide what the model computes.

    Raises:
        RecipeError, MachineError: as `read_model_config`.
    """
    decisive = {name: value for name, value in read_model_config(path).items() if name not in _WITHOUT_EFFECT}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


def unknown_name_fault(config_path: Path, error: Exception) -> RecipeError | None:
    """The error for a config.json that names an activation function or a type of rotary embeddings which transformers
    does not have.

    Args:
        error: of transformers, while it made a model from this file.

    Returns:
        None if the error has another cause.
    """
    if not isinstance(error, KeyError) or not error.args:
        return None
    for section, prefix in _sections(config_path, read_json_object(config_path)):
        for key, name in _names_of_functions(section):
            if name is not None and name == error.args[0]:
                expected = "a name that this version of transformers knows"
                remedy = f"correct {prefix}{key}, or install the version of transformers that the model asks for"
                return bad_field(config_path, prefix + key, name, expected, remedy)
    return None


def _names_of_functions(section: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Fields of a config, with their values, that transformers looks up in its tables of functions."""
    found = [(key, section.get(key)) for key in _ACTIVATIONS]
    for name in ("rope_scaling", "rope_parameters"):
        parameters = section.get(name)
        # Models with several kinds of layers have parameters for each kind.
        of_kinds = parameters if isinstance(parameters, Mapping) else {}
        for place, each in ((name, parameters), *((f"{name}.{key}", each) for key, each in of_kinds.items())):
            if isinstance(each, Mapping):
                found += [(f"{place}.{key}", each.get(key)) for key in ("rope_type", "type")]
    yield from ((key, name) for key, name in found if isinstance(name, str))


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the language model."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) and inner else config


def lengths_that_change_rope(parameters: Mapping[str, Any] | None) -> list[int]:
    """Lengths beyond which rotary embeddings use other frequencies: LongRoPE's (Phi-3), one for each kind of layers.

    The longest row of a forward pass decides for all rows in it.

    Args:
        parameters: `rope_parameters` of a config.
    """
    found = parameters or {}
    return [
        each["original_max_position_embeddings"]
        for each in (found, *found.values())
        if isinstance(each, Mapping) and each.get("rope_type") == "longrope"
    ]


def length_of_dynamic_rope(text: Any) -> int | None:
    """The length beyond which the frequencies of rotary embeddings depend on the length: dynamic NTK's.

    Those of the longest row are kept for later rows, until one is shorter than this length.

    Args:
        text: the config of a language model, of transformers.

    Returns:
        None if no layer has such embeddings.
    """
    found = getattr(text, "rope_parameters", None) or {}
    kinds = [each.get("rope_type") for each in (found, *found.values()) if isinstance(each, Mapping)]
    return int(text.max_position_embeddings) if "dynamic" in kinds else None


def require_rows_for_tokens(config_path: Path, needed: int, new_tokens: int) -> None:
    """Raise if the tokenizer has ids without embeddings in the model.

    Args:
        needed: largest id of the tokenizer + 1, tokens of `model.new_tokens` included.
        new_tokens: how many tokens the recipe adds on purpose.

    Raises:
        RecipeError: names vocab_size and the largest id.
    """
    rows = text_config(read_model_config(config_path)).get("vocab_size")
    if isinstance(rows, int) and needed > rows + new_tokens:
        raise RecipeError(
            f"config.json: vocab_size is {rows}, and the largest token id of the tokenizer is {needed - 1}",
            code="tokenizer-model-mismatch",
            remedy="copy config.json, tokenizer.json and tokenizer_config.json (its special tokens become new ones if "
            "tokenizer.json lacks them) from the same model; name tokens that were added later in model.new_tokens",
            where=config_path,
        )


_SMALLEST_SHARE = 0.8
"""Vocabularies are padded to a round number of rows; public models have at least nine tenths of them in use."""


def signs_of_other_tokenizer(config_path: Path, vocab_size: int, added_ids: Collection[int]) -> list[str]:
    """Sentences on what suggests that the tokenizer is that of another model; such a model learns from noise.

    Args:
        vocab_size: largest id of the tokenizer + 1.
        added_ids: ids of its added tokens, such as BOS and EOS.
    """
    config = text_config(read_model_config(config_path))
    rows, signs = config.get("vocab_size"), list[str]()
    if isinstance(rows, int) and vocab_size < _SMALLEST_SHARE * rows:
        signs.append(f"it has {vocab_size:,} tokens, and the model {rows:,}")
    for key in ("bos_token_id", "eos_token_id"):
        given = config.get(key)
        ids = [each for each in (given if isinstance(given, list) else [given]) if isinstance(each, int) and each >= 0]
        if ids and not any(each in added_ids for each in ids):
            kind = "no token" if min(ids) >= vocab_size else "ordinary text"
            signs.append(f"{key} {', '.join(map(str, ids))} of config.json is {kind} in it")
    if not signs:
        return []
    return [
        f"the tokenizer may be that of another model: {'; '.join(signs)}. Copy config.json, weights and tokenizer from "
        "the same model; a wrong id in config.json alone has no effect on training"
    ]


def require_layers(config_path: Path, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise if the weight files contain more or fewer layers, or another vocabulary, than config.json.

    Only checks that use names and no knowledge of the architecture; loading compares every tensor.

    Args:
        shapes: tensor -> shape, of all weight files.

    Raises:
        RecipeError: with the field and both numbers.
    """
    text = text_config(config)
    key, layers = next(((key, text[key]) for key in LAYERS if isinstance(text.get(key), int)), ("", 0))
    numbers = {int(found[1]) for name in shapes if (found := _DECODER_LAYER.match(name))}
    extra = text.get("num_nextn_predict_layers")
    predicting = extra if isinstance(extra, int) else 0
    # Remote code may count in another way.
    if key and numbers and "auto_map" not in config:
        stored_layers = max(numbers) + 1
        if stored_layers < layers or (stored_layers > layers + predicting and not _may_predict_further(text)):
            raise RecipeError(
                f"config.json: {key} is {layers:,}, and the weight files contain {stored_layers:,} layers",
                code="weights-config-mismatch",
                remedy="copy config.json and the weights from the same model",
                where=config_path,
            )
    rows = text.get("vocab_size")
    for name, shape in shapes.items():
        if name in _TABLES and isinstance(rows, int) and len(shape) == 2 and shape[0] != rows:
            raise RecipeError(
                f"config.json: vocab_size is {rows:,}, and {name} has {shape[0]:,} rows",
                code="weights-config-mismatch",
                remedy="copy config.json and the weights from the same model",
                where=config_path,
            )


def _may_predict_further(text: Mapping[str, Any]) -> bool:
    """Whether this architecture appends layers for multi-token prediction without counting them."""
    return str(text.get("model_type")).startswith(("deepseek", "glm4_moe", "glm_moe"))


def _sections(path: Path, config: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    yield config, ""
    inner = config.get("text_config")
    if inner is not None:
        if not isinstance(inner, dict):
            raise bad_field(path, "text_config", inner, "an object")
        yield inner, "text_config."


def _check_layer_types(path: Path, section: Mapping[str, Any], prefix: str) -> None:
    kinds, layers = section.get("layer_types"), section.get("num_hidden_layers")
    if isinstance(kinds, list) and isinstance(layers, int) and len(kinds) < layers:
        raise RecipeError(
            f"config.json: {prefix}layer_types has {count_of(len(kinds), 'entry', 'entries')}, "
            f"and {prefix}num_hidden_layers is {layers}",
            code="invalid-field",
            remedy="give layer_types one entry per layer, or copy config.json again from the source of the model",
            where=path,
        )


def _check_heads(path: Path, section: Mapping[str, Any], prefix: str) -> None:
    heads, shared = section.get("num_attention_heads"), section.get("num_key_value_heads")
    if type(heads) is int and type(shared) is int and heads % shared:
        raise bad_field(path, f"{prefix}num_key_value_heads", shared, f"a divisor of num_attention_heads, {heads}")
    kind = section.get("model_type")
    hidden, heads = section.get("hidden_size", section.get("n_embd")), section.get("n_head", heads)
    dividing = kind in _DIVIDING and section.get("head_dim") is None
    if dividing and type(hidden) is int and type(heads) is int and hidden % heads:
        raise bad_field(path, f"{prefix}num_attention_heads", heads, f"a divisor of the hidden size, {hidden}")


def _require_no_foreign_code(path: Path, config: dict[str, Any]) -> None:
    for prefix, section in _objects(config):
        for key, why in _FOREIGN.items():
            if section.get(key):
                raise RecipeError(
                    f"config.json: {prefix}{key} is not accepted: {why}",
                    code="foreign-code",
                    remedy=f"remove {prefix}{key} from config.json, if the model does without it",
                    where=path,
                )
        codes = section.get("auto_map")
        if codes is None:
            continue
        if prefix:
            raise RecipeError(
                f"config.json: {prefix}auto_map is not accepted: it names code for a part of the model",
                code="foreign-code",
                remedy=f"remove {prefix}auto_map from config.json",
                where=path,
            )
        _require_own_code(path, codes)


def _require_own_code(path: Path, codes: Any) -> None:
    if not isinstance(codes, dict):
        raise bad_field(path, "auto_map", codes, "an object")
    for key, value in codes.items():
        names = value if isinstance(value, list) else [value]
        if not all(name is None or isinstance(name, str) for name in names):
            raise bad_field(path, f"auto_map.{key}", value, "the name of a class in a file of the model")
        if foreign := [name for name in names if name and "--" in name]:
            raise RecipeError(
                f"config.json: auto_map.{key} is {shown_value(foreign[0])}, code in another repository",
                code="foreign-code",
                remedy="copy those Python files into the model's folder, read them, and name them without `…--`",
                where=path,
            )


def _objects(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object inside, with its path; the reader has bounded the depth."""
    yield prefix, config
    for key, value in config.items():
        for number, each in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(each, dict):
                inner = f"{prefix}{key}[{number}]." if isinstance(value, list) else f"{prefix}{key}."
                yield from _objects(each, inner)
