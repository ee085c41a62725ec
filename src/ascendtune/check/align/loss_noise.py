"""Limits of the difference that rounding alone causes between the losses of two correct trainings.

A rounding to p significant bits has a relative error of at most u = 2^-p (Higham, Accuracy and Stability of Numerical
Algorithms, 2002, section 2.1). Every block of a decoder rounds the residual stream twice. Rounding errors behave like
independent random numbers (section 2.8), so that after L blocks on two machines the hidden states, and with them the
logits, differ by about

    sigma = u · sqrt(2 · 2 · L).

The loss of a step is a mean over N labelled tokens with independent errors: it differs by sigma / sqrt(N), and by about
sigma² because the expected logarithm of a perturbed softmax is shifted. The norm of a gradient passes through the
blocks twice, and the errors of its elements are not independent.

A gradient is the result of n operations, forward and backward, of which each rounds: it differs by u · sqrt(2 n)
(`tensor_noise.py`), and so does the update. The update changes the loss, and by that share of this change two trainings
differ after it (`amplified.py`).

Losses of preferences that compare sums of log-probabilities under two models (DPO, hinge, KTO) are a mean over P
groups of f(beta · ratio). The errors of the N labelled tokens of both models add up in the ratios, so that the loss
differs by |f'| · beta · sigma · sqrt(2 N) / P. That of a reward model is a mean over P pairs of two scores, with an
error of sigma each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ascendtune.check.align.curve import Curve, Floats
from ascendtune.check.align.language import Sentence
from ascendtune.check.align.paired_losses import pair_losses
from ascendtune.check.align.tensor_noise import CERTAIN, ExtraNoise
from ascendtune.check.align.training_record import REDUCED, TrainingRecord
from ascendtune.core.errors import NoVerdict

_BITS = {"bf16": 8, "fp16": 11, "tf32": 11, "hf32": 11, "fp32": 24}
_UNIT_OF_REDUCED = 2.0 ** -_BITS["tf32"]
_LAYERS = 32
"""Used if the depth is unknown."""
_TOKENS = 100
"""Used if the number of labelled tokens is unknown; few, so that the tolerance is wide."""
_SLOPES = {"sigmoid": 0.5, "hinge": 1.0, "kto": 0.5}
"""|f'| of losses of sums if policy and reference agree, as at the start; for KTO that of the ratio and of the KL."""
_OPERATIONS = 14
"""Outputs that a block rounds: two norms, seven products, two rotations, the attention's sum, and two in the MLP."""
_SUM_ROUNDINGS = 8
"""Roundings of a recorded loss to fp32 outside of the model: the sum, the mean, the reduction over ranks."""
_OF_DELTA_RULE = 30.0
"""Factor of the limits for each of the first updates if a model has layers with the delta rule. In 20 pairs of
small Qwen3-Next models in fp32 the largest difference was 4 times the usual limit in the second step and 130 times in
the third, with a learning rate of 1e-3; before the first update it was 0.1 of it."""
_NORM_OF_DELTA_RULE = 100.0
"""Factor of the limit of the gradient norm for such a model: in the first step it differed by 28 times the usual limit,
which is far below the factor for tensors."""
_GROWTH = 0.5
"""Share of the first limit that every further step adds. Stable trainings showed no growth in 60 steps (fp32, learning
rates 3e-4 to 3e-3); the rest is a margin for longer trainings."""


