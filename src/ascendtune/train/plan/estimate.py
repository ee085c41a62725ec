"""The estimating program: `python -m ascendtune.train.plan.estimate REQUEST.json ANSWER.json [--changes]`.

It runs in a separate process: tracing FSDP needs a process group, and commands must not import torch.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import ascendtune
from ascendtune.core.errors import AscendtuneError, RecipeError, error_to_json
from ascendtune.core.foreign_json import first_line
from ascendtune.machine.vendor.find import vendor_of
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.attention.model_type import ROWS_NEED_PADDING
from ascendtune.train.deferred_weights import may_defer
from ascendtune.train.model import auto_class
from ascendtune.train.plan.arithmetic import ARITHMETIC, compute_step
from ascendtune.train.plan.changes import Change, changed, changes
from ascendtune.train.plan.count_work import count_work
from ascendtune.train.plan.live_bytes import Bytes, StepMemory
from ascendtune.train.plan.planned_device import PlannedDevice
from ascendtune.train.plan.request import DocumentSize, Estimate, EstimateRequest, Target
from ascendtune.train.plan.rows import full_rows
from ascendtune.train.plan.traced_step import trace_step
from ascendtune.train.plan.training_choices import TrainingChoices
from ascendtune.train.plan.work import Work
from ascendtune.train.precision import DTYPES
from ascendtune.train.reference_log_probs import section_of_reference
from ascendtune.train.strategy.fsdp import blocks_of

_ARITHMETIC_SPREAD = (0.65, 1.5)
"""Low and high estimate as factors of the expected value, if no step was traced."""
_TORCH, _OURS = Path(torch.__file__).parent, Path(ascendtune.__file__).parent
REFERENCE = "reference answers"
"""The moment at which the reference model is in memory."""
_ENOUGH = 3
_LARGEST_BATCH = 256
"""Largest number of sequences: more gain nothing on a device, and the search would take long."""
_SEARCH_SECONDS = 40.0


def main(arguments: Sequence[str]) -> int:
    request = EstimateRequest.from_json(Path(arguments[0]).read_text())
    warnings.simplefilter("ignore")
    try:
        content = answer(request, search="--changes" in arguments)
    except AscendtuneError as error:
        content = {"refusal": error_to_json(error)}
    Path(arguments[1]).write_text(json.dumps(content))
    return 0


def answer(request: EstimateRequest, *, search: bool) -> dict[str, Any]:
    """The estimate and, with `search`, changes with which the recipe fits if it does not.

    Raises:
        AscendtuneError: training would refuse this recipe.
    """
    recipe = Recipe.check(request.recipe)
    if recipe.batch.per_device == "auto":
        recipe, estimated = largest_batch(recipe, request)
    else:
        estimated = estimate(recipe, request)
    work = _work(recipe, request)
    fitting = _fitting(recipe, request) if search and estimated.fits(request.target.memory_bytes) is not True else []
    return {
        "estimate": asdict(estimated), "changes": fitting, "work": asdict(work) if work else None,
        "per_device": recipe.batch.micro_batch,
    }  # fmt: skip


def largest_batch(recipe: Recipe, request: EstimateRequest) -> tuple[Recipe, Estimate]:
    """Set `batch.per_device` to the largest power of two that fits for certain; to 1 if none does."""

    def with_batch(size: int) -> tuple[Recipe, Estimate]:
        candidate = changed(recipe, Change({"batch.per_device": size}, 0, ""))
        return candidate, estimate(candidate, request)

    size, best, estimated = 1, *with_batch(1)
    while estimated.fits(request.target.memory_bytes) is True and 2 * size <= _LARGEST_BATCH:
        size *= 2
        try:
            candidate, larger = with_batch(size)
        except RecipeError as error:
            if error.code != ROWS_NEED_PADDING:
                raise
            break
        if larger.fits(request.target.memory_bytes) is not True:
            break
        best, estimated = candidate, larger
    return best, estimated


def _work(recipe: Recipe, request: EstimateRequest) -> Work | None:
    """The work of a step; None if the model class cannot be constructed without weights."""
    try:
        return count_work(_setting(recipe, request))
    except Exception as error:
        if not _is_of_the_model(error, recipe):
            raise
        return None


def _fitting(recipe: Recipe, request: EstimateRequest) -> list[dict[str, Any]]:
    """The first changes that fit; none of them contains another."""
    limit, until = request.target.memory_bytes, time.monotonic() + _SEARCH_SECONDS
    fitting: list[dict[str, Any]] = []
    # How shorter rows would be packed is unknown.
    cut = replace(request, documents=None, padded_documents=None)
    single = replace(request, documents=request.single, padded_documents=request.padded_single)
    for change in changes(recipe, ranks=request.target.devices, on_host=request.target.is_host):
        if len(fitting) == _ENOUGH or time.monotonic() > until:
            break
        if any(each["keys"].items() <= change.keys.items() for each in fitting):
            continue
        try:
            other = changed(recipe, change)
            of_change = single if "batch.per_device" in change.keys else request
            if "data.max_length" in change.keys:
                of_change = cut
            # Most are much too large: arithmetic finds that at once.
            setting = _setting(other, request)
            rough = compute_step(setting, _documents(setting, of_change))
            if rough.moments["step"].total() * _ARITHMETIC_SPREAD[0] > limit:
                continue
            estimated = estimate(other, of_change)
            if estimated.facts["how"] == ARITHMETIC:
                # Arithmetic makes no adapters: some are refused only when they are made.
                _work(other, request)
        except AscendtuneError:
            continue
        if estimated.fits(limit) and estimated.host_shortage(request.target) is None:
            sizes = {"expected": estimated.expected, "high": estimated.high}
            fitting.append({"keys": change.keys, "why": change.why, **sizes})
    return fitting


def _documents(setting: TrainingChoices, request: EstimateRequest) -> Sequence[DocumentSize]:
    """Documents of the largest micro-batch; full rows if the data are unknown."""
    documents = request.documents if setting.padding_free else request.padded_documents
    return documents or full_rows(setting.recipe)


def _setting(recipe: Recipe, request: EstimateRequest) -> TrainingChoices:
    return TrainingChoices.of(
        recipe, Path(request.model_directory), PlannedDevice(request.target),
        ranks=request.target.devices, vocabulary=request.vocabulary, pad_id=request.pad_id,
        nodes=request.target.nodes, adapters=[Path(each) for each in request.adapters],
    )  # fmt: skip


def estimate(recipe: Recipe, request: EstimateRequest) -> Estimate:
    """Trace a step; if the model class cannot be traced, use arithmetic."""
    target = request.target
    setting = _setting(recipe, request)
    documents = _documents(setting, request)
    step, spread, notes = _step_memory(setting, documents, target)
    moments, resting = step.moments, step.resting
    if request.reference is not None:
        # Before the first step: without gradients and optimizer state, and with the reference model.
        model_bytes = Counter({name: resting[name] for name in ("weights", "adapters")})
        moments = {
            **moments,
            REFERENCE: model_bytes + Counter({"reference": _reference_bytes(setting, request.reference)}),
        }
    # DeepSpeed writes checkpoints directly from its state, without a copy.
    host, copied = step.offloaded, 0 if setting.strategy == "deepspeed" else _checkpoint_copy(step)
    if _offloads(setting.recipe):
        host += sum(_at_rest(resting).values())
        moments = {name: each - _at_rest(each) for name, each in moments.items()}
        resting = resting - _at_rest(resting)
    moment = max(moments, key=lambda each: moments[each].total())
    at_peak = {name: size for name, size in moments[moment].most_common() if size > 0}
    expected = sum(at_peak.values())
    # A checkpoint is written from a copy in host memory while training goes on.
    on_host = target.is_host
    return Estimate(
        expected=expected,
        low=int(expected * spread[0]),
        high=int(expected * spread[1]) + (copied if on_host else 0),
        moment=moment,
        at_peak=at_peak,
        moments={name: each.total() for name, each in moments.items()},
        resting=resting.total(),
        host=host if on_host else max(host + copied, _host_bytes_of_loading(setting, step)),
        context=target.context_bytes,
        facts={
            "parameters": step.parameters, "trainable": step.trainable, "layers": step.layers, "how": step.how,
            "strategy": setting.strategy, "reason": setting.reason,
            "precision": setting.precision.compute, "weights": setting.precision.weights,
            "attention": setting.attention.name, "padding_free": setting.padding_free,
            "tokens": _positions(documents, setting.padding_free), "measured_rows": request.documents is not None,
        },
        notes=tuple(notes),
    )  # fmt: skip


def _step_memory(
    setting: TrainingChoices, documents: Sequence[DocumentSize], target: Target
) -> tuple[StepMemory, tuple[float, float], list[str]]:
    """Memory of a step, traced if possible; factors from the expected value to low and high; notes."""
    try:
        if setting.strategy == "deepspeed":
            raise NotImplementedError("DeepSpeed moves and divides tensors itself")
        step = trace_step(setting, documents)
    except Exception as error:
        if not _is_of_the_model(error, setting.recipe):
            raise
        note = f"no step could be traced, so this is arithmetic and wide: {first_line(error)}"
        return compute_step(setting, documents), _ARITHMETIC_SPREAD, [note]
    low, high = vendor_of(target.kind).planned.spread
    # In a collective, Gloo allocates another copy of all tensors that it gathers or reduces, which the trace does not
    # show.
    return step, (low, high + (0.1 if target.is_host and setting.strategy == "fsdp" else 0)), []


def _is_of_the_model(error: Exception, recipe: Recipe) -> bool:
    """Whether tracing failed because of the model class, and not because of the recipe or a bug of this program.

    Tensors without content make torch raise RuntimeError, wherever the operator was called. Another error is the
    model's if the innermost code outside of torch is not in this package.
    """
    if isinstance(error, AscendtuneError):
        # Only tracing needs the layers of a model that is trained as a whole.
        return error.code == "layers-unknown" and recipe.method.tuner != "freeze"
    if isinstance(error, RuntimeError):
        return True
    files = [Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)]
    callers = [each for each in files if not each.is_relative_to(_TORCH)]
    return not callers[-1].is_relative_to(_OURS)


def _reference_bytes(setting: TrainingChoices, directory: str) -> int:
    """Bytes of the reference model in the compute dtype; with FSDP, of a rank's share and the gathered groups."""
    _, config = section_of_reference(setting.recipe, Path(directory))
    with torch.device("meta"):
        model = auto_class("preference").from_config(config, trust_remote_code=setting.recipe.model.trust_remote_code)
    parameters: int = sum(each.numel() for each in model.parameters())
    if setting.strategy == "fsdp":
        blocks = [sum(each.numel() for each in block.parameters()) for block in blocks_of(model)]
        # Gathered at the same time: parameters outside the blocks, and two blocks.
        parameters = parameters // setting.shards + parameters - sum(blocks) + 2 * max(blocks, default=0)
    return parameters * DTYPES[setting.precision.compute].itemsize


def _host_bytes_of_loading(setting: TrainingChoices, step: StepMemory) -> int:
    """Bytes of a model that each rank makes whole in host memory, because its weights are not in files as they are."""
    if may_defer(setting.recipe.model):
        return 0
    return step.parameters * DTYPES[setting.precision.weights].itemsize


def _offloads(recipe: Recipe) -> bool:
    return recipe.parallel.strategy == "fsdp" and recipe.parallel.fsdp.offload


def _at_rest(resting: Bytes) -> Bytes:
    """The part that FSDP with offloading keeps in host memory."""
    return Counter({name: resting[name] for name in ("weights", "adapters", "gradients", "optimizer")})


def _checkpoint_copy(step: StepMemory) -> int:
    """Bytes of the trained weights and the optimizer's state."""
    resting = step.resting
    trained = resting["adapters"] or int(resting["weights"] * step.trainable / max(1, step.parameters))
    return trained + resting["optimizer"]


def _positions(documents: Sequence[DocumentSize], padding_free: bool) -> int:
    lengths = [each.tokens for each in documents]
    return sum(lengths) if padding_free else len(lengths) * max(lengths)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
