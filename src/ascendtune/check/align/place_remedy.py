"""The remedy for the first tensor that differs: the code or setting that computes it."""

from __future__ import annotations

import math

from ascendtune.check.align.dump_comparison import FirstDifference
from ascendtune.check.align.input_findings import DATA_REMEDY
from ascendtune.check.align.language import say

_LORA = "LoRA's rank, alpha, scaling and kind (DoRA or plain)"
_ATTENTION = "the mask (causal, padding, documents), the dtype of the softmax, the scale and the attention kernel"
_ROUTER = "the router (experts per token, scale and normalisation of their weights) and the weights of the experts"
# The first word that occurs in the module's path, class or slot decides.
_CAUSES = (
    ("rotary", "RoPE's base and scaling (rope_theta, rope_scaling) and the position ids"),
    ("norm", "the epsilon of the norm and the dtype in which it computes"),
    ("dropout", "dropout: it must be 0, or off, on both sides"),
    ("lora", _LORA),
    ("oft_r", "OFT's blocks, how their inverse is computed, and whether they are constrained, shared or dropped"),
    ("attn", _ATTENTION),
    ("attention", _ATTENTION),
    ("embed", "token ids, the embedding's weights, and whether the head shares them"),
    ("router", _ROUTER),
    ("experts", _ROUTER),
    ("act", "the activation function and its approximation (tanh or erf)"),
    ("mlp", "the activation function, and a fused kernel against the plain modules"),
    ("head", "the head's weights: tied or not, and its scaling"),
)
_UPDATES = (
    "the optimizer: learning rate of this step, betas, epsilon, weight decay, bias correction, and the dtype that its "
    "state and the parameters have"
)


def remedy_of(place: FirstDifference) -> str:
    """Where to look for the cause of `place`, in the current language."""
    row, phase = place.row, place.row.key.phase
    if place.stage == "ranks":
        if phase == "gradient":
            return say("gradients are not reduced over ranks, or not on every rank: check DDP's no_sync and hooks")
        return say(
            "rank {rank} has different parameters than the other ranks: check what loads and broadcasts the weights",
            rank=row.rank,
        )
    if place.stage == "start":
        return say(
            "the weights differ before training: compare the model's files (sha256), and what changes weights at load"
        )
    if place.stage == "data":
        return say(DATA_REMEDY)
    if phase == "parameter_before":
        return say(
            "the weights changed between the last update and this step: check callbacks, weight averaging, and what "
            "loads or clips weights"
        )
    if phase == "parameter_after":
        if row.reference.dtype != row.candidate.dtype:
            return say(
                "parameters are kept in {one} and {other}: the coarser dtype loses small updates; keep master weights "
                "in float32",
                one=row.reference.dtype,
                other=row.candidate.dtype,
            )
        return say(_UPDATES)
    if row.is_of_one_side:
        if "lora" in row.key.name:
            return say("compare {cause}", cause=say(_LORA))
        return say(
            "train the same parameters on both sides: modules_to_save, frozen layers, tied heads, requires_grad, "
            "detach()"
        )
    if place.ratio is not None or phase == "loss":
        return say(
            "compare what the loss is a mean over: its divisor under accumulation and over ranks, tokens or sequences, "
            "and which positions have labels"
        )
    if math.isinf(row.difference):
        return say(
            "look at what {module} computes from its inputs: an overflow, a division by 0, or a bad weight",
            module=place.module,
        )
    if not place.module:
        return say("compare what the model computes after its last module, such as caps or scales of the logits")
    if place.agreeing.startswith(f"{place.module}.lora_"):
        return say("compare {cause}", cause=say(_LORA))
    words = f"{place.module} {row.candidate.kind} {row.key.name}".lower()
    cause = next(
        (cause for word, cause in _CAUSES if word in words.rpartition("layers.")[2]), "what this module computes"
    )
    if phase == "gradient" and place.differing > 1:
        return say(
            "gradients of {count} modules differ: compare what the loss is a mean over, and how gradients are added up "
            "over ranks and micro-batches: the share of each, sum or mean",
            count=place.differing,
        )
    if phase == "gradient":
        return say(
            "only the gradient of this parameter differs: check hooks, freezing, clipping, and the backward of {cause}",
            cause=say(cause),
        )
    return say("compare {cause}", cause=say(cause))