@dataclass(frozen=True)
class LossNoise:
    """Limits of relative differences.

    Attributes:
        loss: of the loss of one step whose weights are the same.
        grad_norm: of the gradient norm of the same step.
        updated: of the loss of a step after an update; `loss` for None.
        bias: the part of `loss` that no mean over steps makes smaller.
        dtype: the coarsest type of matrix products, in which the limits are.
        amplifies: layers make more of a difference of weights with each update.
        update: the share of an update that rounding decides, and with it of the change that it makes of the loss.
        basis: where the limits come from.
        measured: steps in ascending order, and the largest difference of repeated runs up to each.
    """

    loss: float
    grad_norm: float
    basis: Sentence
    measured: tuple[NDArray[np.int64], Floats] | None = None
    updated: float | None = None
    bias: float = 0.0
    dtype: str = "fp32"
    amplifies: bool = False
    update: float = 0.0

    def band(self, steps: NDArray[np.int64]) -> Floats:
        """(records,) float64: the limit of the difference of losses at each of `steps`."""
        of_updated = self.loss if self.updated is None else self.updated
        of_step = np.where(steps > 1, of_updated, self.loss)
        expected = np.asarray(of_step * (1 + _GROWTH * (steps - 1)), dtype=np.float64)
        if self.measured is None:
            return expected
        steps_measured, largest = self.measured
        at = np.searchsorted(steps_measured, steps, side="right") - 1
        # Three times the measured difference, because there are few repeated runs.
        limits = np.where(at < 0, self.loss, np.maximum(3 * largest[at], self.loss))
        return np.where(steps > steps_measured[-1], np.maximum(limits, expected), limits)


def expected_noise(reference: TrainingRecord, candidate: TrainingRecord) -> LossNoise:
    """Limits from the dtypes, the depth of the model and the number of tokens."""
    precisions = [side.product_type or "bf16" for side in (reference, candidate)]
    unit = max(2.0 ** -_BITS.get(precision, 8) for precision in precisions)
    known_layers = [side.layers for side in (reference, candidate) if side.layers]
    layers = max(known_layers, default=_LAYERS)
    tokens = _first_number([reference.curve, candidate.curve])
    share, groups = _error_of_loss((reference, candidate), tokens)
    written = _SUM_ROUNDINGS * 2.0**-24 + reference.curve.resolution + candidate.curve.resolution

    def limit(unit: float) -> float:
        sigma = unit * math.sqrt(4 * layers)
        return CERTAIN * sigma * share + sigma**2 + written

    extra, bf16 = extra_noise(reference, candidate), max(unit, 2.0 ** -_BITS["bf16"])
    of_gradients = bf16 if extra.sends_bf16 else unit
    updated = limit(bf16 if extra.has_muon else of_gradients) * extra.after_update
    coarsest = max(precisions, key=lambda each: 2.0 ** -_BITS.get(each, 8))
    is_known = all(side.precision for side in (reference, candidate))
    basis = Sentence(
        "expected",
        "{dtype}, {layers} {layers:layer|layers}, {tokens:.0f} labelled tokens a step"
        if is_known
        else "{dtype}, assumed where a log does not say it, {layers} {layers:layer|layers}, {tokens:.0f} labelled "
        "tokens a step",
        {"dtype": coarsest, "layers": layers, "tokens": tokens},
    )
    if groups is not None:
        basis = Sentence("expected", "{basis}, {groups} pairs or answers", {"basis": basis, "groups": groups})
    grad_norm = CERTAIN * of_gradients * math.sqrt(4 * layers)
    if extra.after_update > 1:
        grad_norm *= _NORM_OF_DELTA_RULE
        # With these limits "aligned" excludes only large differences, which the reader must know.
        wider = "{basis}; wider limits after the first update: layers with the delta rule amplify rounding"
        basis = Sentence("expected", wider, {"basis": basis})
    return LossNoise(
        limit(unit),
        grad_norm,
        basis,
        updated=updated,
        bias=max(unit, of_gradients) ** 2 * 4 * layers + written,
        dtype=coarsest,
        amplifies=extra.after_update > 1 or extra.has_muon,
        update=CERTAIN * of_gradients * math.sqrt(2 * 2 * _OPERATIONS * layers),
    )


def extra_noise(*sides: TrainingRecord) -> ExtraNoise:
    """The sources of noise that any of `sides` has besides its precision.

    Layers with the delta rule (DeltaNet, Yang et al. 2024, arXiv:2406.06484) solve a triangular system over the tokens
    and divide keys by their length, however small: if weights differ by 1e-6, gradients differ by 1e-4.
    """
    return ExtraNoise(
        has_muon=any(map(_uses_muon, sides)),
        sends_bf16=any((side.recipe or {}).get("parallel.reduce_dtype") == "bf16" for side in sides),
        after_update=_OF_DELTA_RULE if any(map(_has_delta_rule, sides)) else 1.0,
        product_unit=_UNIT_OF_REDUCED if any(side.product_type in REDUCED for side in sides) else 0.0,
        has_experts=any("expert" in name for side in sides for name in _weights(side)),
    )


