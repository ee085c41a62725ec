"""Findings of the stages from two dumps, with the numbers of both sides."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ascendtune.check.align.dump import Tensor
from ascendtune.check.align.parting import DumpComparison, Place
from ascendtune.check.align.tensor_rows import Row
from ascendtune.check.finding import Finding, failure, ok, warning
from ascendtune.core.units import count_of

_PHASES = {
    "parameter_before": "parameter before the step",
    "forward": "forward",
    "loss": "loss",
    "backward": "backward",
    "gradient": "gradient",
    "parameter_after": "update",
}
# The first word that occurs in the module's path, class or slot decides.
_CAUSES = (
    ("rotary", "RoPE's base and scaling (rope_theta, rope_scaling) and the position ids"),
    ("norm", "the epsilon of the norm and the dtype in which it computes"),
    ("dropout", "dropout: it must be 0, or off, on both sides"),
    ("lora", "LoRA's rank, alpha and scaling"),
    ("attn", "the mask (causal, padding, documents), the dtype of the softmax, the scale and the attention kernel"),
    (
        "attention",
        "the mask (causal, padding, documents), the dtype of the softmax, the scale and the attention kernel",
    ),
    ("embed", "token ids and the embedding's weights"),
    ("act", "the activation function and its approximation (tanh or erf)"),
    ("mlp", "the activation function, and a fused kernel against the plain modules"),
    ("head", "the head's weights: tied or not, and its scaling"),
)
_UPDATES = (
    "the optimizer: learning rate of this step, betas, epsilon, weight decay, bias correction, and the dtype that "
)
_SHOWN_SAMPLES = 4


def refined(findings: tuple[Finding, ...], dumps: DumpComparison) -> tuple[Finding, ...]:
    """The stages' findings with what the dumps add to each."""
    return tuple(_refined(each, dumps) for each in findings)


def _refined(finding: Finding, dumps: DumpComparison) -> Finding:
    stage = finding.code
    if dumps.place is not None and dumps.place.stage == stage:
        found = _of_place(dumps.place)
        before = (finding.measured,) if finding.status != "unknown" else ()
        return replace(found, evidence=(*found.evidence, *before))
    if dumps.without_effect is not None and dumps.without_effect.stage == stage and finding.status != "failure":
        return _harmless(dumps.without_effect)
    if stage == "ranks" and dumps.replicas and finding.status != "failure":
        return replace(
            finding, evidence=(*finding.evidence, "replicas of parameters and gradients agree between ranks")
        )
    if stage in dumps.agreeing and finding.status in ("ok", "unknown"):
        steps = f"step {dumps.steps[0]}" if len(dumps.steps) == 1 else f"steps {dumps.steps[0]} to {dumps.steps[-1]}"
        said = f"dumped tensors of {steps} agree"
        return ok(
            stage, said if finding.status == "unknown" else f"{finding.measured}; {said}", evidence=finding.evidence
        )
    if stage == "forward" and dumps.obstacle:
        return replace(finding, evidence=(*finding.evidence, f"modules were not compared: {dumps.obstacle}"))
    return finding


def place_text(place: Place) -> str:
    """`step 3, forward, model.layers.0.self_attn, rank 1`."""
    ranks = count_of(len(place.ranks), "rank") if len(place.ranks) > 4 else _ranks(place)
    words = (f"step {place.step}", _PHASES[place.row.key.phase], place.module, ranks)
    return ", ".join(word for word in words if word)


def place_as_json(place: Place) -> dict[str, Any]:
    """Fields of the place for `align.json`."""
    row = place.row
    return {
        "step": place.step,
        "stage": place.stage,
        "phase": row.key.phase,
        "module": place.module,
        "tensor": row.key.name,
        "slot": row.key.slot,
        "micro_batch": row.key.micro_batch,
        "ranks": list(place.ranks),
        "difference": row.difference if math.isfinite(row.difference) else None,
        "limit": row.limit,
        "ratio": place.ratio,
        "agreeing": place.agreeing or None,
        "reference": tensor_as_json(row.reference),
        "candidate": tensor_as_json(row.candidate),
    }


