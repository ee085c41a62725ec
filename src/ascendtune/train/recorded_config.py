"""The config.json of a run's models: each start must find those that the run began with. Free of torch.

A checkpoint has weights only. With another `rope_theta` or `rms_norm_eps` the same weights are another model.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from ascendtune.core.errors import RecipeError
from ascendtune.hub.model_config import hash_of_model_config


def hashes_of_configs(model: Path, reference: Path | None) -> dict[str, str]:
    """Directory -> hash of its config.json, the trained model first."""
    return {str(each): hash_of_model_config(each / "config.json") for each in (model, reference) if each}


def require_same_config(record: dict[str, Any], hashes: dict[str, str]) -> None:
    """Raise if the run of a checkpoint trained a model with another config.json.

    Args:
        record: run.json of that run.
        hashes: `hashes_of_configs` of this start.
    """
    (directory, now), before = next(iter(hashes.items())), [*record.get("config_hashes", {}).values()]
    if before and before[0] != now:
        raise RecipeError(
            "config.json of the model is not the one that the checkpoint was trained with",
            code="base-model-changed",
            remedy="restore config.json; or start over: checkpoint.resume=never",
            where=Path(directory) / "config.json",
        )


def require_recorded_configs(record: dict[str, Any]) -> None:
    """Raise if a model on this host has another config.json than when the run was started.

    Args:
        record: run.json.
    """
    for directory, digest in (record.get("config_hashes") or {}).items():
        path = Path(directory) / "config.json"
        if hash_of_model_config(path) != digest:
            raise RecipeError(
                f"config.json on {socket.gethostname()} is not the one that the run was started with",
                code="base-model-changed",
                remedy="restore config.json, on every host; or start over: checkpoint.resume=never",
                where=path,
            )
