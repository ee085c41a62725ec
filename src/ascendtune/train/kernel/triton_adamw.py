"""AdamW's update of one tensor, in one Triton kernel.

In a separate file, because its imports fail without Triton. torch's fused AdamW multiplies by factors in fp64: each
number is converted back and forth, and the conversions take more time than the memory accesses. Here factors are fp32,
like the arithmetic; only the powers of the step are fp64, one number for a whole tensor.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from ascendtune.train.adamw import AdamWSettings

_BLOCK = 4096
"""Numbers that one program updates."""
_WARPS = 8


def adamw_update(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    step: torch.Tensor,
    factor: torch.Tensor,
    settings: AdamWSettings,
) -> None:
    """Update `parameter` and its two moments, any shape, contiguous, in place, as torch's AdamW does.

    Args:
        gradient: multiplied by `factor` first; not changed.
        step: () fp32 on the device: the number of this update, from 1.
        factor: () fp32 on the device.
    """
    count = parameter.numel()
    beta1, beta2 = settings.beta1, settings.beta2
    _adamw[(triton.cdiv(count, _BLOCK),)](
        parameter, gradient, exp_avg, exp_avg_sq, step, factor, count,
        settings.learning_rate, 1 - settings.learning_rate * settings.weight_decay, settings.epsilon,
        beta1, 1 - beta1, math.log2(beta1) if beta1 else -math.inf,
        beta2, 1 - beta2, math.log2(beta2) if beta2 else -math.inf,
        BLOCK=_BLOCK, num_warps=_WARPS,
    )  # fmt: skip


# Triton would interpret annotations as its own types, so there are none.
@triton.jit  # type: ignore[untyped-decorator]
def _adamw(  # type: ignore[no-untyped-def]
    parameter, gradient, exp_avg, exp_avg_sq, step, factor, count,
    rate, decay_factor, epsilon, beta1, rest1, log_beta1, beta2, rest2, log_beta2,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    # 1 - beta ** step, in fp64: fp32 would lose half of the digits in the first steps.
    steps = tl.load(step).to(tl.float64)
    correction1 = (1.0 - tl.exp2(steps * log_beta1)).to(tl.float32)
    correction2 = tl.sqrt(1.0 - tl.exp2(steps * log_beta2)).to(tl.float32)
    grad = tl.load(gradient + at, mask=inside).to(tl.float32) * tl.load(factor)
    mean = beta1 * tl.load(exp_avg + at, mask=inside).to(tl.float32) + rest1 * grad
    square = beta2 * tl.load(exp_avg_sq + at, mask=inside).to(tl.float32) + rest2 * grad * grad
    weight = tl.load(parameter + at, mask=inside).to(tl.float32) * decay_factor
    weight -= rate / correction1 * mean / (tl.sqrt(square) / correction2 + epsilon)
    tl.store(exp_avg + at, mean.to(exp_avg.dtype.element_ty), mask=inside)
    tl.store(exp_avg_sq + at, square.to(exp_avg_sq.dtype.element_ty), mask=inside)
    tl.store(parameter + at, weight.to(parameter.dtype.element_ty), mask=inside)
