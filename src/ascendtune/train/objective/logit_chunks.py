"""Logits in chunks: (labelled × vocabulary) never exists at once.

Two sizes matter. A product with the head reads the whole weight, and a product for the weight's gradient reads and
writes a whole fp32 matrix: larger chunks need fewer of either. The softmax is in fp32 and temporarily needs twice the
bytes of 16-bit logits: smaller chunks need less memory. So the product is computed for many positions at once and the
softmax for a few at a time; its gradient overwrites the logits.

For V tokens, H hidden units and R positions at a time, the weight's gradient moves 12 V H bytes for 2 R V H operations
in 16 bits: with R = H / 2 the logits of a chunk are half as large as the weight.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from ascendtune.machine.torch_backend.mixed_product import adds_products
from ascendtune.train.objective.head import HeadForm
from ascendtune.train.precision import in_autocast_type

# Bytes of fp32 logits in one softmax, and the least number of its positions.
_SOFTMAX_BYTES = 16 * 1024 * 1024
_SOFTMAX_ROWS = 128
# Positions of a product with a head without a gradient: enough that it is bound by arithmetic, not by reading the
# weight (an accelerator computes some 200 to 300 operations in 16 bits while it reads a byte).
_FROZEN_ROWS = 512
# Bytes of a weight's gradient that are computed at once if they are added to one of another dtype.
_GRADIENT_BYTES = 128 * 1024 * 1024


def autocast_operands(hidden: torch.Tensor, head: nn.Linear) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Hidden (positions, hidden), weight (vocabulary, hidden) and bias (vocabulary,), for a custom function.

    Autocast does not act inside of one: they are cast here, so that gradients flow back through the casts.
    """
    bias: torch.Tensor | None = head.bias
    hidden, weight = in_autocast_type(hidden, head.weight)
    return hidden, weight, in_autocast_type(bias)[0] if bias is not None else None


def product_chunks(positions: int, weight: torch.Tensor, *, is_trained: bool) -> list[slice]:
    """The positions of each product with `weight`, (vocabulary, hidden)."""
    vocabulary, hidden = weight.shape
    return _cut(positions, product_rows(vocabulary, hidden, is_trained=is_trained))


def product_rows(vocabulary: int, hidden: int, *, is_trained: bool) -> int:
    """Positions of a chunk of a product; at least those of a softmax."""
    return max(hidden // 2 if is_trained else min(_FROZEN_ROWS, hidden // 2), softmax_rows(vocabulary))


def softmax_chunks(positions: int, vocabulary: int) -> list[slice]:
    """The positions of each softmax."""
    return _cut(positions, softmax_rows(vocabulary))


def softmax_rows(vocabulary: int) -> int:
    return max(_SOFTMAX_ROWS, _SOFTMAX_BYTES // (4 * vocabulary))


def add_weight_gradient(total: torch.Tensor, grad: torch.Tensor, hidden: torch.Tensor) -> None:
    """Add gradᵀ · hidden to `total`, in place.

    Args:
        total: (vocabulary, hidden) in the dtype of the others, or fp32.
        grad: (positions, vocabulary), gradient of the logits.
        hidden: (positions, hidden) in the dtype of `grad`.
    """
    if total.dtype == grad.dtype:
        total.addmm_(grad.t(), hidden)
        return
    if type(total) is torch.Tensor and adds_products(total.dtype, grad.dtype, total.device):
        torch.addmm(total, grad.t(), hidden, out_dtype=total.dtype, out=total)
        return
    for part in _cut(len(total), max(1, _GRADIENT_BYTES // (hidden.shape[1] * hidden.element_size()))):
        # `+=` would also assign the sum to itself, which an NPU copies.
        total[part].add_(grad[:, part].t() @ hidden)


def checkpointed_chunks(
    score: Callable[[torch.Tensor, torch.Tensor, slice], torch.Tensor],
    hidden: torch.Tensor,
    head: nn.Module,
    targets: torch.Tensor,
    form: HeadForm,
) -> list[torch.Tensor]:
    """`score(logits, targets, part)` of each chunk, for any head; the backward pass recomputes the logits.

    Args:
        score: called with fp32 logits (chunk, vocabulary), targets (chunk,) and the positions of the chunk.
        hidden: (positions, hidden).
        targets: (positions,) int64 token ids.
    """
    from torch.utils.checkpoint import checkpoint

    def of_chunk(states: torch.Tensor, target: torch.Tensor, part: slice) -> torch.Tensor:
        return score(form.logits(head(states).float()), target, part)

    vocabulary = int(getattr(head, "out_features", 131072))
    return [
        checkpoint(of_chunk, hidden[part], targets[part], part, use_reentrant=False)
        for part in softmax_chunks(len(hidden), vocabulary)
    ]


def _cut(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]
