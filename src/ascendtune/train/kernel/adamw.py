"""The device's kernel for AdamW updates of large tensors, used only after a test that it computes AdamW."""

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
# Allowed error of a weight beside rounding to its dtype: of factors in fp32, and of a square root.
_ALLOWED = 1e-6


@dataclass(frozen=True)
class AdamWChoice(KernelChoice):
    update: AdamWUpdate | None = None
    """None: torch's AdamW updates all tensors."""


def choose_adamw(recipe: Recipe, strategy: Strategy, precision: Precision) -> AdamWChoice:
    """Use the device's kernel if the recipe allows it; if it fails or disagrees with AdamW, warn and use torch's."""
    device, choice = strategy.device, recipe.kernel
    if recipe.optim.optimizer not in ("auto", "adamw"):
        return AdamWChoice(f"none for {recipe.optim.optimizer}")
    if choice == "off" or (isinstance(choice, KernelSection) and not choice.adamw):
        return AdamWChoice("torch's, as asked")
    # With a scaler, torch's own operator skips steps on the device.
    if (name := _TABLE.get(device.kernels or "")) is None or precision.compute == "fp16":
        return AdamWChoice(f"torch's: no kernel on {device.kind}" + (" in fp16" if name else ""))
    if not strategy.updates_on_device:
        return AdamWChoice("torch's: weights or the optimizer are not on the device")
    try:
        update: AdamWUpdate = resolve_name(name)
        reason = _difference(update, device.torch_device)
    # Errors of any class: the compiler may be missing, or not support the chip.
    except Exception as error:  # noqa: BLE001
        reason = f"fails: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
    # The same on all ranks: copies of a weight stay equal only if the same arithmetic updates them.
    failed = [(rank, each) for rank, each in enumerate(strategy.gather(reason or "")) if each]
    if failed:
        rank, reason = failed[0]
        reason += f" (rank {rank})" if strategy.world_size > 1 else ""
        if strategy.is_main:
            warn(f"kernel.adamw is not used: it {reason}")
        return AdamWChoice(f"torch's: the kernel {reason}")
    return AdamWChoice(f"{update.__name__}, for tensors of {LARGE:,} numbers and more", update.__name__, update)


def _difference(update: AdamWUpdate, device: torch.device) -> str | None:
    """Compare `update` with the formula in fp64 on the host; return the difference as a sentence, or None."""
    settings = AdamWSettings(learning_rate=0.01, weight_decay=0.1, beta1=0.9, beta2=0.999, epsilon=1e-3)
    generator = torch.Generator().manual_seed(0)
    # Not a multiple of the block size.
    weight, gradient, mean = torch.randn(3, 5001, generator=generator)
    square = torch.rand(5001, generator=generator) / 100
    for dtype in (torch.float32, torch.bfloat16):
        for step in (1, 1000):
            rounded = [each.to(dtype) for each in (weight, gradient, mean, square)]
            expected = formula(*(each.double() for each in rounded), step=step, factor=0.5, settings=settings)
            inputs = [each.to(device) for each in rounded]
            numbers = [torch.tensor(number, device=device) for number in (float(step), 0.5)]
            update(inputs[0], inputs[1], inputs[2], inputs[3], numbers[0], numbers[1], settings)
            # The moments first: the weight is computed from them.
            results = (inputs[2], inputs[3], inputs[0])
            for name, one, other in zip(("exp_avg", "exp_avg_sq", "weight"), results, expected, strict=True):
                # Rounding must be to nearest: truncation would shrink every bf16 weight in each step, as weight decay
                # does.
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
    """AdamW's update number `step` (arXiv:1711.05101, algorithm 2) of a weight, any shape, which the others have, too.

    Returns:
        The two moments and the weight after the update, in the dtype of the arguments.
    """
    gradient = gradient * factor
    mean = settings.beta1 * mean + (1 - settings.beta1) * gradient
    square = settings.beta2 * square + (1 - settings.beta2) * gradient**2
    direction = mean / (1 - settings.beta1**step)
    size = (square / (1 - settings.beta2**step)).sqrt() + settings.epsilon
    weight = weight * (1 - settings.learning_rate * settings.weight_decay)
    return mean, square, weight - settings.learning_rate * direction / size
