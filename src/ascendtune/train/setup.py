"""Builds the loop from a run directory: model, tuner, objective, data, optimizer, the checkpoint to resume from."""

from __future__ import annotations

import json
import math
import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ascendtune.core.log import warn
from ascendtune.core.records import write_json
from ascendtune.core.rundir import RunDir
from ascendtune.core.units import count_of
from ascendtune.data.plan import BatchPlan
from ascendtune.data.prepare import PreparedData
from ascendtune.data.report import DataReport
from ascendtune.data.store import TokenDataset
from ascendtune.machine.torch_backend.device import Device
from ascendtune.machine.visible import cpu_count
from ascendtune.recipe.recipe import Recipe
from ascendtune.train import model_checks
from ascendtune.train.adamw import AdamWUpdate
from ascendtune.train.attention.choice import AttentionChoice
from ascendtune.train.batch import Batches
from ascendtune.train.checkpoint.checkpointer import Checkpointer, require_space_for_run, step_of
from ascendtune.train.checkpoint.count import most_checkpoints, steps_between
from ascendtune.train.checkpoint.size import checkpoint_bytes
from ascendtune.train.dump.step_dumps import StepDumps
from ascendtune.train.dump.weight_hashes import hashes_of_weights
from ascendtune.train.export import exported_bytes
from ascendtune.train.flops import TokenFlops
from ascendtune.train.kernel.adamw import choose_adamw
from ascendtune.train.loop import Loop
from ascendtune.train.model_flops import model_flops
from ascendtune.train.model_setup import ModelSetup, check_head, isolates, may_isolate, set_up_model
from ascendtune.train.objective.base import make_objective
from ascendtune.train.objective.head import HeadForm
from ascendtune.train.objective.preference import PreferenceObjective
from ascendtune.train.offloaded_activations import activation_store
from ascendtune.train.optimizer import Schedule, make_optimizer, tables_of
from ascendtune.train.phases import Phases
from ascendtune.train.precision import DTYPES, Precision, export_dtype
from ascendtune.train.profile.step_profile import StepProfile, require_profiled_steps
from ascendtune.train.recorder import Recorder
from ascendtune.train.reference_log_probs import add_reference, attention_of_reference, reference_key, reference_model
from ascendtune.train.report.callback import Callback
from ascendtune.train.report.metrics_writer import MetricsWriter
from ascendtune.train.report.progress import ProgressDisplay
from ascendtune.train.resolved import log_choices, resolved_choices, versions
from ascendtune.train.resume import (
    log_new_schedule,
    require_same_base,
    require_same_packing,
    resume,
    source_of_all_ranks,
)  # fmt: skip
from ascendtune.train.stop_request import StopRequest
from ascendtune.train.strategy.base import Strategy
from ascendtune.train.strategy.host_copies import bytes_in_memory


