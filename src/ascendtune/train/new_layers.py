"""New decoder blocks that are the identity at first: LLaMA Pro (Wu et al. 2024, arXiv:2401.02415, section 3.2).

The L blocks of a model form N groups; after each group follows a copy of its last block with output projections of 0.
A block adds its output to the residual stream, so a copy that outputs 0 is the identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ascendtune.core.errors import RecipeError
from ascendtune.core.units import count_of
from ascendtune.train.tuner.freeze import decoder_blocks

# Last weights of attention and of the feed-forward network, by their names in transformers.
_OUTPUTS = {"o_proj", "out_proj", "down_proj", "c_proj", "dense", "dense_4h_to_h", "fc2", "wo", "w2"}
_PROBED_TOKENS = 4


def expanded_config(config: Any, count: int) -> Any:
    """`config` with `count` new blocks, also in its lists of one entry per block; modified in place.

    Raises:
        RecipeError: the number of blocks is not a multiple of `count`, or config.json lists blocks by their numbers.
    """
    text = config.get_text_config()
    layers: int = text.num_hidden_layers
    if layers % count:
        fitting = ", ".join(str(each) for each in range(1, layers + 1) if layers % each == 0)
        raise RecipeError(
            f"model.new_layers: {count}: the model has {count_of(layers, 'layer')}, which is not a multiple of it",
            code="layers-not-divisible",
            remedy=f"choose one of {fitting}",
        )
    for name, value in text.to_dict().items():
        if "layer" not in name or not isinstance(value, list | tuple | dict) or not value:
            continue
        # Gemma 4 stores the differences between layers in a dict of layer numbers.
        if len(value) != layers or isinstance(value, dict):
            raise _not_expandable(f"{name} in config.json chooses layers by their numbers")
        setattr(text, name, [value[_source(number, layers, count)[0]] for number in range(layers + count)])
    text.num_hidden_layers = layers + count
    return config


def expand_layers(model: Any, config: Any) -> Any:
    """A model of `config` with the weights of `model` (shared, not copied) and new blocks that are the identity.

    Args:
        config: returned by `expanded_config`.

    Raises:
        RecipeError: the new model does not compute what `model` computes.
    """
    where, blocks = decoder_blocks(model)
    layers, count = len(blocks), config.get_text_config().num_hidden_layers - len(blocks)
    with torch.device("meta"):
        larger = type(model)._from_config(
            config, dtype=model.dtype, attn_implementation=model.config._attn_implementation
        )
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    for name, tensor in [*larger.named_parameters(remove_duplicate=False), *larger.named_buffers()]:
        source, is_new = _source_of(name, where, layers, count)
        value = tensors.get(source)
        if value is None or value.shape != tensor.shape:
            raise _not_expandable(f"{name} has no counterpart of the same shape")
        if is_new:
            is_output = not _OUTPUTS.isdisjoint(name.split("."))
            value = torch.zeros_like(value) if is_output else value.detach().clone()
        holder, _, leaf = name.rpartition(".")
        module = larger.get_submodule(holder)
        if isinstance(tensor, torch.nn.Parameter):
            setattr(module, leaf, torch.nn.Parameter(value.detach(), requires_grad=tensor.requires_grad))
        else:
            setattr(module, leaf, value)
    larger.tie_weights()
    # Missing for a model with a score head, which does not generate.
    for name in ("generation_config", "_weight_conversions"):
        if hasattr(model, name):
            setattr(larger, name, getattr(model, name))
    if not torch.equal(_probe(model), _probe(larger)):
        raise _not_expandable("copies of its layers change what it computes")
    return larger


def _source(number: int, layers: int, count: int) -> tuple[int, bool]:
    """Number of the old block that block `number` is copied from, and whether it is a new block."""
    group = layers // count
    nth, within = divmod(number, group + 1)
    return nth * group + min(within, group - 1), within == group


def _source_of(name: str, where: str, layers: int, count: int) -> tuple[str, bool]:
    """Name of the tensor in the old model, and whether it belongs to a new block."""
    if not name.startswith(f"{where}."):
        return name, False
    number, _, rest = name.removeprefix(f"{where}.").partition(".")
    source, is_new = _source(int(number), layers, count)
    return f"{where}.{source}.{rest}", is_new


def _probe(model: Any) -> torch.Tensor:
    """(1, tokens, hidden): the decoder's output for the first tokens of the vocabulary, on the host."""
    ids = torch.arange(_PROBED_TOKENS)[None]
    with _plain_attention(model), torch.no_grad():
        computed: torch.Tensor = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return computed


@contextmanager
def _plain_attention(model: Any) -> Iterator[None]:
    """Use eager attention, without dropout: the device's implementation may not run on the host."""
    was_training, implementation = model.training, model.config._attn_implementation
    model.eval()
    model.config._attn_implementation = "eager"
    try:
        yield
    finally:
        model.config._attn_implementation = implementation
        model.train(was_training)


def _not_expandable(why: str) -> RecipeError:
    return RecipeError(
        f"model.new_layers: this model cannot get new layers: {why}",
        code="layers-not-expandable",
        remedy="remove model.new_layers; method.freeze.last_layers trains some of the layers that the model has",
    )
