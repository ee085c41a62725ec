"""What a step takes, by arithmetic alone, for models and strategies that cannot be traced; a third more or less."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from ascendtune.recipe.deepspeed_config import stage_of, zero_config
from ascendtune.recipe.method import MethodSection
from ascendtune.train.model import auto_class
from ascendtune.train.objective.logit_chunks import product_rows, softmax_rows
from ascendtune.train.optimizer import states_per_parameter
from ascendtune.train.plan.live_bytes import StepMemory
from ascendtune.train.plan.request import Document
from ascendtune.train.plan.setting import Setting
from ascendtune.train.precision import DTYPES
from ascendtune.train.strategy.choose import count_weights
from ascendtune.train.tuner.nf4 import bytes_of
from ascendtune.train.tuner.quantised_linear import quantisable_linears

_LAYER_BYTES = 34
"""Activations of a layer per token and hidden unit in 16 bits (Korthikanti et al. 2022, arXiv 2205.05198: the
layer without parallelism, sbh (34 + 5as/h), without the part of the attention scores, which fused attention does not
keep)."""


def compute_step(setting: Setting, documents: Sequence[Document]) -> StepMemory:
    """The moment of a step at which most is taken.

    Raises:
        Exception: the model class cannot be made from its config.
    """
    recipe, ranks = setting.recipe, setting.ranks
    with torch.device("meta"):
        model = auto_class(recipe.method.stage).from_config(
            setting.config, trust_remote_code=recipe.model.trust_remote_code
        )
    weights = count_weights(model, recipe.method, setting.precision)
    text = setting.config.get_text_config()
    layers, hidden = int(text.num_hidden_layers), int(text.hidden_size)
    tokens = sum(each.tokens for each in documents)
    if not setting.padding_free:
        tokens = len(documents) * max(each.tokens for each in documents)
    wide = DTYPES[setting.precision.compute].itemsize / 2
    kept = 2 * hidden * tokens * layers if recipe.memory.gradient_checkpointing else 0
    whole_layers = 1 if recipe.memory.gradient_checkpointing else layers
    linears = [each.weight.numel() for each in quantisable_linears(model, recipe.model)]
    quantised = sum(bytes_of(each, double=recipe.model.double_quantization) for each in linears)
    frozen = (weights.all - weights.trained - sum(linears)) * weights.frozen_bytes
    divided = _divided(setting)
    gathered = 2 * weights.block * weights.computed_bytes + weights.outside * weights.trained_bytes
    holders = setting.shards if setting.strategy == "fsdp" else ranks
    share = {part: 1 / holders if part in divided else 1.0 for part in ("weights", "gradients", "optimizer")}
    # FSDP gathers weights in the type of autocast, which need not copy them.
    casts = weights.computed_bytes < weights.frozen_bytes and setting.strategy != "fsdp"
    cast = weights.all * weights.computed_bytes if casts else 0
    offloaded = setting.strategy == "fsdp" and recipe.parallel.fsdp.offload
    share = {part: 0.0 if offloaded else size for part, size in share.items()}
    taken = Counter({
        "weights": int((frozen + weights.trained * weights.trained_bytes) * share["weights"]) + quantised,
        "gradients": int(weights.trained * weights.trained_bytes * share["gradients"]),
        "optimizer": int(
            weights.trained * weights.trained_bytes * states_per_parameter(recipe.optim) * share["optimizer"]
        ),
        "communication": int(gathered if "weights" in divided else 0),
        "activations": int(wide * (kept + _LAYER_BYTES * hidden * tokens * whole_layers)) + cast,
        "loss": _loss_bytes(int(text.vocab_size), hidden, DTYPES[setting.precision.compute].itemsize, recipe.method),
    })  # fmt: skip
    resting = Counter({name: taken[name] for name in ("weights", "optimizer")})
    return StepMemory({"step": taken}, resting, weights.all, weights.trained, layers, "arithmetic")


def _loss_bytes(vocabulary: int, hidden: int, itemsize: int, method: MethodSection) -> int:
    """The logits of one chunk, and three times those in fp32 whose softmax is taken at once."""
    rows = product_rows(vocabulary, hidden, is_trained=method.tuner == "full")
    return vocabulary * (itemsize * rows + 3 * 4 * softmax_rows(vocabulary))


def _divided(setting: Setting) -> set[str]:
    """Parts of which each rank holds its share (the stages of ZeRO: Rajbhandari et al. 2019, arXiv 1910.02054)."""
    if setting.strategy == "fsdp":
        return {"weights", "gradients", "optimizer"}
    if setting.strategy != "deepspeed":
        return set()
    stage = stage_of(zero_config(setting.recipe, compute=None, ranks=None, hidden_size=None))
    return set(["optimizer", "gradients", "weights"][:stage])
