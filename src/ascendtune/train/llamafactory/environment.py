"""LLaMA-Factory's environment variables, for a recipe of theirs."""

from __future__ import annotations

from collections.abc import Mapping

from ascendtune.core.errors import RecipeError


def require_one_node(environment: Mapping[str, str]) -> None:
    """FORCE_TORCHRUN needs nothing: torchrun starts wherever there are several devices. MASTER_ADDR and MASTER_PORT
    mean nothing on one node, where a free port is taken.

    Raises:
        RecipeError: NNODES or NODE_RANK ask for several nodes, or for what is no number.
    """
    for name, only in (("NNODES", "1"), ("NODE_RANK", "0")):
        value = environment.get(name, only).strip() or only
        if value != only:
            raise RecipeError(
                f"{name}={value}: several nodes are not in this version",
                remedy=f"unset {name} and start on one node; parallel.strategy fsdp or deepspeed fits larger models",
                where=f"environment variable {name}",
            )


def wants_modelscope(environment: Mapping[str, str]) -> bool:
    """Whether what is no local path should come from ModelScope."""
    return environment.get("USE_MODELSCOPE_HUB", "0").strip().lower() in ("true", "y", "1")
