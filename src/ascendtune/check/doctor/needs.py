"""The requirements of a recipe on the machine, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ascendtune.hub.download import split_hub

if TYPE_CHECKING:
    from ascendtune.recipe.recipe import Recipe

_CLIENTS = {"mlflow": "mlflow-skinny"}
"""Tracker -> the distribution of its client, if it has another name; a full mlflow requires mlflow-skinny."""
_STATES = {"sgd": 0, "adafactor": 0, "muon": 1}
"""Tensors of a weight's size that an optimizer keeps; AdamW keeps 2."""
_WEIGHT_FACTOR = 2
"""Bytes of the fp32 weights of a checkpoint over bytes of the bf16 weights."""
_ADAPTER_SHARE = 0.033
"""Adapters' weights relative to those of the model: with AdamW their checkpoint is a fifth of the bf16 weights."""


@dataclass(frozen=True)
class Needs:
    """`packages`: distribution -> the key of the recipe that needs it."""

    recipe: str
    model: str
    data: tuple[str, ...]
    run_dir: Path
    packages: dict[str, str]
    runs_model_code: bool
    """Whether Python code in the model's directory is run."""
    precision: str
    checkpoints: int
    """Number of checkpoints on the disk at a time."""
    checkpoint_factor: float
    """Bytes of a checkpoint relative to bytes of the model's weights in bf16."""
    export_factor: float
    """Bytes of the export relative to the same."""


def needs_of(recipe: Recipe, path: Path) -> Needs:
    """The needs of a recipe that was read from `path`."""
    sets = (*recipe.data.train, *recipe.data.eval)
    packages = {"torch": "train", "transformers": "model.path", "safetensors": "model.path"}
    if recipe.method.adapter is not None:
        packages["peft"] = f"method.tuner: {recipe.method.tuner}"
    if recipe.parallel.strategy == "deepspeed":
        packages["deepspeed"] = "parallel.strategy: deepspeed"
    if recipe.track.tensorboard:
        packages["tensorboard"] = "track.tensorboard"
    for tracker in recipe.track.send_to:
        packages[_CLIENTS.get(tracker, tracker)] = f"track.send_to: {tracker}"
    if recipe.model.attention == "npu_fusion":
        packages["torch-npu"] = "model.attention: npu_fusion"
    for key, text in (("model.path", recipe.model.path), *(("data", each.path) for each in sets)):
        if split_hub(text)[0] == "modelscope":
            packages["modelscope-hub"] = key
        if text.endswith((".parquet", ".arrow")):
            packages["pyarrow"] = key
    share = 1.0 if recipe.method.adapter is None else _ADAPTER_SHARE
    weights = _WEIGHT_FACTOR * share
    return Needs(
        recipe=str(path),
        model=recipe.model.path,
        data=tuple(each.path for each in sets),
        run_dir=recipe.run_directory(),
        packages=packages,
        runs_model_code=recipe.model.trust_remote_code,
        precision=recipe.precision,
        checkpoints=recipe.checkpoint.at_once,
        checkpoint_factor=weights * (1 + _STATES.get(recipe.optim.optimizer, 2)),
        export_factor=1.0 if recipe.method.adapter is None else weights,
    )
