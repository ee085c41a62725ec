"""Dropout of OFT's rotations: PEFT 0.18 to 0.21 create a layer for `module_dropout` but never call it."""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.oft.layer import Linear, OFTRotationModule
from torch import nn

from ascendtune.train.tuner.frozen_adapters import TRAINED


def drop_blocks(tuned: nn.Module) -> None:
    """Apply the dropout layers of `tuned` to its rotations in training."""
    for layer in tuned.modules():
        if isinstance(layer, Linear):
            rotation: Any = layer.oft_R[TRAINED]
            rotation.__class__ = DroppedRotation
            # Not registered as a submodule again: it is already one of the layer.
            object.__setattr__(rotation, "block_dropout", layer.oft_dropout[TRAINED])


class DroppedRotation(OFTRotationModule):  # type: ignore[misc]  # PEFT has no types
    """PEFT's rotation; in training some of its blocks are replaced by the identity."""

    block_dropout: nn.Module

    def _cayley_batch(self, *arguments: Any, **named: Any) -> torch.Tensor:
        """The blocks, (blocks, size, size), in the dtype of the weights."""
        blocks: torch.Tensor = super()._cayley_batch(*arguments, **named)
        dropped: torch.Tensor = self.block_dropout(blocks)
        return dropped.to(blocks.dtype)