def set_up(
    run: RunDir,
    record: dict[str, Any],
    recipe: Recipe,
    strategy: Strategy,
    prepared: PreparedData,
    phases: Phases,
    stack: ExitStack,
) -> Loop:
    """Do everything before the first step.

    Args:
        record: run.json.
        prepared: the tokens.
        stack: closed when the attempt ends; signals are handled until then.

    Raises:
        RecipeError: the model or a name in the recipe does not fit, the model has changed since the checkpoint was
            written, or no step would be profiled.
        CheckFailed: packed documents would attend to each other.
        MachineError: the disk has no space for the run, or a checkpoint is damaged.
    """
    device = strategy.device
    setup = set_up_model(record, recipe, strategy, prepared)
    root, model, precision = setup.root, setup.root.model, setup.precision
    start_weights = hashes_of_weights(
        model, lambda sums: [json.loads(each) for each in strategy.gather(json.dumps(sums))]
    )
    head_form = root.with_full_params(lambda: check_head(model, recipe, strategy, precision))
    layout = _choose_layout(record, recipe, strategy, setup)
    objective = make_objective(model, recipe, head_form=head_form, mean_over_ranks=strategy.mean)
    # Dropout differs between ranks from here on.
    torch.manual_seed(recipe.seed + strategy.rank)

    batches, held_out = _make_batches(recipe, strategy, prepared, record, layout)
    model_checks.warn_of_long_rows(setup.config, int(batches.dataset.lengths.max()))
    schedule = _make_schedule(recipe, batches.plan, is_main=strategy.is_main)
    require_profiled_steps(recipe.profile, schedule.total_steps, strategy)
    adamw = choose_adamw(recipe, strategy, precision)
    kernels = {**setup.kernels, "adamw": adamw}
    resolved = resolved_choices(
        recipe, strategy, setup, kernels, batches, schedule, head_form=head_form, weights_hash=start_weights["hash"]
    )
    if strategy.is_main:
        log_choices(resolved, kernels, recipe, strategy)
    checkpoint_every = steps_between(recipe.checkpoint, schedule.total_steps)
    dtype, source = export_dtype(recipe, setup.config), source_of_all_ranks(run, record, strategy)
    if recipe.profile.only:
        held_out, checkpoint_every = None, schedule.total_steps + 1
    else:
        _require_space(
            run, recipe, setup, schedule, batches.plan, dtype,
            done=0 if source is None else step_of(source), is_gathered=strategy.shards_weights,
        )  # fmt: skip

    module, optimizer = strategy.prepare(
        root, precision, lambda: _make_optimizer(recipe, device, model, precision, adamw.update)
    )
    in_loop, stop = strategy.loop_precision(precision), StopRequest()
    if recipe.method.needs_reference:
        assert isinstance(objective, PreferenceObjective)
        key = reference_key(recipe, record, precision, setup.attention.name)
        reference = reference_model(
            recipe, record.get("reference_directory"), layout.reference_attention, objective,
            root, strategy, precision, tokens=setup.tokenizer.vocab_size,
        )  # fmt: skip
        add = partial(
            add_reference, precision=in_loop, reference=reference, write_heartbeat=phases.write_heartbeat, stop=stop
        )
        with stop.listening("the reference answers so far"):
            last = recipe.profile.window()[-1] if recipe.profile.only else schedule.total_steps
            steps = min(last, schedule.total_steps, batches.plan.steps_per_epoch)
            batches = add(batches, steps, run.reference("train", key))
            held_out = held_out and add(held_out, held_out.plan.steps_per_epoch, run.reference("eval", key))

    checkpointer = Checkpointer(
        run, strategy, strategy.checkpoint_content(model, optimizer), keep=recipe.checkpoint.keep
    )
    stack.enter_context(stop.listening("a checkpoint"))
    stack.push(checkpointer.complete_after)
    if source is not None:
        require_same_base(RunDir(source.parent.parent), recipe, model, start_weights["parameters"], resolved)
        require_same_packing(recipe, record.get("resolved", {}), resolved, source)
    evaluated_on = held_out.dataset.content_hash() if held_out is not None else ""
    counters = resume(run, source, recipe, strategy, checkpointer, schedule.total_steps, evaluated_on)
    if strategy.is_main:
        log_new_schedule(run, counters.step, schedule)
        write_json(run.start_weights, start_weights)
        global_batch = batches.plan.global_batch
        run.update(global_batch=global_batch, resolved=resolved, versions=versions(device))
    if setup.scaler is not None and counters.scaler:
        setup.scaler.load_state_dict(counters.scaler)
    flops = _flops_per_token(recipe, model, head_form, batches, resolved["padding_ratio"])
    facts = _profile_facts(recipe, strategy, resolved, flops, batches.dataset)
    profile = StepProfile(run.profile, recipe.profile, strategy, model, optimizer, phases, facts)
    stack.callback(profile.close)
    recorder = Recorder(
        strategy, objective, batches, flops, counters, phases, stop,
        hashes_batches=recipe.align.batch_hash, callbacks=_callbacks(run, recipe) if strategy.is_main else [],
    )  # fmt: skip
    return Loop(
        run_directory=run, recipe=recipe, strategy=strategy, precision=in_loop,
        root=root, module=module, objective=objective, optimizer=optimizer, scaler=setup.scaler, schedule=schedule,
        batches=batches, held_out=held_out, activations=activation_store(recipe.memory, device, model),
        checkpointer=checkpointer, checkpoint_every=checkpoint_every, counters=counters,
        phases=phases, dumps=_step_dumps(run, recipe, strategy, model, head_form), profile=profile,
        stop=stop, recorder=recorder,
        model=setup.tuned, tokenizer=setup.tokenizer, export_dtype=dtype,
    )  # fmt: skip


