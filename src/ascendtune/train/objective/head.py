"""How losses go through a language-model head: in chunks of positions, in the type that autocast would choose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

# Bytes of fp32 logits a chunk may take, and positions it has at least: enough for a matrix product at full speed. They
# come on top of all activations, so they are part of the peak.
_CHUNK_BYTES = 16 * 1024 * 1024
_CHUNK_ROWS = 128


@dataclass(frozen=True)
class HeadForm:
    """How logits follow from the output z of a head: cap · tanh(scale · z / cap), or scale · z without a cap."""

    scale: float = 1.0
    cap: float | None = None

    def logits(self, output: torch.Tensor) -> torch.Tensor:
        """Logits of an output of the head; same shape, both fp32."""
        scaled = output if self.scale == 1 else output * self.scale
        return scaled if self.cap is None else (scaled / self.cap).tanh() * self.cap

    def slope(self, logits: torch.Tensor) -> torch.Tensor | float:
        """dlogits/dz of each element, from the logits: scale · (1 - (logits / cap)²)."""
        return self.scale if self.cap is None else (1 - (logits / self.cap) ** 2) * self.scale


PLAIN = HeadForm()


def operands(hidden: torch.Tensor, head: nn.Linear) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Hidden states, weight and bias, to be given to a custom function.

    Autocast does not reach into one: they are cast here, so that gradients flow back through the casts.
    """
    weight: torch.Tensor = head.weight
    bias: torch.Tensor | None = head.bias
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        bias = bias.to(dtype) if bias is not None else None
    return hidden, weight, bias


def chunks(positions: int, vocabulary: int) -> list[slice]:
    """The positions, cut into pieces whose logits are small."""
    rows = rows_per_chunk(vocabulary)
    return [slice(start, start + rows) for start in range(0, positions, rows)]


def rows_per_chunk(vocabulary: int) -> int:
    return max(_CHUNK_ROWS, _CHUNK_BYTES // (4 * vocabulary))


def recomputed(
    score: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    head: nn.Module,
    targets: torch.Tensor,
    form: HeadForm,
) -> list[torch.Tensor]:
    """`score(logits, targets)` of every chunk, for any head: what the backward pass needs is computed again there.

    Args:
        score: from fp32 logits (chunk, vocabulary) and targets (chunk,).
    """
    from torch.utils.checkpoint import checkpoint

    def of_chunk(states: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return score(form.logits(head(states).float()), target)

    vocabulary = int(getattr(head, "out_features", 131072))
    return [
        checkpoint(of_chunk, hidden[part], targets[part], use_reentrant=False)
        for part in chunks(len(hidden), vocabulary)
    ]
