"""The results of `auto` and the versions of packages, for run.json and the terminal."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

from ascendtune import __version__
from ascendtune.core.log import say
from ascendtune.core.units import count_of, format_count
from ascendtune.machine.torch_backend.device import Device
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.batch import Batches
from ascendtune.train.kernel.install import KernelChoice
from ascendtune.train.model import trainable_share
from ascendtune.train.model_setup import ModelSetup
from ascendtune.train.objective.head import HeadForm
from ascendtune.train.optimizer import Schedule
from ascendtune.train.strategy.base import Strategy


def resolved_choices(
    recipe: Recipe, strategy: Strategy, setup: ModelSetup, kernels: dict[str, KernelChoice], batches: Batches,
    schedule: Schedule, *, head_form: HeadForm | None, weights_hash: str,
) -> dict[str, Any]:  # fmt: skip
    """The results of `auto`, and the size of the training, for run.json."""
    device, precision, attention, plan = strategy.device, setup.precision, setup.attention, batches.plan
    trainable, parameters = trainable_share(setup.root.model)
    return {
        "device": {
            "kind": device.kind,
            "name": device.name,
            "world_size": strategy.world_size,
            "settings": device.settings(),
        },
        "precision": {"compute": precision.compute, "weights": precision.weights, "reason": precision.reason},
        "attention": {"name": attention.name, "reason": attention.reason},
        "kernel": {part: choice.description for part, choice in kernels.items()},
        "strategy": {"name": strategy.name, "reason": strategy.reason},
        "learning_rate": recipe.learning_rate,
        "total_steps": schedule.total_steps,
        "steps_per_epoch": plan.steps_per_epoch,
        "global_batch": plan.global_batch,
        "per_device": recipe.batch.micro_batch,
        "parameters": parameters,
        "trainable": trainable,
        "packing": recipe.capacity(padding_free=batches.padding_free) is not None,
        "padding_free": batches.padding_free,
        "padding_ratio": 0.0 if batches.padding_free else plan.padding_ratio(recipe.batch.micro_batch),
        "loss": _name_of_loss(recipe, head_form),
        "weights_hash": weights_hash,
    }


def _name_of_loss(recipe: Recipe, form: HeadForm | None) -> str:
    head = "through the model's own logits"
    if form is not None:
        changes = f", logits times {form.scale:g}" if form.scale != 1 else ""
        changes += f", capped at {form.cap:g}" if form.cap is not None else ""
        head = f"head fused with the loss, in chunks{changes}"
    match recipe.method.stage:
        case "preference":
            return f"{recipe.method.preference.loss}, {head}"
        case "reward":
            return "pairwise, on the score of the last token"
        case "sft":
            return f"{recipe.method.sft.loss}, {head}"
        case _:
            return head


def log_choices(resolved: dict[str, Any], kernels: dict[str, KernelChoice], recipe: Recipe, strategy: Strategy) -> None:
    device, trainable, parameters = resolved["device"], resolved["trainable"], resolved["parameters"]
    operators = ", ".join(each.operator for each in kernels.values() if each.operator) or "of the model"
    say(
        f"{device['name']} ({device['kind']} × {strategy.world_size}), {resolved['precision']['compute']}, "
        f"attention {resolved['attention']['name']}, kernels {operators}; "
        f"{format_count(trainable)} of {format_count(parameters)} parameters train ({trainable / parameters:.2%})"
    )
    if strategy.world_size > 1:
        say(f"{strategy.name}: {strategy.reason}")
    of_this_start = recipe.batch.micro_batch * recipe.batch.accumulate * strategy.world_size
    if resolved["global_batch"] != of_this_start:
        say(
            f"the global batch stays {count_of(resolved['global_batch'], 'sequence')}, as the run began, "
            f"though this start would make it {of_this_start}"
        )


def versions(device: Device) -> dict[str, str | None]:
    libraries = ("torch", "transformers", "peft", "tokenizers")
    return {
        "ascendtune": __version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in libraries},
        **device.versions(),
    }
