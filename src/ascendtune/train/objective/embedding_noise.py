"""Noise on the embeddings in training: NEFTune."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn


class EmbeddingNoise:
    """A forward hook for the input embeddings: NEFTune (Jain et al. 2023, arXiv:2310.05914, algorithm 1).

    In training, uniform noise from ±alpha / sqrt(L · d) is added to each element. L is the number of tokens of the
    document, in padded batches that of the padded row; d is the hidden size.

    Attributes:
        document_ends: for a packed batch the cumulative lengths of its documents, from 0 on; None for a padded one.
    """

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self.document_ends: tuple[int, ...] | None = None

    def __call__(self, module: nn.Module, _: Any, embedded: torch.Tensor) -> torch.Tensor:
        """Embeddings (batch, tokens, hidden) with noise, in their own dtype."""
        if not module.training:
            return embedded
        tokens, hidden = embedded.shape[-2:]
        ends = self.document_ends
        lengths = [tokens] if ends is None else [end - begin for begin, end in pairwise(ends)]
        repeats = torch.tensor(lengths)
        scales = (self._alpha / (repeats * hidden).sqrt()).repeat_interleave(repeats, output_size=sum(lengths))[:, None]
        noise = torch.empty_like(embedded).uniform_(-1, 1)
        if not noise.is_cpu:
            # The copy is queued: otherwise the host would wait in each forward pass for all earlier work of the device.
            scales = scales.pin_memory().to(noise.device, non_blocking=True)
        return embedded + noise * scales.to(noise.dtype)
