"""LLaMA-Factory's environment variables, for a recipe of theirs.

FORCE_TORCHRUN needs nothing: torchrun starts wherever there are several devices. NNODES, NODE_RANK, MASTER_ADDR and
MASTER_PORT are understood for every recipe, by whoever starts the processes.
"""

from __future__ import annotations

from collections.abc import Mapping


def wants_modelscope(environment: Mapping[str, str]) -> bool:
    """Whether what is no local path should come from ModelScope."""
    return environment.get("USE_MODELSCOPE_HUB", "0").strip().lower() in ("true", "y", "1")
