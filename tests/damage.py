"""Damages files of a model in ways drawn from a seed."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HOSTILE: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 3, 7, 10**6, 10**12, -(10**30), 10**30, 0.5, 1.5, -0.0, 1e308),
    *(float("nan"), float("inf"), "", "4", "x", "\x1b]52;c;aGk=\x07", "\ud800", "../../x", "/dev/zero", "a" * 5000),
    *([], [[]], {}, [None], [1, 2, 3], ["a", "b"], {"a": 1}, {"": None}, [-1], [True], {"content": 1}, {"type": "x"}),
]
_KEYS = {
    "config.json": (
        *("architectures", "model_type", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        *("hidden_size", "intermediate_size", "vocab_size", "head_dim", "rope_scaling", "rope_theta", "torch_dtype"),
        *("rope_parameters", "layer_types", "sliding_window", "use_sliding_window", "max_window_layers", "id2label"),
        *("tie_word_embeddings", "hidden_act", "attention_dropout", "rms_norm_eps", "pad_token_id", "eos_token_id"),
        *("quantization_config", "auto_map", "num_labels", "text_config", "attn_implementation", "per_layer_config"),
        *("_attn_implementation", "experts_implementation", "max_position_embeddings", "transformers_version"),
        *(
            "output_hidden_states",
            "return_dict",
            "output_attentions",
            "problem_type",
            "label2id",
            "chunk_size_feed_forward",
        ),
        *("_name_or_path", "name_or_path", "tokenizer_class", "dtype", "initializer_range", "is_decoder", "use_cache"),
    ),
    "tokenizer_config.json": (
        *("added_tokens_decoder", "chat_template", "eos_token", "bos_token", "pad_token", "extra_special_tokens"),
        *("additional_special_tokens", "model_max_length", "tokenizer_class", "auto_map", "processor_class"),
    ),
    "tokenizer.json": (
        "model",
        "added_tokens",
        "normalizer",
        "pre_tokenizer",
        "post_processor",
        "decoder",
        "truncation",
    ),
    "generation_config.json": (
        *("eos_token_id", "pad_token_id", "bos_token_id", "max_length", "temperature", "do_sample", "num_beams"),
        *("cache_implementation", "watermarking_config", "custom_generate", "compile_config", "top_k"),
    ),
    "special_tokens_map.json": ("eos_token", "bos_token", "additional_special_tokens", "pad_token"),
    "adapter_config.json": (
        *("peft_type", "r", "lora_alpha", "target_modules", "rank_pattern", "alpha_pattern", "modules_to_save"),
        *("base_model_name_or_path", "task_type", "bias", "layers_to_transform", "layers_pattern", "use_dora"),
        *("megatron_config", "init_lora_weights", "layer_replication", "loftq_config", "eva_config", "auto_mapping"),
        *("target_parameters", "trainable_token_indices", "runtime_config", "exclude_modules", "lora_dropout"),
    ),
}


def damage(file: Path, draw: random.Random) -> str:
    """Replace `file` by a damaged one; returns what was done to it."""
    content = file.read_bytes()
    file.unlink()
    how = draw.choice(["value"] * 6 + ["key"] * 6 + ["remove"] * 2 + ["bytes"] * 2 + ["place"])
    if how == "place":
        return _misplace(file, draw)
    is_header = file.suffix == ".safetensors"
    if how == "bytes" or file.suffix == ".jinja":
        spoilt, said = _spoil(content, draw)
        file.write_bytes(spoilt)
        return said
    length = int.from_bytes(content[:8], "little") if is_header else 0
    tree = json.loads(content[8 : 8 + length] if is_header else content)
    said = _edit(tree, how, _KEYS.get(file.name, ("__metadata__", "x")), draw)
    text = json.dumps(tree).encode()
    if draw.random() < 0.03:
        text = text.replace(b"{", b'{"a": 1, "a": 2,', 1)
        said += ", a key twice"
    if is_header:
        text = len(text).to_bytes(8, "little") + text + content[8 + length :]
    file.write_bytes(text)
    return said


def _edit(tree: Any, how: str, keys: tuple[str, ...], draw: random.Random) -> str:
    value = draw.choice([*HOSTILE, _deep(draw.choice([40, 70, 500]))])
    if how == "key" and isinstance(tree, dict):
        key = draw.choice(keys)
        tree[key] = value
        return f"{key} = {str(value)[:60]!r}"
    places = list(_places(tree))
    if not places:
        return "nothing"
    # Places near the root are as likely as the many below.
    depths = sorted({len(path) for _, _, path in places})
    depth = draw.choice(depths)
    inside, key, path = draw.choice([place for place in places if len(place[2]) == depth])
    if how == "remove":
        del inside[key]
        return f"removed {path}"
    inside[key] = value
    return f"{path} = {str(value)[:60]!r}"


def _places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, Any, tuple[Any, ...]]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(items):
        yield tree, key, (*path, key)
        yield from _places(value, (*path, key))


def _deep(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = [found]
    return found


def _spoil(content: bytes, draw: random.Random) -> tuple[bytes, str]:
    at = draw.randrange(len(content) + 1)
    ways = {
        "cut": content[:at],
        "empty": b"",
        "flipped": content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :],
        "longer": content + b"\0" * draw.randint(1, 100),
        "length": draw.choice([2**63, 2**64 - 1, 2**32, 0, 1]).to_bytes(8, "little") + content[8:],
        "deep": b"[" * 100_000,
        "deep objects": b'{"a":' * 50_000,
        "digits": b'{"model_type": "qwen2", "vocab_size": ' + b"9" * 5000 + b"}",
        "marked": b"\xef\xbb\xbf" + content,
        "UTF-16": content.decode(errors="ignore").encode("utf-16"),
        "binary": draw.randbytes(200),
    }
    name = draw.choice(list(ways))
    return ways[name], f"{name} at {at}"


def _misplace(file: Path, draw: random.Random) -> str:
    how = draw.choice(["directory", "pipe", "zero", "dangling", "loop", "sparse", "absent"])
    if how == "directory":
        file.mkdir()
    elif how == "pipe":
        os.mkfifo(file)
    elif how == "zero":
        file.symlink_to("/dev/zero")
    elif how == "dangling":
        file.symlink_to(file.parent / "nowhere")
    elif how == "loop":
        file.symlink_to(file)
    elif how == "sparse":
        with file.open("wb") as opened:
            opened.truncate(1 << 30)
    return how