@dataclass(frozen=True)
class _Layout:
    """The layout of rows in a micro-batch."""

    padding_free: bool
    """Whether documents are concatenated without padding."""
    masked: bool
    """Whether the model gets an attention mask, which marks padding."""
    reference_attention: AttentionChoice | None
    """Attention of the reference, if it is another model."""


def _choose_layout(record: dict[str, Any], recipe: Recipe, strategy: Strategy, setup: ModelSetup) -> _Layout:
    root, attention = setup.root, setup.attention
    padding_free = root.with_full_params(lambda: isolates(root.model, recipe, strategy, setup.precision, attention))
    masked, of_reference = attention.is_own, None
    if directory := record.get("reference_directory"):
        of_reference = attention_of_reference(recipe, directory, strategy.device)
        padding_free = padding_free and may_isolate(recipe, of_reference, is_main=strategy.is_main)
        masked = masked or of_reference.is_own
    # All ranks must have the same plan of batches: otherwise they would train on different rows.
    is_shared = strategy.agree(padding_free)
    if padding_free and not is_shared and strategy.is_main:
        warn("rows are padded: attention separates documents on this rank, but not on all others")
    return _Layout(is_shared, masked, of_reference)


def _make_batches(
    recipe: Recipe, strategy: Strategy, prepared: PreparedData, record: dict[str, Any], layout: _Layout
) -> tuple[Batches, Batches | None]:
    """Batches of the training data, and of the evaluation data if there is any."""

    def plan(dataset: TokenDataset, global_batch: int, report: DataReport | None, *, seed: int | None) -> BatchPlan:
        groups = report.dataset_groups if report is not None else {}
        return BatchPlan(
            dataset.lengths, dataset.label_counts,
            capacity=recipe.capacity(padding_free=layout.padding_free),
            global_batch=global_batch, seed=seed, group_size=dataset.group_size,
            datasets=groups if len(groups) > 1 else None, apart=seed is None,
        )  # fmt: skip

    dataset = TokenDataset.open(prepared.train)
    at_once = recipe.batch.micro_batch * strategy.world_size
    batches = Batches(
        dataset,
        plan(
            dataset, record.get("global_batch") or at_once * recipe.batch.accumulate, prepared.report, seed=recipe.seed
        ),
        strategy, recipe.batch.micro_batch,
        padding_free=layout.padding_free, masked=layout.masked, pad_id=prepared.pad_id,
        mismatched=recipe.method.stage == "preference" and recipe.method.preference.loss == "kto",
    )  # fmt: skip
    if not prepared.eval:
        return batches, None
    held_out = TokenDataset.open(prepared.eval)
    return batches, replace(batches, dataset=held_out, plan=plan(held_out, at_once, prepared.eval_report, seed=None))


def _make_schedule(recipe: Recipe, plan: BatchPlan, *, is_main: bool) -> Schedule:
    total_steps = recipe.optim.max_steps or math.ceil((recipe.optim.epochs or 1) * plan.steps_per_epoch)
    schedule = Schedule(recipe.optim, recipe.learning_rate, total_steps)
    if is_main and schedule.warmup_steps >= total_steps:
        key = "warmup_steps" if recipe.optim.warmup_steps else "warmup_ratio"
        warn(
            f"the run ends within its warm-up of {count_of(schedule.warmup_steps, 'step')}: the learning rate never "
            f"reaches {recipe.learning_rate:g}, and that of the last step is "
            f"{schedule.learning_rate(total_steps - 1):.3g}. Set optim.{key} lower, or train more steps"
        )
    return schedule


