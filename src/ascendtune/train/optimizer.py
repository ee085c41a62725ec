"""Which optimiser, over which groups of parameters."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from ascendtune.train.recipe import OptimSection


def make_optimizer(
    section: OptimSection, named_parameters: Iterable[tuple[str, nn.Parameter]], learning_rate: float, *, fused: bool
) -> torch.optim.Optimizer:
    """An optimiser over the trainable parameters; matrices decay, biases and norms do not.

    Args:
        fused: whether AdamW does all of its step in one kernel.
    """
    groups = decay_groups(named_parameters, section.weight_decay)
    if section.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=learning_rate)
    if section.optimizer == "adafactor":
        return torch.optim.Adafactor(groups, lr=learning_rate)
    return torch.optim.AdamW(
        groups,
        lr=learning_rate,
        betas=(section.beta1, section.beta2),
        eps=section.epsilon,
        # torch._fused_adamw_ runs on Ascend too, also on sharded tensors. torch_npu's own NpuFusedAdamW keeps views of
        # the first gradients: when gradients are set to None, it goes on training with those stale ones.
        fused=fused,
    )


def states_of(section: OptimSection) -> int:
    """Tensors of a parameter's size that the optimiser keeps; Adafactor keeps rows and columns, next to nothing."""
    return 2 if section.optimizer in ("auto", "adamw") else 0


def decay_groups(
    named_parameters: Iterable[tuple[str, nn.Parameter]], weight_decay: float
) -> list[dict[str, list[nn.Parameter] | float]]:
    """Two parameter groups: with weight decay (two or more dimensions), and without (biases, norms, scales)."""
    trainable = [parameter for _, parameter in named_parameters if parameter.requires_grad]
    groups: list[dict[str, list[nn.Parameter] | float]] = [
        {"params": [each for each in trainable if each.ndim >= 2], "weight_decay": weight_decay},
        {"params": [each for each in trainable if each.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
