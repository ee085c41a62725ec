"""Chooses `batch.per_device: auto`, and stops a run that cannot fit before its weights are loaded. Free of torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ascendtune.core.errors import MachineError, NoVerdict, RecipeError
from ascendtune.core.foreign_json import read_json_object
from ascendtune.core.log import warn
from ascendtune.core.units import format_bytes
from ascendtune.data.prepare import PreparedData
from ascendtune.hub.model_config import text_config
from ascendtune.machine.visible import visible_devices
from ascendtune.recipe.changes import ResumeOptions
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.plan.changes import Change, changed
from ascendtune.train.plan.estimator import run_estimator, target_here
from ascendtune.train.plan.history import read_history
from ascendtune.train.plan.request import Target
from ascendtune.train.plan.time_estimate import expected_step_seconds
from ascendtune.train.run_choice import planned_run

_WORTH_ESTIMATING = 0.25
"""The estimate takes seconds; it is made if the first guess exceeds this share of the memory."""
_FILE_BYTES = 2
"""Bytes of a parameter in the weight files; used for the first guess only."""
_BYTES = {"full": 16, "freeze": 4, "lora": 2, "oft": 2}
"""Bytes of a parameter on the device, by tuner: AdamW over fp32 weights, frozen fp32, frozen 16-bit weights."""
_KEPT_HIDDEN, _KEPT_INNER = 20, 6
"""Bytes that a decoder block keeps for the backward pass, for each position and each number of its hidden state and of
its feed-forward layer: in bf16 with fused operators (measured with 8B on an H200: 0.9 times that)."""


def with_batch_size(recipe: Recipe, resume_options: ResumeOptions, *, devices: int) -> Recipe:
    """Replace `batch.per_device: auto` by a number: that of the resumed run, else the largest that fits.

    Full rows are assumed, so that the choice depends on recipe and device only.

    Args:
        devices: number of devices of this machine, on which all ranks run.

    Raises:
        RecipeError: this machine has no accelerator.
        MachineError: not even a single sequence fits.
    """
    if recipe.batch.per_device != "auto":
        return recipe
    choice = planned_run(recipe, resume_options)
    if choice.resumed is not None and choice.run.recipe.is_file():
        per_device = Recipe.load(choice.run.recipe).batch.micro_batch
        return changed(recipe, Change({"batch.per_device": per_device}, 0, ""))
    visible = visible_devices()
    if not visible.vendor.is_accelerator:
        raise RecipeError(
            "batch.per_device: auto needs an accelerator: how much memory a run on the CPU may take is not known",
            code="device-memory-unknown",
            remedy="set a number; `ascendtune plan RECIPE --memory SIZE` finds the largest for a size",
        )
    target = target_here(visible, devices)
    answer = run_estimator(recipe, target)
    estimate = answer.estimate
    if estimate.fits(target.memory_bytes) is False:
        raise does_not_fit(
            target, estimate.low + estimate.context, estimate.expected + estimate.context, answer.changes
        )
    return answer.recipe


def require_fit(
    recipe: Recipe, model_directory: Path, prepared: PreparedData, *, devices: int, global_batch: int | None = None
) -> dict[str, Any] | None:
    """Return the estimate, for run.json; None if the model is small for the memory, or cannot be estimated.

    Args:
        devices: number of devices of this machine, on which all ranks run.
        global_batch: of the resumed run.

    Raises:
        MachineError: the run does not fit.
    """
    try:
        target = target_here(visible_devices(), devices)
    except MachineError:
        return None
    if first_guess(recipe, model_directory) < _WORTH_ESTIMATING * target.memory_bytes:
        return None
    # Imported here: importing numpy and Arrow takes half a second, which is not needed for a small model.
    from ascendtune.data.store import TokenDataset

    dataset = TokenDataset.open(prepared.train)
    try:
        answer = run_estimator(recipe, target, dataset=dataset, global_batch=global_batch)
    except NoVerdict as error:
        warn(f"memory was not estimated: {error.what}")
        return None
    estimate = answer.estimate
    if estimate.fits(target.memory_bytes) is False:
        raise does_not_fit(
            target, estimate.low + estimate.context, estimate.expected + estimate.context, answer.changes
        )
    if (shortage := estimate.host_shortage(target)) is not None:
        warn(shortage)
    return {
        "expected_bytes": estimate.expected, "low_bytes": estimate.low, "high_bytes": estimate.high,
        "context_bytes": estimate.context, "moment": estimate.moment, "how": estimate.facts["how"],
        "at_peak": estimate.at_peak,
        "step_seconds": expected_step_seconds(answer, target, read_history()),
    }  # fmt: skip


def first_guess(recipe: Recipe, model_directory: Path) -> int:
    """Bytes on one device of weights, gradients, optimizer state and activations, from file sizes and config.json."""
    config = text_config(read_json_object(model_directory / "config.json"))
    hidden, inner, layers, vocabulary = (
        each if isinstance(each := config.get(name), int) else 0
        for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
    )
    parameters = sum(file.stat().st_size for file in model_directory.glob("*.safetensors")) // _FILE_BYTES
    if recipe.model.init == "random":
        parameters = 2 * vocabulary * hidden + layers * hidden * (4 * hidden + 3 * inner)
    activation_bytes = (
        2 * hidden if recipe.memory.gradient_checkpointing else _KEPT_HIDDEN * hidden + _KEPT_INNER * inner
    )
    rows = recipe.batch.micro_batch * (2 if recipe.method.task == "pairs" else 1)
    return parameters * _BYTES[recipe.method.tuner] + rows * recipe.data.max_length * layers * activation_bytes


def does_not_fit(target: Target, low: int, expected: int, changes: list[dict[str, Any]]) -> MachineError:
    """The error for a run that does not fit, with the cheapest changes that make it fit."""
    options = [" ".join(f"{key}={str(value).lower()}" for key, value in each["keys"].items()) for each in changes]
    remedy = "add " + ", or ".join(options) if options else "use more devices, a smaller model, or method.tuner: lora"
    return MachineError(
        f"the run does not fit: a rank needs at least {format_bytes(low)}, {format_bytes(expected)} are expected, and "
        f"{target.name} has {format_bytes(target.memory_bytes)}",
        code="run-does-not-fit",
        remedy=f"{remedy}; `ascendtune plan` shows what uses the memory, --no-plan skips this check",
    )
