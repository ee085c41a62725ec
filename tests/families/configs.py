"""A tiny random model of every causal language model type that the installed transformers knows.

Configs are made from their config classes: sizes are recognised by the name of their field and made small, everything
else keeps the default of its class, so that a new type needs no line here. What the rules cannot guess stands in
`SPECIAL`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

LARGEST = 3_000_000
"""Weights of a model that still counts as tiny."""
VOCABULARY = 512
WINDOW = 8
"""Tokens of a sliding window or an attention chunk: fewer than a row has."""

# Field -> value. A field is set where the config class knows it.
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "emb_dim", "embedding_size"), 32),
    **dict.fromkeys(
        ("intermediate_size", "n_inner", "d_ff", "ffn_hidden_size", "ffn_dim", "dim_ff", "dff", "decoder_ffn_dim",
         "encoder_ffn_dim", "mlp_hidden_size", "feed_forward_size", "expert_dim"), 64,
    ),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size",
                     "shared_intermediate_size", "moe_shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads",
                     "encoder_attention_heads", "attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv"), 2),
    **dict.fromkeys(("head_dim", "attention_head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim",
                     "kv_channels", "swa_head_dim", "swa_v_head_dim", "global_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "n_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts",
                     "moe_top_k"), 2),
    **dict.fromkeys(("n_group", "num_expert_group"), 2),
    **dict.fromkeys(("topk_group",), 1),
    **dict.fromkeys(("sliding_window", "attention_window", "local_attention", "window_size", "attention_window_size",
                     "attention_chunk_size", "sliding_window_size"), WINDOW),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length",
                     "context_length", "original_max_position_embeddings"), 256),
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size"), 16),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "mamba_headdim"), 8),
    **dict.fromkeys(("mamba_n_groups", "mamba_ngroups", "n_groups"), 1),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size", "mamba_d_conv", "conv_kernel"), 4),
    **dict.fromkeys(("linear_num_key_heads",), 2),
    **dict.fromkeys(("linear_num_value_heads",), 4),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "lightning_head_dim"), 8),
    **dict.fromkeys(("time_step_rank", "mamba_dt_rank"), 4),
    "lru_width": 32,
    "query_pre_attn_scalar": 8,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": VOCABULARY,
    # Fewer heads give many keys the score 0, and which of equal keys is seen depends on the length of the row.
    "index_n_heads": 16,
    "index_head_dim": 16,
    "index_topk": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "use_sliding_window": True,
    "max_window_layers": 1,
    "is_decoder": True,
    "use_cache": True,
}  # fmt: skip
LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "decoder_layers",
    "num_blocks",
    "num_decoder_layers",
)
_NO_RANDOMNESS = ("dropout", "pdrop", "drop_rate", "layerdrop", "jitter")

# Type -> fields, where names do not tell.
SPECIAL: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"layer_group_size": 2},
    "bamba": {"attn_layer_indices": [1]},
    "codegen": {"rotary_dim": 4},
    "gptj": {"rotary_dim": 4},
    "dots1": {"n_shared_experts": 1},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "gemma3n_text": {"num_hidden_layers": 6, "num_kv_shared_layers": 2, "laurel_rank": 8,
                     "activation_sparsity_pattern": [0.0] * 6, "intermediate_size": [64] * 6,
                     "layer_types": ["sliding_attention", "full_attention"] * 3},
    "granitemoehybrid": {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]},
    "kimi_linear": {"num_hidden_layers": 5, "linear_head_dim": 8, "linear_num_heads": 4},
    "dots3_note_text": {"num_key_value_heads": 4, "shared_experts_intermediate_size": 32},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "dbrx": {"attn_config": {"kv_n_heads": 2},
             "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2}},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"], "num_hidden_layers": 4},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "qwen4_exp_text": {"layer_types": ["linear_attention", "full_attention"], "indexer_n_heads": 16,
                       "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 16, "indexer_compress_ratio": 4,
                       "ple_layer_ids": [1], "ngram_vocab_size_base": 64, "split_ngram_parts": 1, "hc_lowrank": 8,
                       "make_ngram_vocab_size_divisible_by": 1},
    "reformer": {"axial_pos_embds_dim": (8, 24), "axial_pos_shape": (16, 16), "attention_head_size": 8,
                 "lsh_attn_chunk_length": 8, "local_attn_chunk_length": 8, "num_buckets": 2},
    "roc_bert": {"shape_vocab_size": 32, "shape_embed_dim": 8, "pronunciation_vocab_size": 32,
                 "pronunciation_embed_dim": 8},
    # Its cache rounds the sum of all heads up to 64.
    "xlstm": {"hidden_size": 128},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
    "zamba2": {"num_hidden_layers": 6, "hybrid_layer_ids": [2, 5],
               "layers_block_type": ["mamba", "mamba", "hybrid", "mamba", "mamba", "hybrid"]},
}  # fmt: skip


def types() -> dict[str, Any]:
    """Type -> config class, of all that transformers loads as a causal language model."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return {name: CONFIG_MAPPING[name] for name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)}


def takes_other_input(config_class: Any) -> bool:
    """Whether the type reads images or sound too, which is out of scope here."""
    parts = set(getattr(config_class, "sub_configs", None) or {})
    return any(word in part for part in parts for word in ("vision", "audio", "encoder", "vq", "image", "assistant"))


def tiny_config(name: str) -> Any:
    """The config of a model with a few thousand weights that still has every kind of layer of its type.

    Raises:
        Exception: what transformers says of the first attempt, where none makes a model that computes.
    """
    first: Exception | None = None
    for fields in _attempts(name, types()[name]):
        try:
            config = types()[name](**fields)
            _compute(config)
            return config
        except Exception as error:  # noqa: BLE001  # whatever a config or model class says of fields that do not fit
            first = first or error
    assert first is not None
    raise first


def _compute(config: Any) -> None:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        weights = sum(each.numel() for each in AutoModelForCausalLM.from_config(config).parameters())
    if weights > LARGEST:
        raise ValueError(f"{weights:,} weights are not tiny: a size has a name that is not known")
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model(input_ids=torch.arange(3, 3 + 3 * WINDOW)[None], use_cache=False)


def _attempts(name: str, config_class: Any) -> Iterator[dict[str, Any]]:
    default = config_class()
    known = set(inspect.signature(config_class.__init__).parameters) | set(default.to_dict())
    known |= set(getattr(config_class, "attribute_map", {}))
    fields = {field: value for field, value in SIZES.items() if field in known}
    fields |= {
        field: 0.0
        for field, value in default.to_dict().items()
        if isinstance(value, float) and any(word in field for word in _NO_RANDOMNESS)
    }
    layers = [field for field in LAYERS if field in known]
    special = SPECIAL.get(name, {})
    wanted = set(getattr(default, "layer_types", None) or [])
    for heads in ({}, {"num_key_value_heads": SIZES["num_attention_heads"]}):
        for count in (2, 3, 4, 6, 8, 12):
            made = fields | dict.fromkeys(layers, count) | heads | special
            if not wanted or special or _layer_types(config_class, made) == wanted:
                yield made
        yield fields | dict.fromkeys(layers, 4) | heads | special


def _layer_types(config_class: Any, fields: dict[str, Any]) -> set[str] | None:
    try:
        return set(config_class(**fields).layer_types)
    except Exception:  # noqa: BLE001  # whatever a config class says of fields that do not fit
        return None
