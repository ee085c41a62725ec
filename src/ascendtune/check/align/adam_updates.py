"""Whether the updates of a side's optimizer are those of Adam for the side's own gradients.

Gradients of two bf16 trainings differ by several percent, and so do their updates; the effect of another epsilon or
beta is far smaller. But each side dumps the inputs and the outputs of its optimizer, in fp32. From the dumped
gradients of step 1 on, d is Adam's direction (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1) under given settings,
and the update of a parameter w is

    after - before = -a · d - b · w

with the learning rate a and, if weight decay is decoupled (Loshchilov and Hutter 2019, arXiv:1711.05101),
b = a · weight decay. Both are fitted for each parameter. The only error is the rounding of w to its dtype: the residual
is mostly below 1e-4 of the update, whatever the dtype of the matrix products. If the reference's updates follow its
settings and the candidate's do not, each setting is varied alone to find the one that explains the candidate's.

The first update after a resume that lost the optimizer's state is that of a first step: d follows from the gradients of
this step alone. This shows in any dumped step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ascendtune.check.align.curve import Floats
from ascendtune.check.align.dump import MOST_STEPS, Dump, RankDump
from ascendtune.check.align.tensor_noise import CERTAIN, unit_of
from ascendtune.core.foreign_json import is_number, object_of

_MOST_STEPS = 3
"""Counted from step 1: betas and clipping show in the second step."""
_FEWEST = 8
"""Known samples that a parameter needs for a fit of two numbers."""
_FOLLOWS = 1e-3
"""Largest relative residual of the reference's updates; if it is larger, the optimizer is not this Adam."""
_EXPLAINS = 10.0
"""A setting explains the candidate's updates if it reduces their residual by this factor."""
_ROUNDED = 2.0**-8
"""Largest residual if gradients are rounded to bf16 before the optimizer reads them."""
_NORM = 3e-4
"""Relative error of the norm with which a program clips: torch sums squares in fp32 (10 million numbers on a CPU)."""
_RATE = 1e-3
_DECAY = 0.05
"""Least relative differences of learning rate and weight decay that are reported."""
_TESTED = {
    "epsilon": (0.0, 1e-12, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2),
    "beta1": (0.0, 0.5, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99),
    "beta2": (0.5, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999),
    "max_grad_norm": (None, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
    "decay_in_gradient": (1e-4, 1e-3, 1e-2, 0.03, 0.1),
    "corrects_bias": (False,),
    "has_epsilon_in_root": (True,),
}


@dataclass(frozen=True)
class AdamSettings:
    """The settings of an Adam optimizer.

    Attributes:
        max_grad_norm: norm to which gradients are clipped; None for no clipping.
        decay_in_gradient: weight decay that is added to the gradient, as torch.optim.Adam does.
        has_epsilon_in_root: the divisor is sqrt(v + epsilon), not sqrt(v) + epsilon.
    """

    beta1: float
    beta2: float
    epsilon: float
    max_grad_norm: float | None
    decay_in_gradient: float = 0.0
    corrects_bias: bool = True
    has_epsilon_in_root: bool = False


@dataclass(frozen=True)
class OtherUpdate:
    """The setting in which the candidate's optimizer differs from the reference's.

    Attributes:
        setting: a field of AdamSettings, `learning_rate` (then the values are 1 and the factor), `weight_decay`, or
            `lost_state`.
        expected, found: value on the reference, and the value that explains the candidate's updates.
        parameters: names of the parameters concerned, in the order of the dump.
    """

    setting: str
    expected: float | bool | None
    found: float | bool | None
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class AdamCheck:
    """A comparison of both optimizers by the dumped updates.

    Attributes:
        steps: number of steps, from step 1, that were checked; the last one is the one that differs, if any does.
        left, left_of_candidate: relative residual of the updates of the last step under `settings`, for each side.
        other: the setting that differs; None if none does, or if no single setting explains the difference.
        is_same: whether the optimizers are the same.
    """

    settings: AdamSettings
    steps: int
    left: float
    left_of_candidate: float
    other: OtherUpdate | None = None
    is_same: bool = True


def adam_settings(recipe: Mapping[str, Any] | None, facts: Mapping[str, Any]) -> AdamSettings | None:
    """Settings from the leaves of a recipe, or from the facts of a recorded training; None for another optimizer."""
    decay = None
    if recipe is not None:
        name, clip = recipe.get("optim.optimizer"), recipe.get("optim.max_grad_norm")
        betas_and_epsilon = [recipe.get(f"optim.{key}") for key in ("beta1", "beta2", "epsilon")]
    else:
        name, clip = str(facts.get("optimizer")).lower(), facts.get("max_grad_norm")
        groups = facts.get("optimizer_groups")
        first = object_of(groups[0]) if isinstance(groups, list) and groups else {}
        betas = first.get("betas")
        betas_and_epsilon = [*(betas if isinstance(betas, list) else ()), first.get("eps")]
        decay = first.get("weight_decay")
    numbers = [float(each) for each in betas_and_epsilon if is_number(each)]
    if name not in ("auto", "adamw", "adam") or len(numbers) != 3:
        return None
    beta1, beta2, epsilon = numbers
    in_gradient = float(decay) if name == "adam" and is_number(decay) else 0.0
    return AdamSettings(beta1, beta2, epsilon, float(clip) if is_number(clip) else None, in_gradient)


def other_settings(one: AdamSettings, other: AdamSettings) -> dict[str, tuple[float, float]]:
    """Settings that are known on both sides and differ; None is unknown, since code that was not traced may clip."""
    fields = ("beta1", "beta2", "epsilon", "max_grad_norm", "decay_in_gradient")
    pairs = {name: (getattr(one, name), getattr(other, name)) for name in fields}
    return {name: pair for name, pair in pairs.items() if None not in pair and pair[0] != pair[1]}


def check_adam(reference: Dump, candidate: Dump, settings: AdamSettings) -> AdamCheck | None:
    """Check the first steps, up to the first one in which the candidate's update differs.

    Returns:
        None if the reference's updates do not follow `settings`, or too little was dumped.

    Raises:
        DataError, RecipeError, MachineError: a file cannot be read.
    """
    sides: list[list[RankDump]] = [[], []]
    check = None
    for step in range(1, _MOST_STEPS + 1):
        files = [dump.files.get(step, {}) for dump in (reference, candidate)]
        if not all(files):
            break
        for dump, side, of_step in zip((reference, candidate), sides, files, strict=True):
            side.append(dump.read(of_step[min(of_step)]))
        one, other = map(_Updates.of_steps, sides)
        if one is None or other is None or not one.follows(settings):
            break
        check = _compared(one, other, settings)
        if check is None or not check.is_same:
            break
    if check is not None and check.other is not None:
        return check
    same = 1 if check is None else check.steps if check.is_same else check.steps - 1
    return _lost_state(reference, candidate, settings, after=same) or check


def _lost_state(reference: Dump, candidate: Dump, settings: AdamSettings, *, after: int) -> AdamCheck | None:
    """The first dumped step after `after` whose update is a first one on the candidate, and not on the reference.

    Raises:
        DataError, RecipeError, MachineError: a file cannot be read.
    """
    for step in sorted(reference.files.keys() & candidate.files.keys())[:MOST_STEPS]:
        if step <= after:
            continue
        sides = (dump.files[step] for dump in (reference, candidate))
        dumps = zip((reference, candidate), sides, strict=True)
        one, other = (_Updates.of_steps([dump.read(files[min(files)])]) for dump, files in dumps)
        if one is not None and other is not None and other.follows(settings) and not one.follows(settings):
            lost = OtherUpdate("lost_state", expected=False, found=True, parameters=other.names)
            left, left_of_candidate = (each.fit(settings).left for each in (one, other))
            return AdamCheck(settings, step, left, left_of_candidate, lost, is_same=False)
    return None


@dataclass(frozen=True)
class _Fit:
    """The fit of the updates of one step.

    Attributes:
        rate, decay: (parameters,) the learning rate a, and b / a; NaN if it cannot be determined.
        rate_error, decay_error: (parameters,) their standard deviations, relative and absolute.
        left: median over the parameters of the relative residual.
        floor: the same of the residual that rounding of the parameters causes.
    """

    rate: Floats
    decay: Floats
    rate_error: Floats
    decay_error: Floats
    left: float
    floor: float


class _Updates:
    """Samples of all parameters of the first steps: (parameters, samples) float64, NaN where unknown.

    Args:
        steps: for each step, the gradients and the parameters before and after it.
        norms: norm of all gradients, for each step.
        units: (parameters, 1) rounding unit u of each parameter's dtype.
    """

    def __init__(
        self, names: Sequence[str], steps: Sequence[tuple[Floats, Floats, Floats]], norms: list[float], units: Floats
    ) -> None:
        self.names, self.steps, self.norms, self.units = tuple(names), steps, norms, units

    @classmethod
    def of_steps(cls, dumps: Sequence[RankDump]) -> _Updates | None:
        """Samples of all parameters that have all their tensors; None if there is none."""
        phases = ("gradient", "parameter_before", "parameter_after")
        tensors = [
            {phase: {key.name: each for key, each in dump.tensors.items() if key.phase == phase} for phase in phases}
            for dump in dumps
        ]
        names = [
            name
            for name, first in tensors[0]["gradient"].items()
            if all(name in of_phase for step in tensors for of_phase in step.values())
            and all(len(of_phase[name].samples) == len(first.samples) for step in tensors for of_phase in step.values())
        ]
        if not names:
            return None
        most = max(len(tensors[0]["gradient"][name].samples) for name in names)
        steps = []
        for step in tensors:
            padded = (
                [[*step[phase][name].samples, *[math.nan] * (most - len(step[phase][name].samples))] for name in names]
                for phase in phases
            )
            one, two, three = (np.array(each, dtype=np.float64) for each in padded)
            steps.append((one, two, three))
        norms = [math.sqrt(sum(each.l2**2 for each in step["gradient"].values())) for step in tensors]
        units = np.array([[unit_of(tensors[-1]["parameter_after"][name])] for name in names])
        return cls(names, steps, norms, units)

    def follows(self, settings: AdamSettings) -> bool:
        """Whether the updates of the last step follow `settings`, with rounding of the weights far below them."""
        fit = self.fit(settings)
        return fit.floor <= _FOLLOWS and fit.left <= _FOLLOWS

    def fit(self, settings: AdamSettings) -> _Fit:
        """Fit learning rate and weight decay of each parameter in the last step.

        A weight that began at 0 is the sum of its updates, so an error in the clipping of an earlier step looks like
        weight decay: the errors of the fit include what an error of the first norm changes.
        """
        fit = self._fit(settings, self.norms)
        if settings.max_grad_norm is None or len(self.norms) == 1:
            return fit
        other = self._fit(settings, [self.norms[0] * (1 + _NORM), *self.norms[1:]])
        with np.errstate(invalid="ignore", divide="ignore"):
            return replace(
                fit,
                rate_error=np.hypot(fit.rate_error, other.rate / fit.rate - 1),
                decay_error=np.hypot(fit.decay_error, other.decay - fit.decay),
            )

    def _fit(self, settings: AdamSettings, norms: Sequence[float]) -> _Fit:
        _, before, after = self.steps[-1]
        update, direction = after - before, self._direction(settings, norms)
        known = np.isfinite(update) & np.isfinite(direction) & np.isfinite(before)
        u, d, w = (np.where(known, each, 0.0) for each in (-update, direction, before))
        rounding = np.where(known, self.units * np.abs(w), 0.0)
        dd, dw, ww, du, wu, uu = (
            (one * other).sum(axis=1) for one, other in ((d, d), (d, w), (w, w), (d, u), (w, u), (u, u))
        )
        count = known.sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            determinant = dd * ww - dw**2
            has_both = determinant > 1e-6 * dd * ww
            rate = np.where(has_both, (du * ww - wu * dw) / determinant, du / dd)
            decay = np.where(has_both, (wu * dd - du * dw) / determinant, 0.0)
            rest = u - rate[:, None] * d - decay[:, None] * w
            left = np.sqrt((rest**2).sum(axis=1) / uu)
            floor = np.sqrt((rounding**2).sum(axis=1) / uu)
            variance = np.maximum((rest**2).sum(axis=1) / (count - 2), (rounding**2).sum(axis=1) / count)
            rate_error = np.sqrt(variance * np.where(has_both, ww / determinant, 1 / dd)) / np.abs(rate)
            decay_error = np.sqrt(variance * dd / determinant) / np.abs(rate)
            decay = np.where(has_both, decay / rate, np.nan)
        usable = (count >= _FEWEST) & (dd > 0) & (uu > 0) & np.isfinite(left)
        rate, decay = (np.where(usable, each, np.nan) for each in (rate, decay))
        if not usable.any():
            return _Fit(rate, decay, rate_error, decay_error, math.inf, math.inf)
        middle, of_rounding = (float(np.median(each[usable])) for each in (left, floor))
        return _Fit(rate, decay, rate_error, decay_error, middle, of_rounding)

    def _direction(self, settings: AdamSettings, norms: Sequence[float]) -> Floats:
        """(parameters, samples) d of the last step."""
        mean, square = (np.zeros_like(self.steps[0][0]) for _ in range(2))
        for (gradient, before, _), norm in zip(self.steps, norms, strict=True):
            limit = settings.max_grad_norm
            clipped = gradient * (1.0 if limit is None else min(1.0, limit / (norm + 1e-6)))
            clipped = clipped + settings.decay_in_gradient * before
            mean = settings.beta1 * mean + (1 - settings.beta1) * clipped
            square = settings.beta2 * square + (1 - settings.beta2) * clipped**2
        count = len(self.steps)
        if settings.corrects_bias:
            mean, square = mean / (1 - settings.beta1**count), square / (1 - settings.beta2**count)
        with np.errstate(invalid="ignore", divide="ignore"):
            if settings.has_epsilon_in_root:
                divisor = np.sqrt(square + settings.epsilon)
            else:
                divisor = np.sqrt(square) + settings.epsilon
            return np.asarray(np.where(mean == 0, 0.0, mean / divisor))


def _compared(one: _Updates, other: _Updates, settings: AdamSettings) -> AdamCheck | None:
    """Compare the last step of both sides; None if rounding of the candidate's weights hides a difference."""
    reference, candidate = one.fit(settings), other.fit(settings)
    if candidate.floor > _FOLLOWS or not math.isfinite(candidate.left):
        return None
    same = AdamCheck(settings, len(one.steps), reference.left, candidate.left)
    usual = max(reference.left, candidate.floor)
    if candidate.left > _EXPLAINS * usual:
        setting, value, left = min(_explanations(other, settings), key=lambda each: each[2])
        difference = None
        if left <= min(candidate.left / _EXPLAINS, _FOLLOWS):
            difference = OtherUpdate(setting, getattr(settings, setting), value, other.names)
        return replace(same, other=difference, is_same=difference is None and candidate.left <= _ROUNDED)
    at = {name: position for position, name in enumerate(one.names)}
    common = np.array([(at[name], position) for position, name in enumerate(other.names) if name in at], dtype=np.int64)
    first, second = common.reshape(-1, 2).T
    difference = _other_rate(reference, candidate, first, second, other.names)
    difference = difference or _other_decay(reference, candidate, first, second, other.names)
    return replace(same, other=difference, is_same=difference is None)


def _other_rate(
    one: _Fit, other: _Fit, first: NDArray[np.int64], second: NDArray[np.int64], names: Sequence[str]
) -> OtherUpdate | None:
    """Learning rates that differ, by one factor for all parameters or for some of them."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = other.rate[second] / one.rate[first]
        error = np.hypot(one.rate_error[first], other.rate_error[second])
        differs = np.abs(ratio - 1) > np.maximum(_RATE, 2 * CERTAIN * error)
    if not differs.any():
        return None
    factor = float(np.median(ratio[differs]))
    parameters = tuple(names[at] for at in second[differs])
    return OtherUpdate("learning_rate", 1.0, factor, parameters)


def _other_decay(
    one: _Fit, other: _Fit, first: NDArray[np.int64], second: NDArray[np.int64], names: Sequence[str]
) -> OtherUpdate | None:
    decays = one.decay[first], other.decay[second]
    error = np.hypot(one.decay_error[first], other.decay_error[second])
    with np.errstate(invalid="ignore"):
        difference = np.abs(decays[1] - decays[0])
        differs = difference > np.maximum(_DECAY * np.maximum(*map(np.abs, decays)), 2 * CERTAIN * error)
    if not differs.any():
        return None
    # A decay within the error of the fit counts as 0.
    fitted = ((float(np.median(each[differs])), CERTAIN * float(np.median(error[differs]))) for each in decays)
    expected, actual = (value if abs(value) > most else 0.0 for value, most in fitted)
    parameters = tuple(names[at] for at in second[differs])
    return OtherUpdate("weight_decay", expected, actual, parameters)


def _explanations(updates: _Updates, settings: AdamSettings) -> Iterator[tuple[str, Any, float]]:
    """Each setting with the value that fits best in its place, and the residual with it."""
    for setting, tested in _TESTED.items():
        left = {value: updates.fit(replace(settings, **cast(Any, {setting: value}))).left for value in tested}
        best = min(left, key=lambda each: left[each])
        yield setting, best, left[best]
