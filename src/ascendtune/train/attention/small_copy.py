"""A small copy of a model, made from its config: each kind of layer that it has, with its own code, but few numbers.

Unchanged is what determines which tokens a token sees: the kinds of layers and their order, heads, positions, routers.
Reduced are sizes: layers that repeat others, the vocabulary, and windows and chunks, so that short documents are longer
than all of them. If the copy is still too large for a quick trial, widths, experts and heads are reduced, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn

Values = dict[str, Any]
"""A config as plain values."""
WINDOW = 4
"""Windows and chunks of a small copy, in tokens."""
_VOCABULARY, _WIDTH, _EXPERTS = 128, 64, 4
_QUICK = 8_000_000
"""Number of parameters that allows a quick trial."""
_BEARABLE = 120_000_000
_WINDOWS = re.compile(r"window|chunk|^block_size$|^local_attention$|^index(er)?_(top_?k|budget|block_size)$")
_BLOCKS_SEEN = re.compile(r"^index(er)?_top_?k_blocks$")
_NO_WINDOW = re.compile(r"layer|pattern|num_|use_|inference|^n_|type|_ids?$|bias|temperature")
_EXPERT_COUNTS = re.compile(r"^(moe_)?(num|n)_(local_|routed_)?experts$")
_EXPERTS_OF_A_TOKEN = re.compile(r"experts_per_tok|^(moe_)?top_?k$|^moe_k$")
_DEPTHS = ("num_hidden_layers", "num_layers", "depth", "encoder_layers", "n_layers")
_OF_THE_STACK = re.compile(r"idx|layer_id|num_(hidden_)?layers|^_")
_WIDTHS = re.compile(r"intermediate|ffn|^d_ff$|^n_inner$")


def small_configs(config: Any, make: Callable[[Any], nn.Module]) -> Iterator[Any]:
    """Configs of small copies, the most faithful first; the model's class may refuse some of them.

    Args:
        make: makes a model from a config, on torch's default device.

    Raises:
        Exception: after the last config, the class's error about one that it refused.
    """
    values = config.to_dict()
    _apply_to_all(values, _cut_vocabulary_and_windows)
    _cut_layers(config, values, make)
    _cut_towers(config, values, make)
    slow: list[tuple[int, Any]] = []
    refusal: Exception | None = None
    for cut in (None, _cut_widths, _cut_experts, _cut_heads):
        if cut is not None:
            _apply_to_all(values, cut)
        if cut is _cut_heads:
            values = _declared(config, values)
        try:
            small = _config(config, values)
            size = _parameters(make, small)
        # Classes raise various errors for sizes that do not fit together.
        except Exception as error:  # noqa: BLE001
            refusal = refusal or error
            continue
        if size <= _QUICK:
            yield small
        elif size <= _BEARABLE:
            slow.append((size, small))
    yield from (small for _, small in sorted(slow, key=lambda each: each[0]))
    if refusal is not None:
        raise refusal


def _config(config: Any, values: Values) -> Any:
    small = type(config).from_dict(_copied(values))
    # The directory of the model's own code, if it brings any.
    small._name_or_path = config._name_or_path
    return small


def _copied(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _copied(value) for key, value in values.items()}
    return [_copied(value) for value in values] if isinstance(values, list) else values


def _parameters(make: Callable[[Any], nn.Module], config: Any) -> int:
    with torch.device("meta"):
        return sum(each.numel() for each in make(config).parameters())


def _apply_to_all(values: Values, cut: Callable[[Values], None]) -> None:
    """Apply `cut` to a config and its sub-configs."""
    cut(values)
    for value in values.values():
        # Not to dicts of label names, whose keys are numbers.
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            _apply_to_all(value, cut)


def _cut_vocabulary_and_windows(values: Values) -> None:
    for key, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        if key.startswith("vocab_size") and value > _VOCABULARY:
            values[key] = _VOCABULARY
        elif _WINDOWS.search(key) and not _NO_WINDOW.search(key) and value > WINDOW:
            values[key] = WINDOW
        elif _BLOCKS_SEEN.search(key):
            values[key] = 1
    pad = values.get("pad_token_id")
    if isinstance(pad, int) and pad >= _VOCABULARY:
        values["pad_token_id"] = 0


def _cut_widths(values: Values) -> None:
    for key, value in values.items():
        if _WIDTHS.search(key):
            if isinstance(value, int) and not isinstance(value, bool):
                values[key] = min(value, _WIDTH)
            elif isinstance(value, list) and all(isinstance(each, int) for each in value):
                values[key] = [min(each, _WIDTH) for each in value]


def _cut_experts(values: Values) -> None:
    grouped = (values.get("n_group") or 1) > 1
    for key, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        if _EXPERT_COUNTS.search(key):
            values[key] = min(value, 2 * _EXPERTS if grouped else _EXPERTS)
        elif _EXPERTS_OF_A_TOKEN.search(key):
            values[key] = min(value, _EXPERTS // 2)
    if grouped:
        values.update(n_group=2, topk_group=1)


def _declared(config: Any, values: Values) -> Values:
    """Remove values that the class computes from others: it computes them again from smaller ones."""
    if not is_dataclass(config):
        return values
    kept = {each.name for each in fields(config)} | {"architectures", "auto_map", "dtype"}
    return {
        key: _declared(inside, value) if is_dataclass(inside := getattr(config, key, None)) else value
        for key, value in values.items()
        if key in kept
    }


def _cut_heads(values: Values) -> None:
    """Use fewer heads of the same size; if several share a key-value head, two still do."""
    heads, hidden = values.get("num_attention_heads"), values.get("hidden_size")
    if not isinstance(heads, int) or not isinstance(hidden, int):
        return
    shared = values.get("num_key_value_heads") or heads
    fewer = min(2, heads // shared) * min(2, shared)
    size = values.get("head_dim") or hidden // heads
    values.update(num_attention_heads=fewer, hidden_size=min(hidden, fewer * size))
    if "num_key_value_heads" in values:
        values["num_key_value_heads"] = min(2, shared)


def _cut_layers(config: Any, values: Values, make: Callable[[Any], nn.Module]) -> None:
    """Keep one layer of each kind and at least two; if that changes the kinds, all layers up to the last new one."""
    text = _text_values(config, values)
    key = getattr(config.get_text_config(), "attribute_map", {}).get("num_hidden_layers", "num_hidden_layers")
    depth = text.get(key)
    if not isinstance(depth, int) or depth <= 2:
        return
    try:
        kinds = _kinds(make, _config(config, values), depth)
    # Values that the class refuses fail again, with a message, when the copy is made.
    except Exception:  # noqa: BLE001
        return
    if len(kinds) != depth:
        return
    first = sorted(kinds.index(each) for each in dict.fromkeys(kinds))
    chosen = first if len(first) > 1 else [0, 1]
    for layers in (chosen, list(range(max(chosen) + 1))):
        trial = _copied(values)
        trial_text = _text_values(config, trial)
        for name, value in trial_text.items():
            if isinstance(value, list | str) and len(value) == depth:
                picked = [value[at] for at in layers]
                trial_text[name] = "".join(picked) if isinstance(value, str) else picked
        trial_text[key] = len(layers)
        try:
            kinds_of_copy = _kinds(make, _config(config, trial), len(layers))
        except Exception:  # noqa: BLE001
            continue
        if set(kinds_of_copy) == set(kinds):
            values.clear()
            values.update(trial)
            return


def _text_values(config: Any, values: Values) -> Values:
    text = config.get_text_config()
    inside = (name for name in getattr(config, "sub_configs", {}) if getattr(config, name, None) is text)
    name = next(inside, None)
    text_values: Values = values[name] if name is not None else values
    return text_values


def _kinds(make: Callable[[Any], nn.Module], config: Any, depth: int) -> list[object]:
    """Composition of each decoder block: modules, shapes of weights, and numbers other than the block's own.

    Empty if the model has no list of `depth` blocks.
    """
    with torch.device("meta"):
        model = make(config)
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    outer = [each for name, each in lists.items() if not any(name.startswith(f"{other}.") for other in lists)]
    fitting = [each for each in outer if len(each) == depth]
    return [tuple(map(_kind, blocks)) for blocks in zip(*fitting, strict=True)]


def _cut_towers(config: Any, values: Values, make: Callable[[Any], nn.Module]) -> None:
    """Keep one layer of towers for images and audio, if their classes accept that."""
    trial, text = _copied(values), config.get_text_config()
    for name in getattr(config, "sub_configs", {}):
        inside = trial.get(name)
        if isinstance(inside, dict) and getattr(config, name, None) is not text:
            inside.update({key: 1 for key in _DEPTHS if isinstance(inside.get(key), int)})
    if trial == values:
        return
    with suppress(Exception), torch.device("meta"):
        make(_config(config, trial))
        values.update(trial)


def _kind(block: nn.Module) -> object:
    described = []
    for name, module in block.named_modules():
        attributes = {
            key: value
            for key, value in vars(module).items()
            if isinstance(value, bool | int | str | None) and not _OF_THE_STACK.search(key)
        }
        shapes = {key: tuple(each.shape) for key, each in module.named_parameters(recurse=False)}
        described.append((name, type(module).__name__, repr(sorted(attributes.items())), repr(sorted(shapes.items()))))
    return tuple(described)
