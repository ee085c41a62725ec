"""Products of 16-bit matrices that are added to an fp32 one by one operator."""

from __future__ import annotations

from functools import cache

import torch

_KINDS = frozenset({"cuda"})
"""torch_npu 2.13 also has the overload, but calls aclnnAddmm, which supports a single type and fails later on."""


@cache
def adds_products(dtype: torch.dtype, operands: torch.dtype, device: torch.device) -> bool:
    """Whether `torch.addmm(total, one, other, out_dtype=dtype, out=total)` adds here, tested by a product of ones.

    Torch 2.8 has it on CUDA.

    Args:
        dtype: dtype of `total`.
        operands: dtype of `one` and `other`.
    """
    if device.type not in _KINDS or dtype == operands:
        return False
    total, ones = torch.ones(16, 16, dtype=dtype, device=device), torch.ones(16, 16, dtype=operands, device=device)
    try:
        torch.addmm(total, ones, ones, out_dtype=dtype, out=total)
    # An argument that this torch does not have, or types that it refuses.
    except (TypeError, RuntimeError):
        return False
    return bool((total == 17).all())
