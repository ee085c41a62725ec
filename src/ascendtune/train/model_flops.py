"""The FLOPs of a model under a recipe, in closed form from its matrices.

For a matrix (in × out) and n rows: forward 2·n·in·out, the gradient of the rows as many, the gradient of the matrix as
many (Chowdhery et al. 2022, PaLM, arXiv 2204.02311, appendix B). A frozen matrix has no gradient of its own, and rows
below the first trained weight have none either. Of the experts, those count to which a token is sent.

Attention of a query and a key: 2·heads·(size of a key + size of a value), backward twice that (the scores that fused
attention computes again are not counted). A document of L tokens has L·(L + 1) / 2 such pairs, fewer in a window.

The head counts for the positions that it is applied to: with the fused loss the labelled ones. Not counted: look-ups,
norms, activations, DoRA's norms, adapters of stacked experts, recurrences of linear attention, and the computation of
OFT's rotations, once a forward pass whatever the number of tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from ascendtune.core.errors import AscendtuneError
from ascendtune.core.log import warn
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.flops import ModelFlops, Passes
from ascendtune.train.tuner.freeze import decoder_blocks
from ascendtune.train.tuner.quantised_linear import Nf4Linear, quantised_numbers

_EXPERT = re.compile(r"\bexperts\.\d+\.")
_ROTATION = ".oft_R"
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "num_selected_experts", "top_k")
_ATTENDING = ("full_attention", "sliding_attention", "chunked_attention")


def model_flops(model: nn.Module, recipe: Recipe, *, head_is_fused: bool) -> ModelFlops:
    """Count the matrices of `model`, which has its adapters and may be on the meta device or sharded by ZeRO-3.

    If the structure of the model is unknown: an estimate from its number of parameters, and a warning.

    Args:
        head_is_fused: whether the head is applied to labelled positions only.
    """
    try:
        flops = _counted(model, recipe, head_is_fused)
    # Model classes may have any structure, and training does not depend on figures of speed.
    except Exception as error:  # noqa: BLE001
        warn(f"the FLOPs of this model cannot be counted ({error!r}): MFU is estimated from its number of parameters")
        flops = _of_parameters(model, head_is_fused)
    return _with_mismatched(flops) if recipe.method.task == "singles" else flops


def _counted(model: nn.Module, recipe: Recipe, head_is_fused: bool) -> ModelFlops:
    config: Any = model.config
    text = config.get_text_config()
    head, table = model.get_output_embeddings(), model.get_input_embeddings()  # type: ignore[operator]
    in_head = set() if head is None else set(head.modules())
    try:
        blocks = list(decoder_blocks(model)[1])
    except AscendtuneError:
        # Without known blocks, all matrices count as if they were outside of blocks.
        blocks = []
    in_blocks = {module for block in blocks for module in block.modules()}
    body, attention = Passes(), dict[int | None, Passes]()
    checkpointing = recipe.memory.gradient_checkpointing
    # With checkpointing transformers makes the embeddings' output require a gradient, needed or not.
    reached = checkpointing or any(each.requires_grad for each in table.parameters())
    for number, block in enumerate(blocks):
        of_block, attends_backward = _of_block(block, text, reached)
        forward = sum(each.forward for each in of_block)
        block_passes = sum(of_block, Passes())
        reached = reached or any(each.requires_grad for each in block.parameters())
        window, per_pair = _attention_of(text, number, len(blocks))
        again = checkpointing and reached
        if again and of_block:
            # torch stops recomputing once it has all tensors of the backward pass: before the last product.
            last = 0.0 if _ends_in_a_whole_node(block, text) else of_block[-1].forward
            block_passes += Passes(again=forward - last)
        body += block_passes
        attention[window] = attention.get(window, Passes()) + Passes(
            per_pair, 2 * per_pair if attends_backward else 0.0, per_pair if again else 0.0
        )
    for _, module in model.named_modules():
        if module not in in_blocks and module not in in_head and (matrix := _matrix(module)) is not None:
            body += _passes(matrix[0], reached, matrix[1])
            reached = reached or matrix[1]
    of_head = Passes()
    for module in in_head:
        if (matrix := _matrix(module)) is not None:
            of_head += _passes(matrix[0], reached, matrix[1])
    # Preference losses weigh each answer by all its tokens, and heads with adapters are recomputed chunk by chunk.
    if head is not None and head_is_fused and (recipe.method.stage == "preference" or type(head) is not nn.Linear):
        of_head += Passes(again=of_head.forward)
    if recipe.method.stage == "sft" and recipe.method.sft.loss == "asft":
        # asft makes a second forward pass, with the start weights and without gradients.
        body, of_head = (each + Passes(again=each.forward) for each in (body, of_head))
        attention = {window: each + Passes(again=each.forward) for window, each in attention.items()}
    kinds = tuple((window, each) for window, each in attention.items() if each.forward)
    return ModelFlops(body, of_head, kinds, head_is_fused)


def _with_mismatched(answers: ModelFlops) -> ModelFlops:
    """Means over kto's answers and as many mismatched ones, which have a forward pass only: no gradient needs them."""

    def mean(passes: Passes) -> Passes:
        return (passes + Passes(again=passes.forward)) * 0.5

    attention = tuple((window, mean(each)) for window, each in answers.attention)
    return replace(answers, body=mean(answers.body), head=mean(answers.head), attention=attention)


def _of_parameters(model: nn.Module, head_is_fused: bool) -> ModelFlops:
    """FLOPs if each parameter is used once per token, in the forward pass and for the gradient of its input."""
    sizes = [(math.prod(_shape(each)), each.requires_grad) for each in model.parameters()]
    forward = 2.0 * (sum(size for size, _ in sizes) + quantised_numbers(model))
    trained = 2.0 * sum(size for size, is_trained in sizes if is_trained)
    return ModelFlops(Passes(forward, forward + trained), Passes(), (), head_is_fused)


