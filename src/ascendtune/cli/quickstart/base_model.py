"""A base model with random weights and a character tokenizer, in Hugging Face format, created without torch."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ascendtune.cli.quickstart.skill import PROMPT_PREFIX

if TYPE_CHECKING:
    import numpy

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_PHRASES = ("system\n", "user\n", "assistant\n", PROMPT_PREFIX)
"""Phrases of every conversation, one token each, so that the task is about the letters."""

_HIDDEN, _LAYERS, _HEADS, _INTERMEDIATE = 128, 4, 4, 336
_CONTEXT = 256
_SPREAD = 0.02
"""Standard deviation of the weights, as transformers draws them."""


@dataclass(frozen=True)
class BaseModel:
    """The files of the model, by name."""

    files: dict[str, bytes]
    parameters: int


def make_base_model() -> BaseModel:
    """config.json, model.safetensors and the tokenizer's files; the same each time."""
    import numpy
    from safetensors.numpy import save

    tokenizer = _tokenizer()
    vocabulary = tokenizer.get_vocab_size()
    draw = numpy.random.default_rng(0)
    weights = {name: _drawn(draw, shape) for name, shape in _shapes(vocabulary)}
    end = {"eos_token": _SPECIAL[2], "pad_token": _SPECIAL[0]}
    chatml = files("ascendtune.data").joinpath("templates", "chatml.jinja")
    written = {
        "config.json": _json(_config(vocabulary)),
        "model.safetensors": save(weights, {"format": "pt"}),
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": _json({"tokenizer_class": "PreTrainedTokenizerFast", **end}),
        "chat_template.jinja": chatml.read_bytes(),
    }
    return BaseModel(written, sum(each.size for each in weights.values()))


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"


def _config(vocabulary: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": vocabulary,
        "hidden_size": _HIDDEN,
        "intermediate_size": _INTERMEDIATE,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": _CONTEXT,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": _SPECIAL.index("<|im_end|>"),
        "pad_token_id": _SPECIAL.index("<|endoftext|>"),
    }


def _shapes(vocabulary: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the weights, linear ones as (out, in)."""
    yield "model.embed_tokens.weight", (vocabulary, _HIDDEN)
    for number in range(_LAYERS):
        layer = f"model.layers.{number}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield f"{layer}.self_attn.{name}.weight", (_HIDDEN, _HIDDEN)
        for name in ("gate_proj", "up_proj"):
            yield f"{layer}.mlp.{name}.weight", (_INTERMEDIATE, _HIDDEN)
        yield f"{layer}.mlp.down_proj.weight", (_HIDDEN, _INTERMEDIATE)
        yield f"{layer}.input_layernorm.weight", (_HIDDEN,)
        yield f"{layer}.post_attention_layernorm.weight", (_HIDDEN,)
    yield "model.norm.weight", (_HIDDEN,)


def _drawn(draw: numpy.random.Generator, shape: tuple[int, ...]) -> numpy.ndarray:
    import numpy

    if len(shape) == 1:
        return numpy.ones(shape, numpy.float32)
    return draw.normal(0.0, _SPREAD, shape).astype(numpy.float32)


def _tokenizer() -> Any:
    """A tokenizer with a token for every printable character and every phrase; other characters become `?`."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    words = [*_SPECIAL, *_PHRASES, "\n", *string.printable[:95]]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    piece = "|".join([*_PHRASES, r"[\s\S]"])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(piece), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in _SPECIAL])
    return tokenizer
