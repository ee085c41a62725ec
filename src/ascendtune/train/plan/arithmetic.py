"""Memory of a step by arithmetic alone, for models and strategies that cannot be traced; accurate to about a third."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ascendtune.recipe.deepspeed_config import offloaded_parts, stage_of, zero_config
from ascendtune.recipe.method import MethodSection
from ascendtune.train.model import apply_tuner, auto_class, grow_embeddings, trainable_share
from ascendtune.train.objective.logit_chunks import product_rows, softmax_rows
from ascendtune.train.optimizer import states_per_parameter
from ascendtune.train.plan.live_bytes import Bytes, StepMemory
from ascendtune.train.plan.request import DocumentSize
from ascendtune.train.plan.training_choices import TrainingChoices
from ascendtune.train.precision import DTYPES
from ascendtune.train.strategy.choose import ParameterCounts, count_weights
from ascendtune.train.tuner.nf4 import bytes_of
from ascendtune.train.tuner.quantised_linear import quantisable_linears

ARITHMETIC = "arithmetic"
"""The method of an estimate."""
LOADING = "loading"
"""The moment at which DeepSpeed gets the model, whole on each device."""
_REDUCE_BUCKET = 500_000_000
"""Numbers in the buffer in which gradients are reduced, unless the JSON sets it (DeepSpeed 0.19)."""
_LAYER_BYTES = 34
"""Activations of a layer per token and hidden unit in 16 bits (Korthikanti et al. 2022, arXiv 2205.05198: the
layer without parallelism, sbh (34 + 5as/h), without the term of the attention scores, which fused attention does
not keep)."""


def compute_step(setting: TrainingChoices, documents: Sequence[DocumentSize]) -> StepMemory:
    """Compute the memory at the peak of a step.

    Raises:
        Exception: the model class cannot be constructed from its config.
    """
    recipe = setting.recipe
    with torch.device("meta"):
        model = auto_class(recipe.method.stage).from_config(
            copy.deepcopy(setting.config), trust_remote_code=recipe.model.trust_remote_code
        )
        grow_embeddings(model, setting.vocabulary)
        weights = count_weights(model, recipe.method, setting.precision)
        linears = [each.weight.numel() for each in quantisable_linears(model, recipe.model)]
        if setting.adapters:
            # Adapters to start from have the size of their files.
            tuned = apply_tuner(model, recipe.method, setting.adapters)
            weights = replace(weights, trained=trainable_share(tuned)[0])
    text = setting.config.get_text_config()
    layers, hidden = int(text.num_hidden_layers), int(text.hidden_size)
    tokens = sum(each.tokens for each in documents)
    if not setting.padding_free:
        tokens = len(documents) * max(each.tokens for each in documents)
    wide = DTYPES[setting.precision.compute].itemsize / 2
    deep = _layers_with_gradient(model, recipe.method, layers)
    kept_bytes = 2 * hidden * tokens * deep if recipe.memory.gradient_checkpointing else 0
    whole_layers = min(1, deep) if recipe.memory.gradient_checkpointing else deep
    # FSDP gathers weights in autocast's dtype, so it need not copy them; DeepSpeed stores them in it.
    casts = weights.computed_bytes < weights.frozen_bytes and setting.strategy in ("single", "ddp")
    dense = replace(weights, frozen=weights.frozen - sum(linears))
    cast = (weights.all - sum(linears)) * weights.computed_bytes if casts else 0
    labels = sum(min(each.labels, each.tokens) for each in documents)
    usage, host = _of_deepspeed(setting, dense) if setting.strategy == "deepspeed" else (_of_torch(setting, dense), 0)
    quantised = sum(bytes_of(each, double=recipe.model.double_quantization) for each in linears)
    usage["weights"] += quantised
    of_layer = int(wide * _LAYER_BYTES * hidden * tokens)
    activations = int(wide * kept_bytes) + of_layer * whole_layers
    if recipe.memory.offload_activations and not setting.device.shares_host_memory:
        # The activations of one layer are on the device while it computes.
        host += max(0, activations - of_layer)
        activations = min(activations, of_layer)
    usage |= {
        "activations": activations + cast,
        "loss": _loss_bytes(
            int(text.vocab_size), hidden, DTYPES[setting.precision.compute].itemsize, recipe.method, labels
        ),
    }  # fmt: skip
    resting = Counter({name: usage[name] for name in ("weights", "optimizer")})
    # Adapters, and modules that are trained beside them, add to the model's parameters.
    parameters = weights.frozen + weights.trained
    moments = {"step": usage}
    if setting.strategy == "deepspeed":
        # The engine converts and divides a model that is on the device.
        whole = dense.frozen * dense.frozen_bytes + dense.trained * dense.trained_bytes
        moments[LOADING] = Counter({"weights": whole + quantised})
    return StepMemory(moments, resting, parameters, weights.trained, layers, ARITHMETIC, offloaded=host)


def _layers_with_gradient(model: Any, method: MethodSection, layers: int) -> int:
    """Number of layers that keep activations: all from the first one on in which, or before which, something trains."""
    if method.tuner != "freeze":
        return layers
    table = model.get_input_embeddings().weight
    named = [module for path, module in model.named_modules() if path.rpartition(".")[2] in method.freeze.extra]
    if any(each is table for module in named for each in module.parameters()):
        return layers
    return layers - min((each for each in method.freeze.chosen(layers) if 0 <= each < layers), default=layers)


def _of_torch(setting: TrainingChoices, weights: ParameterCounts) -> Bytes:
    """Weights, gradients and state on one device, or with DDP or FSDP. Offloaded memory is subtracted later."""
    divided = setting.shards if setting.strategy == "fsdp" else 1
    gathered = 2 * weights.block * weights.computed_bytes + weights.outside * weights.trained_bytes
    trained = weights.trained * weights.trained_bytes
    return Counter({
        "weights": (weights.frozen * weights.frozen_bytes + trained) // divided,
        "gradients": trained // divided,
        "optimizer": trained * states_per_parameter(setting.recipe.optim) // divided,
        "communication": gathered if setting.strategy == "fsdp" else 0,
    })  # fmt: skip


def _of_deepspeed(setting: TrainingChoices, weights: ParameterCounts) -> tuple[Bytes, int]:
    """The same with DeepSpeed, and the bytes of a rank in host memory.

    The engine has weights and gradients in the compute dtype and, from stage 1 on, fp32 ones in its optimizer
    (Rajbhandari et al. 2019, arXiv 1910.02054, section 3.1: 2, 2 and 12 bytes with Adam). The stages shard optimizer,
    gradients and weights, one after the other. Offloading changes nothing if the device shares the host's memory.
    """
    recipe, ranks, wide = setting.recipe, setting.ranks, weights.computed_bytes
    config = zero_config(recipe, compute=None, ranks=None, hidden_size=setting.config.get_text_config().hidden_size)
    stage = stage_of(config)
    kept_bytes = 0 if stage == 0 else 4
    parameters = weights.frozen + weights.trained
    outside = 2 * weights.block + weights.outside
    bucket = int(config["zero_optimization"].get("reduce_bucket_size", _REDUCE_BUCKET)) if stage else 0
    usage = Counter({
        "weights": parameters * wide // (ranks if stage == 3 else 1),
        "gradients": weights.trained * wide // (ranks if stage >= 2 else 1),
        "optimizer": weights.trained * (kept_bytes + 4 * states_per_parameter(recipe.optim)) // (ranks if stage else 1),
        "communication": wide * (bucket + (outside if stage == 3 else 0)),
    })  # fmt: skip
    if setting.device.shares_host_memory:
        return usage, 0
    host = 0
    moved = {"offload_optimizer": ["optimizer", *(["gradients"] if stage >= 2 else [])], "offload_param": ["weights"]}
    for part, place in offloaded_parts(config).items():
        for name in moved[part]:
            host += usage[name] if place == "cpu" else 0
            usage[name] = 0
    return usage, host


def _loss_bytes(vocabulary: int, hidden: int, itemsize: int, method: MethodSection, labels: int) -> int:
    """The logits of one product chunk, and three times the fp32 logits of one softmax chunk."""
    rows = product_rows(vocabulary, hidden, is_trained=method.tuner == "full")
    return vocabulary * (itemsize * min(rows, labels) + 3 * 4 * min(softmax_rows(vocabulary), labels))