def tensor_as_json(tensor: Tensor) -> dict[str, Any]:
    """Statistics of a tensor of any shape, with null for what is not a number."""
    fields = tensor._asdict()
    named = {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in fields.items()}
    return {**named, "samples": [None if math.isnan(each) else each for each in tensor.samples]}


def _of_place(place: Place) -> Finding:
    row = place.row
    size = f"{row.difference:.2g} apart" if math.isfinite(row.difference) else _not_finite(row)
    notes = [_side("reference", row.reference), _side("candidate", row.candidate)]
    if place.agreeing:
        notes.insert(0, f"agrees until {place.agreeing}")
    if place.ratio is not None:
        notes.insert(0, f"every tensor of this phase that parts is {place.ratio:.4g} times the reference's")
    return failure(
        place.stage,
        f"{place_text(place)}: {size}",
        expected=f"at most {row.limit:.2g} from rounding" if row.limit else "equal",
        remedy=_remedy(place),
        evidence=notes,
    )


def _harmless(row: Row) -> Finding:
    name = f"{row.key.name} ({row.key.slot})" if row.key.slot else row.key.name
    if row.key.phase == "parameter_before":
        return warning(
            row.stage,
            f"{row.key.name} differs before step {row.step} by {row.difference:.2g}, but losses and gradients agree "
            "within rounding",
            remedy="compare the dtypes of the weights: DeepSpeed rounds them to bf16 at the start",
            evidence=(_side("reference", row.reference), _side("candidate", row.candidate)),
        )
    return warning(
        row.stage,
        f"{name} differs in step {row.step} by {row.difference:.2g}, but no loss and no gradient of an output "
        "does: only positions differ that are not trained on, such as padding",
        remedy="nothing, unless these positions should count",
        evidence=(_side("reference", row.reference), _side("candidate", row.candidate)),
    )


def _remedy(place: Place) -> str:
    row, phase = place.row, place.row.key.phase
    if place.stage == "ranks":
        if phase == "gradient":
            return "gradients are not reduced over ranks, or not on every rank: check DDP's no_sync and hooks"
        return f"rank {row.rank} holds other parameters than the others: check what loads and broadcasts the weights"
    if place.stage == "start":
        return (
            "the weights differ before training: compare the model's files (sha256), and what changes weights at load"
        )
    if place.stage == "data":
        return "compare the data: files, order, seed, template, max_length, packing"
    if phase == "parameter_after":
        if row.reference.dtype != row.candidate.dtype:
            return (
                f"parameters are kept in {row.reference.dtype} and {row.candidate.dtype}: the coarser dtype loses "
                "small updates; keep master weights in float32"
            )
        return _UPDATES + "its state and the parameters have"
    if place.ratio is not None or phase == "loss":
        return (
            "compare what the loss is a mean over: its divisor under accumulation and over ranks, tokens or sequences, "
            "and which positions have labels"
        )
    if math.isinf(row.difference):
        return f"look at what {place.module} computes from its inputs: an overflow, a division by 0, or a bad weight"
    words = f"{place.module} {row.candidate.kind} {row.key.name}".lower()
    cause = next(
        (cause for word, cause in _CAUSES if word in words.rpartition("layers.")[2]), "what this module computes"
    )
    if phase == "gradient":
        return (
            f"only the gradient of this parameter parts: check hooks, freezing, clipping, and the backward of {cause}"
        )
    return f"compare {cause}"


def _not_finite(row: Row) -> str:
    counts = [f"{each.nan:,} NaN and {each.inf:,} infinite elements" for each in (row.reference, row.candidate)]
    return " against ".join(counts)


def _ranks(place: Place) -> str:
    return f"rank{'s' if len(place.ranks) > 1 else ''} {', '.join(map(str, place.ranks))}"


def _side(name: str, tensor: Tensor) -> str:
    shape = "×".join(map(str, tensor.shape)) or "scalar"
    numbers = f"L2 {tensor.l2:.9g}, mean {tensor.mean:.6g}, from {tensor.lowest:.6g} to {tensor.highest:.6g}"
    samples = ", ".join(f"{each:.6g}" for each in tensor.samples[:_SHOWN_SAMPLES])
    return f"{name}: {tensor.dtype} {shape}, {numbers}, samples {samples}"
