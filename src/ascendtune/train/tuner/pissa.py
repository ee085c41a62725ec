"""PiSSA: the adapter starts as the principal part of each weight (Meng et al. 2024, arXiv:2404.02948).

The paper splits W into W - s·B₀A₀, frozen, and s·BA, trained. Here the base stays W and a second, frozen adapter takes
s·B₀A₀ away: the same function and the same gradients. W is never rounded again, and no other model than the one on disk
has to be kept for what was trained.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ascendtune.core.errors import RecipeError
from ascendtune.train.tuner.fold import TRAINED

# Up to here a whole decomposition takes a moment; that of an 11008 × 4096 weight takes 50 s on a core, and a model has
# hundreds. Beyond it: subspace iteration (the paper's fast variant, with its 16 iterations).
_WHOLE_UP_TO = 1024
_ITERATIONS = 16
_START = "start"


def start_as_principal_part(tuned: Any) -> None:
    """Give the adapter of `tuned` (a PeftModel) the principal part of every weight, beside a frozen one that undoes it.

    Raises:
        RecipeError: the rank is larger than a weight has singular values.
    """
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer

    config = tuned.peft_config[TRAINED]
    # Dropout on what takes the start away would make noise of it. The class for scores would give this adapter a score
    # of its own, so it is asked as the plain class.
    PeftModel.add_adapter(tuned, _START, replace(config, lora_dropout=0.0, modules_to_save=None))
    for name, layer in tuned.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        if TRAINED not in layer.lora_A:
            raise RecipeError(
                f"method.lora.init: pissa is for linear layers, {name} is none",
                code="pissa-needs-linear",
                remedy="name linear layers in method.lora.target, or use init: zero",
            )
        weight, rank = layer.get_base_layer().weight, layer.r[TRAINED]
        if rank > min(weight.shape):
            raise RecipeError(
                f"method.lora.rank: {rank} is more than init: pissa finds in {name}, "
                f"which is {weight.shape[0]} × {weight.shape[1]}",
                code="lora-rank-too-large",
                remedy=f"set method.lora.rank to {min(weight.shape)} or less, or use init: zero",
            )
        a, b = principal_part(weight.detach(), rank, layer.scaling[TRAINED])
        for adapter, sign in ((TRAINED, 1), (_START, -1)):
            layer.lora_A[adapter].weight.data.copy_(a)
            layer.lora_B[adapter].weight.data.copy_(sign * b)


def principal_part(weight: torch.Tensor, rank: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A (rank, in) and B (out, rank), fp32 on the host, so that scale·BA is the best approximation of that rank.

    Always computed on the host and from the host's random numbers, so that a run that goes on elsewhere starts from
    the same.
    """
    matrix = weight.to("cpu", torch.float32)
    if min(matrix.shape) <= _WHOLE_UP_TO:
        u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    else:
        u, s, v = torch.svd_lowrank(matrix, q=rank, niter=_ITERATIONS)
        vh = v.T
    root = (s[:rank] / scale).sqrt()
    return root[:, None] * vh[:rank], u[:, :rank] * root
