"""Runs the estimator in a separate process. Free of torch."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascendtune.core import process
from ascendtune.core.errors import InputError, MachineError, NoVerdict, error_of_json
from ascendtune.data.fingerprint import TokenInputs
from ascendtune.data.prepare import find_prepared
from ascendtune.data.tokenizer import Tokenizer
from ascendtune.hub.download import fetch_model, find_local
from ascendtune.machine.host_memory import usable_memory_bytes
from ascendtune.machine.snapshot import take_snapshot
from ascendtune.machine.visible import VisibleDevices
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.plan.changes import Change, changed, single_sequences
from ascendtune.train.plan.device_table import computes_bf16
from ascendtune.train.plan.request import DocumentSize, Estimate, EstimateRequest, Target
from ascendtune.train.plan.work import Steps, Work
from ascendtune.train.stored_adapters import find_adapters

if TYPE_CHECKING:
    from ascendtune.data.store import TokenDataset

_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class EstimatorResult:
    estimate: Estimate
    changes: list[dict[str, Any]]
    """If the recipe does not fit: `keys` with which it does, `why`, and their `expected` and `high` bytes."""
    work: Work | None
    """Work of a step; None if it cannot be counted."""
    steps: Steps
    recipe: Recipe
    """The recipe, with a number in place of `batch.per_device: auto`."""


def run_estimator(
    recipe: Recipe,
    target: Target,
    *,
    dataset: TokenDataset | None = None,
    search: bool = True,
    global_batch: int | None = None,
) -> EstimatorResult:
    """Estimate `recipe` on `target`.

    Args:
        dataset: the tokens, if they are known.
        global_batch: of the resumed run, which keeps it on any number of devices.
        search: if the recipe does not fit, search for changes with which it does.

    Raises:
        InputError: training would refuse the recipe.
        MachineError: the model's config, or an adapter that training starts from, cannot be fetched.
        NoVerdict: the estimator failed.
    """
    # Imported here: importing numpy takes a quarter of a second, which is not needed for most models.
    from ascendtune.train.plan.rows import full_rows, largest_micro_batch, steps_of_data, steps_of_full_rows

    if global_batch is not None and recipe.parallel.deepspeed.config is None:
        # A DeepSpeed JSON may contain the recipe's own number, which is not used for any computation.
        micro_batches = math.ceil(global_batch / (recipe.batch.micro_batch * target.devices))
        recipe = changed(recipe, Change({"batch.accumulate": micro_batches}, 0, ""))
    rows: dict[str, tuple[DocumentSize, ...]] = {}
    if dataset is not None and recipe.batch.per_device != "auto":
        largest = partial(largest_micro_batch, dataset, ranks=target.devices, global_batch=global_batch)
        rows["documents"] = largest(recipe, padding_free=True)
        rows["padded_documents"] = largest(recipe, padding_free=False)
        if recipe.batch.micro_batch > 1:
            smaller = changed(recipe, single_sequences(recipe))
            rows["single"] = largest(smaller, padding_free=True)
            rows["padded_single"] = largest(smaller, padding_free=False)
    content = _answer_of_estimator(_request(recipe, target, rows), search=search)
    estimate, work = Estimate.of(content["estimate"]), content["work"]
    recipe = changed(recipe, Change({"batch.per_device": content["per_device"]}, 0, ""))
    if dataset is not None:
        steps = steps_of_data(
            dataset, recipe, padding_free=bool(estimate.facts["padding_free"]), ranks=target.devices,
            global_batch=global_batch,
        )  # fmt: skip
    else:
        steps = steps_of_full_rows(recipe, full_rows(recipe), target.devices)
    return EstimatorResult(estimate, content["changes"], Work.of(work) if work else None, steps, recipe)


def _request(recipe: Recipe, target: Target, rows: dict[str, tuple[DocumentSize, ...]]) -> EstimateRequest:
    directory = _model(recipe.model.path, recipe.model.revision)
    vocabulary = pad = 0
    if (directory / "tokenizer.json").is_file():
        tokenizer = Tokenizer.load(directory, recipe.model.new_tokens)
        vocabulary, pad = tokenizer.vocab_size, tokenizer.pad_id
    adapters = find_adapters(recipe.method, quantised=recipe.model.quantization is not None)
    path = recipe.method.preference.reference if recipe.method.needs_reference else None
    return EstimateRequest(
        recipe.model_dump(mode="json"), str(directory), target, vocabulary, pad, **rows,
        adapters=tuple(str(each.path) for each in adapters), reference=str(_model(path)) if path else None,
    )  # fmt: skip


def _model(path: str, revision: str | None = None) -> Path:
    """The local directory of a model; its weights are not needed."""
    return (find_local(path, "model") or fetch_model(path, revision, weights_needed=False)).resolve()


def _answer_of_estimator(request: EstimateRequest, *, search: bool) -> dict[str, Any]:
    """The answer of the estimating program.

    Raises:
        InputError, MachineError: raised by the program.
        NoVerdict: the program failed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        file, result = Path(scratch) / "request.json", Path(scratch) / "answer.json"
        file.write_text(request.to_json())
        program = [sys.executable, "-P", "-m", "ascendtune.train.plan.estimate"]
        argv = [*program, str(file), str(result), *(["--changes"] if search else [])]
        # The estimator computes on no device.
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "ASCEND_RT_VISIBLE_DEVICES": ""}
        ended = process.run(argv, timeout_seconds=_TIMEOUT_SECONDS, env=environment)
        content: dict[str, Any] | None = json.loads(result.read_text()) if result.exists() else None
    if content is None:
        message = (ended.error.strip().splitlines() or ["no message"])[-1]
        raise NoVerdict(
            f"the estimator ended with exit code {ended.exit_code}: {message}",
            code="estimate-failed",
            remedy="report the model and the recipe; training itself does not need the estimate",
        )
    if refusal := content.get("refusal"):
        raise error_of_json(refusal)
    return content


def cached_dataset(recipe: Recipe) -> TokenDataset | None:
    """The recipe's training tokens if they are in the cache; nothing is downloaded."""
    from ascendtune.data.store import TokenDataset

    try:
        directory = find_local(recipe.model.path, "model")
        places = [(spec, find_local(spec.path, "dataset")) for spec in (*recipe.data.train, *recipe.data.eval)]
    except InputError:
        return None
    locations = [(spec, path) for spec, path in places if path is not None]
    if directory is None or len(locations) < len(places):
        return None
    task, new_tokens = recipe.method.task, recipe.model.new_tokens
    prepared = find_prepared(TokenInputs(recipe.data, directory.resolve(), locations, task, new_tokens, recipe.seed))
    return TokenDataset.open(prepared.train) if prepared else None


def target_here(visible: VisibleDevices, devices: int) -> Target:
    """The devices of this machine; ranks on a CPU share its memory."""
    if not visible.vendor.is_accelerator:
        return Target("cpu", take_snapshot().host.cpu_name or "CPU", usable_memory_bytes() // devices, devices)
    memory = [(each.name or visible.kind, each.memory_total_bytes) for each in take_snapshot().devices]
    memory_sizes = [(name, size) for name, size in memory if size]
    if not memory_sizes:
        raise MachineError(
            "the devices do not report how much memory they have",
            code="device-memory-unknown",
            remedy="give --device or --memory",
        )
    name, size = min(memory_sizes, key=lambda each: each[1])
    return Target(
        visible.kind, name, size, devices, computes_bf16(name),
        context_bytes=visible.vendor.planned.context_bytes, host_bytes=usable_memory_bytes() // devices,
    )  # fmt: skip
