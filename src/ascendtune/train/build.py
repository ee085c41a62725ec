"""Put a training loop together from a run directory: model, tuner, objective, optimiser, plan, callbacks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ascendtune.core.log import say, warn
from ascendtune.core.rundir import RunDir
from ascendtune.core.units import format_count
from ascendtune.data.plan import BatchPlan
from ascendtune.data.prepare import Prepared
from ascendtune.data.store import TokenDataset
from ascendtune.data.tokenizer import Tokenizer
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.adapters import Adapter
from ascendtune.train.batch import BatchMaker
from ascendtune.train.checkpoint.checkpointer import Checkpointer
from ascendtune.train.disk_space import require_room
from ascendtune.train.evaluate import Evaluation
from ascendtune.train.flops import flops_per_token
from ascendtune.train.kernel.install import fused
from ascendtune.train.memory import activation_store
from ascendtune.train.model_setup import may_pack, set_up_model
from ascendtune.train.objective.head import HeadForm
from ascendtune.train.objective.preference import PreferenceObjective
from ascendtune.train.optimizer import make_optimizer
from ascendtune.train.parts import Parts
from ascendtune.train.phases import Phases
from ascendtune.train.reference import reference_log_probs
from ascendtune.train.reference_model import attention_of_reference, reference_key, reference_model
from ascendtune.train.report.callback import Callback
from ascendtune.train.schedule import Schedule
from ascendtune.train.stop_request import StopRequest
from ascendtune.train.strategy.base import Strategy
from ascendtune.train.tuner import trainable_share


@dataclass
class Built:
    parts: Parts
    tuned: Any
    """What is exported at the end: the model, or the PeftModel around it."""
    tokenizer: Tokenizer
    chat_template: str
    export_dtype: torch.dtype
    """In which type weights leave: as the base came in, adapters as they were trained."""
    resolved: dict[str, Any]
    """What every `auto` became, and why: for run.json."""


def build(
    run: RunDir,
    recipe: Recipe,
    strategy: Strategy,
    prepared: Prepared,
    *,
    attempt: int,
    callbacks: list[Callback],
    phases: Phases,
) -> Built:
    """Everything up to the first step.

    Raises:
        RecipeError: the model or a name in the recipe does not fit.
        CheckFailed: packed documents would see each other.
    """
    record, device = run.read(), strategy.device
    adapters = [Adapter.of(each).path for each in record.get("adapters", [])]
    trainee = set_up_model(recipe, Path(record["model_directory"]), adapters, strategy, pad_id=prepared.pad_id)
    model, objective, precision = trainee.model, trainee.objective, trainee.precision
    packed, masked, reference_attention = trainee.packed, trainee.attention.is_own, None
    if reference_directory := record.get("reference_directory"):
        reference_attention = attention_of_reference(recipe, reference_directory, device)
        packed = packed and may_pack(recipe, reference_attention, is_main=strategy.is_main)
        masked = masked or reference_attention.is_own
    dataset = TokenDataset.open(prepared.train)
    _warn_of_long_rows(trainee.config, int(dataset.lengths.max()))
    capacity = recipe.data.max_length if packed else None
    global_batch = record.get("global_batch") or recipe.batch.per_device * recipe.batch.accumulate * strategy.world_size
    plan = BatchPlan(
        dataset.lengths, dataset.label_counts,
        capacity=capacity, global_batch=global_batch, seed=recipe.seed, group_size=dataset.group_size,
    )  # fmt: skip
    total_steps = recipe.optim.max_steps or math.ceil((recipe.optim.epochs or 1) * plan.steps_per_epoch)
    trainable, parameters = trainable_share(model)
    resolved = {
        "device": {
            "kind": device.kind,
            "name": device.name,
            "world_size": strategy.world_size,
            "settings": device.settings(),
        },
        "precision": {"compute": precision.compute, "weights": precision.weights, "reason": precision.reason},
        "attention": {"name": trainee.attention.name, "reason": trainee.attention.reason},
        "kernel": trainee.kernels,
        "strategy": {"name": strategy.name, "reason": strategy.reason},
        "loss": _name_of_loss(recipe, trainee.head_form),
        "packing": packed,
        "learning_rate": recipe.learning_rate,
        "total_steps": total_steps,
        "steps_per_epoch": plan.steps_per_epoch,
        "global_batch": global_batch,
        "parameters": parameters,
        "trainable": trainable,
        "padding_ratio": plan.padding_ratio(recipe.batch.per_device),
    }
    if strategy.is_main:
        _say(resolved, record, recipe, strategy)

    flops = flops_per_token(model, mean_length=float(dataset.lengths.mean()), trains_all=trainable == parameters)
    every = recipe.checkpoint.every_steps or max(20, total_steps // 10)
    require_room(run, recipe, model, trainee.export_dtype, checkpoints=(total_steps - 1) // every)

    def optimizer_over_what_is_there() -> torch.optim.Optimizer:
        return make_optimizer(
            recipe.optim, model.named_parameters(), recipe.learning_rate,
            fused=device.fuses_optimizer(precision.compute), plus_ratio=recipe.method.lora.plus_ratio,
        )  # fmt: skip

    module, optimizer = strategy.prepare(objective, precision, optimizer_over_what_is_there)
    in_loop = strategy.precision_of_loop(precision)
    checkpointer = Checkpointer(
        run, strategy, strategy.content(model, optimizer),
        keep=recipe.checkpoint.keep,
        on_complete=partial(_tell_checkpoint, callbacks),
    )  # fmt: skip
    make_batches = partial(
        BatchMaker,
        device=device, packed=packed, masked=masked, pad_id=prepared.pad_id,
        mismatched=recipe.method.stage == "preference" and recipe.method.preference.loss == "kto",
    )  # fmt: skip
    batches, evaluation = make_batches(dataset), None
    if prepared.eval:
        held_out = TokenDataset.open(prepared.eval)
        evaluation = Evaluation(
            held_out, strategy, in_loop,
            batches=make_batches(held_out), capacity=capacity, per_device=recipe.batch.per_device,
        )  # fmt: skip
    stop = StopRequest()
    if recipe.method.needs_reference:
        assert isinstance(objective, PreferenceObjective)
        reference = reference_model(
            recipe,
            reference_directory,
            reference_attention,
            objective,
            strategy,
            precision,
            trainee.tokenizer.vocab_size,
        )
        ask = partial(
            reference_log_probs,
            per_device=recipe.batch.per_device, strategy=strategy, precision=in_loop, reference=reference,
            pulse=phases.pulse, stop=stop,
        )  # fmt: skip
        first_epoch = map(plan.batch, range(min(total_steps, plan.steps_per_epoch)))
        key = reference_key(recipe, record, precision, trainee.attention.name)
        with stop.listening("what is computed"):
            batches.reference = ask(run.reference("train", key), dataset, first_epoch, batches=batches)
            if evaluation:
                whole = map(evaluation.plan.batch, range(evaluation.plan.steps_per_epoch))
                evaluation.batches.reference = ask(
                    run.reference("eval", key), evaluation.dataset, whole, batches=evaluation.batches
                )
    parts = Parts(
        recipe=recipe, run=run, attempt=attempt, strategy=strategy, precision=in_loop,
        objective=objective, module=module, optimizer=optimizer,
        schedule=Schedule(recipe.optim, recipe.learning_rate, total_steps),
        dataset=dataset, plan=plan, batches=batches, per_device=recipe.batch.per_device,
        total_steps=total_steps,
        flops_per_token=flops,
        evaluation=evaluation,
        checkpointer=checkpointer,
        checkpoint_every=every,
        callbacks=callbacks,
        activations=activation_store(recipe.memory, device),
        phases=phases,
        stop=stop,
    )  # fmt: skip
    return Built(parts, trainee.tuned, trainee.tokenizer, prepared.chat_template, trainee.export_dtype, resolved)


def _name_of_loss(recipe: Recipe, form: HeadForm | None) -> str:
    how = "through the model's own logits"
    if form is not None:
        changes = f", logits times {form.scale:g}" if form.scale != 1 else ""
        changes += f", capped at {form.cap:g}" if form.cap is not None else ""
        how = f"head fused with the loss, in chunks{changes}"
    match recipe.method.stage:
        case "preference":
            return f"{recipe.method.preference.loss}, {how}"
        case "reward":
            return "pairwise, on the score of the last token"
        case _:
            return how


def _warn_of_long_rows(config: Any, longest: int) -> None:
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and longest > positions:
        warn(
            f"the longest row has {longest:,} tokens, the model was made for {positions:,} positions: "
            "set data.max_length lower, or rope scaling in the model's config.json"
        )


def _tell_checkpoint(callbacks: list[Callback], step: int) -> None:
    for callback in callbacks:
        callback.on_checkpoint(step)


def _say(resolved: dict[str, Any], record: dict[str, Any], recipe: Recipe, strategy: Strategy) -> None:
    device, trainable, parameters = resolved["device"], resolved["trainable"], resolved["parameters"]
    say(
        f"{device['name']} ({device['kind']} × {strategy.world_size}), {resolved['precision']['compute']}, "
        f"attention {resolved['attention']['name']}, kernels {', '.join(fused(resolved['kernel'])) or 'of the model'}; "
        f"{format_count(trainable)} of {format_count(parameters)} parameters train ({trainable / parameters:.2%})"
    )
    if strategy.world_size > 1:
        say(f"{strategy.name}: {strategy.reason}")
    asked = recipe.batch.per_device * recipe.batch.accumulate * strategy.world_size
    if resolved["global_batch"] != asked:
        say(
            f"the global batch stays {resolved['global_batch']} sequences, as the run began, "
            f"though this start would make it {asked}"
        )