def _has_delta_rule(side: TrainingRecord) -> bool:
    """Whether layers have the logarithms of decays, as state space models do, but not the latter's skip connection."""
    names = _weights(side)
    layers = (name.removesuffix("A_log") for name in names if name.endswith(".A_log"))
    return any(f"{layer}D" not in names for layer in layers)


def _weights(side: TrainingRecord) -> set[str]:
    """Names of the parameters at the start; empty if they were not recorded."""
    parameters = side.start_weights.get("parameters")
    return set(map(str, parameters)) if isinstance(parameters, dict) else set()


def _uses_muon(side: TrainingRecord) -> bool:
    """Whether its optimizer orthogonalises the updates of matrices."""
    name = (side.recipe or {}).get("optim.optimizer") or side.run.get("optimizer")
    return "muon" in str(name).lower()


def _error_of_loss(sides: Sequence[TrainingRecord], tokens: float) -> tuple[float, int | None]:
    """The error of the loss in units of sigma, and the number of groups in its mean; None for a mean over tokens."""
    with_recipe = next((side for side in sides if side.recipe is not None), None)
    recipe = with_recipe.recipe or {} if with_recipe is not None else {}
    stage, groups = recipe.get("method.stage"), with_recipe.run.get("global_batch") if with_recipe is not None else None
    if with_recipe is not None and np.isfinite(with_recipe.curve.groups[:1]).any():
        # Counted in the record of the labelled tokens: packed sequences have several groups, a record several steps.
        groups = int(with_recipe.curve.groups[0])
    loss, beta = (recipe.get(f"method.preference.{key}") for key in ("loss", "beta"))
    if stage in ("reward", "preference") and type(groups) is int and groups > 0:
        if stage == "reward":
            return math.sqrt(0.5 / groups), groups
        if loss in _SLOPES and isinstance(beta, int | float):
            return _SLOPES[loss] * abs(beta) * math.sqrt(2 * tokens) / groups, groups
    return 1 / math.sqrt(tokens), None


def measured_noise(reference: TrainingRecord, repeats: Sequence[TrainingRecord], expected: LossNoise) -> LossNoise:
    """Limits from runs of the same recipe on the reference machine: the largest difference up to each step.

    If all losses are equal, the limits are those of `expected`: such a machine reproduces every rounding, and another
    machine may not.

    Raises:
        NoVerdict: a repeated run has no loss at a step of the reference.
    """
    pairs = [pair_losses(reference.curve, repeat.curve) for repeat in repeats]
    for repeat, pair in zip(repeats, pairs, strict=True):
        if not np.isfinite(pair.difference).any():
            raise NoVerdict(
                "the repeated run has no loss at a step of the reference",
                code="no-common-steps",
                remedy="give a repetition of the reference run with --noise-runs",
                where=repeat.path,
            )
    steps = np.concatenate([pair.steps for pair in pairs])
    differences = np.nan_to_num(np.concatenate([pair.difference for pair in pairs]))
    if not differences.any():
        text = "{basis}; the repeated runs are equal to the last digit, so they show no noise"
        return replace(expected, basis=Sentence("expected", text, {"basis": expected.basis}))
    order = np.argsort(steps, kind="stable")
    measured = steps[order], np.maximum.accumulate(differences[order])
    basis = Sentence(
        "measured",
        "{count} repeated {count:run|runs}",
        {"count": len(repeats)},
    )
    return replace(expected, basis=basis, measured=measured)


def _first_number(curves: Sequence[Curve]) -> float:
    counts = [float(each) for curve in curves for each in curve.labelled_tokens[:1] if np.isfinite(each)]
    return max(1.0, min(counts, default=_TOKENS))
