"""The rotations of a PEFT OFT adapter, read from its config and its file's header."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendtune.core.errors import RecipeError
from ascendtune.hub.safetensors_header import SafetensorsHeader

_FIRST_VERSION = (0, 18)
"""Version of PEFT: before it the same weights meant other rotations, if the inverse is a series."""


@dataclass(frozen=True)
class Rotation:
    """The adapter of one module: its inputs are rotated, block by block."""

    module: str
    """Name in the model, e.g. model.layers.0.self_attn.q_proj."""
    weight: str
    """Name in the adapter's file: (blocks, size · (size - 1) / 2), the numbers above the diagonal of each block."""
    blocks: int
    """1 for all positions together if the config sets `block_share`."""
    size: int
    """Inputs of a block."""

    def fits(self, inputs: int, *, shared: bool) -> bool:
        """Whether it matches a module with this number of inputs."""
        return inputs % self.size == 0 and self.blocks == (1 if shared else inputs // self.size)


def require_known_rotations(config: Mapping[str, Any], path: Path) -> None:
    """Raise if today's PEFT would compute other rotations from an adapter's weights than those that were trained.

    Args:
        path: path of adapter_config.json.

    Raises:
        RecipeError: it was written by PEFT before 0.18.
    """
    version = re.match(r"(\d{1,4})\.(\d{1,4})", str(config.get("peft_version") or "0.0"))
    numbers = tuple(map(int, version.groups())) if version else (0, 0)
    if "oft_block_size" in config and (numbers >= _FIRST_VERSION or not config.get("use_cayley_neumann", True)):
        return
    raise RecipeError(
        "this OFT adapter was written by PEFT before 0.18, which computed other rotations from the same weights",
        code="adapter-not-mergeable",
        remedy="merge it with the version of PEFT that wrote it: load it, then call merge_and_unload()",
        where=path,
    )


def rotation_of(module: str, weight: str, file: SafetensorsHeader) -> Rotation:
    """The rotation of a module.

    Args:
        weight: its name in `file`.

    Raises:
        RecipeError: its shape is not that of rotations.
    """
    shape = file.tensors[weight].shape
    size = (1 + math.isqrt(1 + 8 * shape[1])) // 2 if len(shape) == 2 else 0
    if size < 2 or size * (size - 1) // 2 != shape[1]:
        raise RecipeError(
            f"{weight} is {list(shape)}, which are not the numbers above the diagonals of square blocks",
            code="adapter-damaged",
            remedy="copy or download the adapter again",
            where=file.path,
        )
    return Rotation(module, weight, shape[0], size)
