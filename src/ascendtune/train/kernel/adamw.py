"""The device's kernel for the update of AdamW's large tensors, after it has been shown to compute AdamW."""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import resolve_name

import torch

from ascendtune.core.log import warn
from ascendtune.recipe.recipe import Recipe
from ascendtune.recipe.sections import KernelSection
from ascendtune.train.adamw import LARGE, AdamWSettings, AdamWUpdate
from ascendtune.train.kernel.install import KernelChoice
from ascendtune.train.precision import Precision
from ascendtune.train.strategy.base import Strategy

_TABLE = dict.fromkeys(("liger", "cuda"), "ascendtune.train.kernel.triton_adamw:adamw_update")
"""`Device.kernels` -> the kernel."""
# Of a weight, beside rounding to its type: of factors in fp32, and of a square root.
_ALLOWED = 1e-6


@dataclass(frozen=True)
class AdamWChoice(KernelChoice):
    update: AdamWUpdate | None = None
    """None where torch's AdamW updates all tensors."""


def choose_adamw(recipe: Recipe, strategy: Strategy, precision: Precision) -> AdamWChoice:
    """The device's kernel, if the recipe allows it; a warning if it fails or disagrees with AdamW, and is not used."""
    device, choice = strategy.device, recipe.kernel
    if recipe.optim.optimizer not in ("auto", "adamw"):
        return AdamWChoice(f"none for {recipe.optim.optimizer}")
    if choice == "off" or (isinstance(choice, KernelSection) and not choice.adamw):
        return AdamWChoice("torch's, as asked")
    # A scaler skips a step on the device, in torch's own operator.
    if (name := _TABLE.get(device.kernels or "")) is None or precision.compute == "fp16":
        return AdamWChoice(f"torch's: no kernel on {device.kind}" + (" in fp16" if name else ""))
    if not strategy.updates_on_device:
        return AdamWChoice("torch's: weights or the optimizer are not on the device")
    try:
        update: AdamWUpdate = resolve_name(name)
        reason = _difference(update, device.torch_device)
    # Any error of a compiler that is missing, or of a chip that it does not know.
    except Exception as error:  # noqa: BLE001
        reason = f"fails: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
    # One for all ranks: copies of a weight stay alike only where each of them is updated by the same arithmetic.
    failed = [(rank, each) for rank, each in enumerate(strategy.gather(reason or "")) if each]
    if failed:
        rank, reason = failed[0]
        reason += f" (rank {rank})" if strategy.world_size > 1 else ""
        if strategy.is_main:
            warn(f"kernel.adamw is not used: it {reason}")
        return AdamWChoice(f"torch's: the kernel {reason}")
    return AdamWChoice(f"{update.__name__}, for tensors of {LARGE:,} numbers and more", update.__name__, update)


def _difference(update: AdamWUpdate, device: torch.device) -> str | None:
    """Compare `update` with the formula in fp64 on the host; returns the difference in words, or None."""
    settings = AdamWSettings(learning_rate=0.01, weight_decay=0.1, beta1=0.9, beta2=0.999, epsilon=1e-3)
    generator = torch.Generator().manual_seed(0)
    # No multiple of a block.
    weight, gradient, mean = torch.randn(3, 5001, generator=generator)
    square = torch.rand(5001, generator=generator) / 100
    for dtype in (torch.float32, torch.bfloat16):
        for step in (1, 1000):
            rounded = [each.to(dtype) for each in (weight, gradient, mean, square)]
            expected = formula(*(each.double() for each in rounded), step=step, factor=0.5, settings=settings)
            given = [each.to(device) for each in rounded]
            numbers = [torch.tensor(number, device=device) for number in (float(step), 0.5)]
            update(given[0], given[1], given[2], given[3], numbers[0], numbers[1], settings)
            # The moments first: the weight follows from them.
            found = (given[2], given[3], given[0])
            for name, one, other in zip(("exp_avg", "exp_avg_sq", "weight"), found, expected, strict=True):
                # To the nearest: what cuts off takes a part of every bf16 weight in each step, as a decay would.
                rounding = torch.finfo(dtype).eps / (1 if dtype == torch.float32 else 2)
                allowed = rounding * other.abs() + _ALLOWED
                excess = float(((one.double().cpu() - other).abs() - allowed).max())
                if not excess <= 0:
                    return f"disagrees with AdamW: {name} in {dtype} differs by {excess:.3g} too much"
    return None


def formula(
    weight: torch.Tensor,
    gradient: torch.Tensor,
    mean: torch.Tensor,
    square: torch.Tensor,
    *,
    step: int,
    factor: float,
    settings: AdamWSettings,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """AdamW's update number `step` (arXiv:1711.05101, algorithm 2) of a weight, any shape; the others have it as well.

    Returns:
        The two moments and the weight after it, in the type of the arguments.
    """
    gradient = gradient * factor
    mean = settings.beta1 * mean + (1 - settings.beta1) * gradient
    square = settings.beta2 * square + (1 - settings.beta2) * gradient**2
    direction = mean / (1 - settings.beta1**step)
    size = (square / (1 - settings.beta2**step)).sqrt() + settings.epsilon
    weight = weight * (1 - settings.learning_rate * settings.weight_decay)
    return mean, square, weight - settings.learning_rate * direction / size
