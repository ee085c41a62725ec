"""The optimizer, its parameter groups, and the learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ascendtune.recipe.sections import OptimSection


def make_optimizer(
    section: OptimSection,
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    learning_rate: float,
    *,
    fused: bool,
    plus_ratio: float | None = None,
) -> torch.optim.Optimizer:
    """An optimizer over the trainable parameters; matrices decay, biases and norms do not.

    The learning rate of a group is that of the step times its `learning_rate_factor`.

    Args:
        fused: whether AdamW does all of its step in one kernel.
        plus_ratio: LoRA+ (Hayou et al. 2024, arXiv:2402.12354): the factor of adapters' B matrices.
    """
    groups = parameter_groups(named_parameters, section.weight_decay, plus_ratio or 1.0)
    for group in groups:
        group["lr"] = learning_rate * group["learning_rate_factor"]
    # No default case, here and below: mypy reports an optimizer that the recipe allows and these do not know.
    match section.optimizer:
        case "auto" | "adamw":
            return torch.optim.AdamW(
                groups,
                lr=learning_rate,
                betas=(section.beta1, section.beta2),
                eps=section.epsilon,
                # torch._fused_adamw_ runs on Ascend too, also on sharded tensors. torch_npu's own NpuFusedAdamW keeps
                # views of the first gradients: when gradients are set to None, it continues with those stale ones.
                fused=fused,
            )
        case "sgd":
            return torch.optim.SGD(groups, lr=learning_rate)
        case "adafactor":
            return torch.optim.Adafactor(groups, lr=learning_rate)


def states_per_parameter(section: OptimSection) -> int:
    """Tensors of a parameter's size that the optimizer keeps.

    Adafactor keeps one row and one column for each matrix; they count as 0.
    """
    match section.optimizer:
        case "auto" | "adamw":
            return 2
        case "sgd" | "adafactor":
            return 0


def parameter_groups(
    named_parameters: Iterable[tuple[str, nn.Parameter]], weight_decay: float, plus_ratio: float = 1.0
) -> list[dict[str, Any]]:
    """Groups with weight decay (two or more dimensions) and without (biases, norms, scales), B matrices apart."""
    trainable = [(name, parameter) for name, parameter in named_parameters if parameter.requires_grad]
    groups = []
    for factor in sorted({1.0, plus_ratio}):
        members = [each for name, each in trainable if factor == (plus_ratio if ".lora_B." in name else 1.0)]
        matrices, others = [each for each in members if each.ndim >= 2], [each for each in members if each.ndim < 2]
        groups += [
            {"params": matrices, "weight_decay": weight_decay, "learning_rate_factor": factor},
            {"params": others, "weight_decay": 0.0, "learning_rate_factor": factor},
        ]
    return [group for group in groups if group["params"]]


class Schedule:
    """Linear warm-up from 0, then constant, linear or cosine down to `min_learning_rate_ratio`: transformers' formulas.

    Args:
        section: scheduler, warm-up and floor.
        peak: learning rate at the end of the warm-up.
        total_steps: steps of the whole run.
    """

    def __init__(self, section: OptimSection, peak: float, total_steps: int) -> None:
        self._shape = section.scheduler
        self._floor = section.min_learning_rate_ratio
        self._peak = peak
        self.total_steps = total_steps
        steps = section.warmup_steps
        self.warmup_steps = math.ceil(total_steps * section.warmup_ratio) if steps is None else steps

    def learning_rate(self, step: int) -> float:
        """The rate of `step`, counted from 0."""
        if step < self.warmup_steps:
            return self._peak * step / self.warmup_steps
        if self._shape == "constant":
            return self._peak
        progress = (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        share = max(0.0, 1 - progress if self._shape == "linear" else 0.5 * (1 + math.cos(math.pi * progress)))
        return self._peak * (self._floor + (1 - self._floor) * share)