def _of_block(block: nn.Module, config: Any, reached: bool) -> tuple[list[Passes], bool]:
    """FLOPs of the products of a block in their order, and whether its attention has a backward pass.

    Args:
        reached: whether the input of the block has a gradient.
    """
    norms = any(
        each.requires_grad
        for child in block.children()
        for each in child.parameters(recurse=False)
        if len(_shape(each)) == 1
    )
    reached, attends, passes = reached or norms, False, list[Passes]()
    for position, child in enumerate(each for each in block.children() if any(_matrices(each, config))):
        products = list(_matrices(child, config))
        # All but the last read the input of the child, or the output of another of them.
        last = _last_group(products)
        turned = {name.removesuffix(_ROTATION) for name, _, _ in products if name.endswith(_ROTATION)}
        for group in (products[:last], products[last:]):
            trains = any(trained for _, _, trained in group)
            for name, size, trained in group:
                # These products read the output of an adapter's weights.
                inside = ".lora_B" in name or ".lora_embedding_B" in name or name.removesuffix(".base_layer") in turned
                passes.append(_passes(size, reached or (inside and trains), trained))
            reached = reached or trains
            if position == 0 and group is not products[last:]:
                attends = reached
    return passes, attends


def _last_group(products: list[tuple[str, float, bool]]) -> int:
    """Index of the first product of the last matrix: a matrix with adapters has several products."""
    last = products[-1][0].partition(".lora_")[0].removesuffix(".base_layer")
    return next(index for index, (name, _, _) in enumerate(products) if name == last or name.startswith(f"{last}."))


def _matrices(part: nn.Module, config: Any) -> Iterator[tuple[str, float, bool]]:
    """Name, number of elements that a token is multiplied with, and whether it trains, of each matrix in `part`."""
    for name, module in _in_order(part):
        if (matrix := _matrix(module)) is not None:
            listed = _EXPERT.search(f"{name}.")
            share = 1.0
            if listed:
                count = len(part.get_submodule(f"{name}."[: listed.start()] + "experts"))  # type: ignore[arg-type]
                share = _top_k(config) / count
            yield name, matrix[0] * share, matrix[1]
        for key, parameter in module.named_parameters(recurse=False):
            if len(shape := _shape(parameter)) == 3:
                yield f"{name}.{key}", shape[1] * shape[2] * float(_top_k(config)), parameter.requires_grad


def _in_order(part: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules of `part` with their names, rotations before the matrix whose inputs they rotate."""
    for name, module in part.named_modules():
        if _ROTATION in f".{name}":
            continue
        yield name, module
        for rotation in getattr(module, "oft_R", nn.ModuleDict()).values():
            yield f"{name}{_ROTATION}", rotation


def _matrix(module: nn.Module) -> tuple[float, bool] | None:
    """Elements of a module's matrix, and whether it trains; None for a module that does not multiply with one."""
    if isinstance(module, Nf4Linear):
        return float(module.in_features * module.out_features), False
    weight = module._parameters.get("weight")
    if weight is not None and isinstance(block := getattr(module, "block_size", None), int):
        # Rotations of OFT: each block's weights are half of its elements.
        return float(module.in_features * block), weight.requires_grad  # type: ignore[operator]
    if weight is None or len(shape := _shape(weight)) != 2 or isinstance(module, nn.Embedding):
        return None
    return float(shape[0] * shape[1]), weight.requires_grad


def _shape(parameter: nn.Parameter) -> tuple[int, ...]:
    """Shape of the whole parameter: DeepSpeed's ZeRO-3 replaces it by an empty one when it is constructed."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _passes(size: float, reached: bool, trained: bool) -> Passes:
    return Passes(2 * size, 2 * size * (int(reached) + int(trained)))


def _ends_in_a_whole_node(block: nn.Module, config: Any) -> bool:
    """Whether the last node of a block is recomputed to its end: stacked experts, a linear layer with its adapter."""
    names = [name for child in block.children() for name, _, _ in _matrices(child, config)]
    return ".lora_" in names[-1] or any(len(_shape(each)) == 3 for each in block.parameters())


def _top_k(config: Any) -> int:
    return next((int(value) for name in _TOP_K if (value := getattr(config, name, None))), 1)


def _attention_of(config: Any, layer: int, layers: int) -> tuple[int | None, float]:
    """Window of a layer, and FLOPs of its forward pass for each query-key pair."""
    types = getattr(config, "layer_types", None)
    kind = types[layer] if isinstance(types, list) and len(types) == layers else None
    if getattr(config, "is_heterogeneous", False):
        # Layers of Gemma 4 have different head sizes, and the model's config refuses to return a single one.
        config = config.per_layer_config[layer]
    window = getattr(config, "sliding_window", None)
    if kind is None and not getattr(config, "use_sliding_window", True):
        window = None
    elif kind == "chunked_attention":
        window = getattr(config, "attention_chunk_size", None)
    elif kind not in (None, "sliding_attention"):
        window = None
    heads = int(getattr(config, "num_attention_heads", None) or 0)
    if heads == 0 or (kind is not None and kind not in _ATTENDING):
        return None, 0.0
    size = getattr(config, "head_dim", None) or int(config.hidden_size) // heads
    # Multi-head latent attention has different sizes of keys and values.
    key = (getattr(config, "qk_nope_head_dim", None) or 0) + (getattr(config, "qk_rope_head_dim", None) or 0) or size
    value = getattr(config, "v_head_dim", None) or size
    return window, 2.0 * heads * (key + value)