def _require_space(
    run: RunDir, recipe: Recipe, setup: ModelSetup, schedule: Schedule, plan: BatchPlan, exported: torch.dtype,
    *, done: int, is_gathered: bool,
) -> None:  # fmt: skip
    """Raise if the disk has too little space for the checkpoints and the model; `done` steps have been made already.

    Args:
        is_gathered: the main rank gathers the weights on its host before it writes the model.
    """
    model = exported_bytes(setup.tuned, bool(recipe.model.new_tokens), exported)
    written = most_checkpoints(
        recipe, total_steps=schedule.total_steps, steps_per_epoch=plan.steps_per_epoch, done=done
    )
    require_space_for_run(
        run, recipe.checkpoint,
        checkpoint=checkpoint_bytes(recipe, setup.tuned, computed_bytes=DTYPES[setup.precision.compute].itemsize),
        model=model, written=written, done=done, gathered=max(0, model - bytes_in_memory()) if is_gathered else 0,
    )  # fmt: skip


def _make_optimizer(
    recipe: Recipe, device: Device, model: Any, precision: Precision, update: AdamWUpdate | None
) -> torch.optim.Optimizer:
    return make_optimizer(
        recipe.optim, model.named_parameters(), recipe.learning_rate,
        fused=device.fuses_optimizer(precision.compute), update=update, plus_ratio=recipe.method.lora.plus_ratio,
        tables=tables_of(model),
    )  # fmt: skip


def _flops_per_token(
    recipe: Recipe, model: Any, head_form: HeadForm | None, batches: Batches, padding_ratio: float
) -> TokenFlops:
    counted = model_flops(model, recipe, head_is_fused=head_form is not None)
    return counted.per_token(batches.dataset.rows_by_length(), padding_ratio=padding_ratio)


def _step_dumps(run: RunDir, recipe: Recipe, strategy: Strategy, model: Any, head_form: HeadForm | None) -> StepDumps:
    head = model.get_output_embeddings() if head_form is not None else None
    return StepDumps(run.dumps, recipe.align, strategy, model, left_out=[] if head is None else [head])


def _profile_facts(
    recipe: Recipe, strategy: Strategy, resolved: dict[str, Any], flops: TokenFlops, dataset: TokenDataset
) -> dict[str, Any]:
    """Facts about the training that are stored in the summary of a profile."""
    tokens, labels = float(dataset.lengths.sum()), float(dataset.label_counts.sum())
    return {
        "device": {"kind": strategy.device.kind, "name": strategy.device.name},
        "peak_flops": strategy.device.peak_flops,
        "flops_per_token": flops.useful_flops(tokens, labels) / tokens,
        "computed_flops_per_token": flops.computed_flops(tokens, labels) / tokens,
        "world_size": strategy.world_size,
        "per_device": recipe.batch.micro_batch,
        "accumulate": recipe.batch.accumulate,
        "packing": recipe.data.packing,
        "padding_ratio": resolved["padding_ratio"],
        "kernel": recipe.kernel if isinstance(recipe.kernel, str) else recipe.kernel.model_dump(),
        "every_steps": recipe.track.every_steps,
        "threads": torch.get_num_threads(),
        "cores": cpu_count(),
        "ranks_on_host": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "resolved": {key: resolved[key] for key in ("precision", "attention", "kernel", "strategy", "packing")},
    }


def _callbacks(run: RunDir, recipe: Recipe) -> list[Callback]:
    callbacks: list[Callback] = [MetricsWriter(run), ProgressDisplay(run)]
    if recipe.track.tensorboard:
        from ascendtune.train.report.tensorboard import TensorBoardWriter

        callbacks.append(TensorBoardWriter(run))
    if recipe.track.send_to:
        from ascendtune.train.report.live_sending import LiveSending, destinations_of

        callbacks.extend(LiveSending(run, each) for each in destinations_of(recipe))
    return callbacks
