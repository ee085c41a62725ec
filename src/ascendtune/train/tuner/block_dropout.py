"""Dropout of rotations: PEFT 0.18 to 0.21 make a layer for OFT's `module_dropout` and never call it."""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.oft.layer import Linear, OFTRotationModule
from torch import nn

from ascendtune.train.tuner.frozen_adapters import TRAINED


def drop_blocks(tuned: nn.Module) -> None:
    """Let the dropout layers of `tuned` act on the rotations while it trains."""
    for layer in tuned.modules():
        if isinstance(layer, Linear):
            rotation: Any = layer.oft_R[TRAINED]
            rotation.__class__ = DroppedRotation
            # Not registered again: it is a module of the layer already.
            object.__setattr__(rotation, "block_dropout", layer.oft_dropout[TRAINED])


class DroppedRotation(OFTRotationModule):  # type: ignore[misc]  # PEFT has no types
    """PEFT's rotation, of which some blocks are the identity while it trains."""

    block_dropout: nn.Module

    def _cayley_batch(self, *arguments: Any, **named: Any) -> torch.Tensor:
        """(blocks, size, size), of the type of the weights."""
        blocks: torch.Tensor = super()._cayley_batch(*arguments, **named)
        dropped: torch.Tensor = self.block_dropout(blocks)
        return dropped.to(blocks.dtype)
