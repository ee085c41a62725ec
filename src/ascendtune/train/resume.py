"""The checkpoint that a start resumes from: whether it may, and the clean-up of later records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ascendtune.core.checkpoint_names import checkpoint_to_load, is_checkpoint_of
from ascendtune.core.errors import AscendtuneError, RecipeError
from ascendtune.core.foreign_json import read_json_object
from ascendtune.core.log import say, warn
from ascendtune.core.rundir import RunDir
from ascendtune.core.units import count_of
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.checkpoint.checkpointer import Checkpointer
from ascendtune.train.counters import Counters
from ascendtune.train.dump.names import plain_name
from ascendtune.train.optimizer import Schedule, tables_of
from ascendtune.train.strategy.base import Strategy
from ascendtune.train.tuner.quantised_linear import Nf4Linear


def source_of_all_ranks(run: RunDir, record: dict[str, Any], strategy: Strategy) -> Path | None:
    """The checkpoint that the main rank would resume from; None if it starts at step 1. Every rank must call this.

    Args:
        record: run.json.
    """
    checkpoint = strategy.from_main(str(checkpoint_to_load(run, record) or ""))
    return Path(checkpoint) if checkpoint else None


def require_same_base(
    owner: RunDir, recipe: Recipe, model: Any, hashes: dict[str, str], resolved: dict[str, Any]
) -> None:
    """Raise if a checkpoint of `owner` would be loaded into another base model than that of its run.

    Checkpoints hold the trained weights: frozen weights, and the weights before the first step, which some losses
    compare with, are read from the model's files at each start.

    Args:
        hashes: of the weights before the first step, by plain name.
        resolved: the results of `auto`: with other dtypes or operators, equal weights have other hashes.
    """
    try:
        before, then = read_json_object(owner.start_weights)["parameters"], owner.read()["resolved"]
        is_comparable = all(then[key] == resolved[key] for key in ("precision", "kernel"))
    except (AscendtuneError, OSError, KeyError):
        return
    compares = recipe.method.needs_reference or recipe.method.sft.loss == "asft"
    new_tables = set(tables_of(model)) if recipe.model.new_tokens else set()
    fixed = {
        plain_name(name)
        for name, each in model.named_parameters()
        if each not in new_tables
        and not any(part.startswith(("lora_", "oft_")) for part in name.split("."))
        and (not each.requires_grad or (compares and recipe.method.adapter is None))
    } | {plain_name(f"{name}.weight") for name, each in model.named_modules() if isinstance(each, Nf4Linear)}
    changed = sorted(name for name in fixed & hashes.keys() & before.keys() if hashes[name] != before[name])
    if is_comparable and changed:
        raise RecipeError(
            f"the model is not the one that the checkpoint was trained in: {count_of(len(changed), 'weight')} "
            f"{'has' if len(changed) == 1 else 'have'} changed, the first is {changed[0]}",
            code="base-model-changed",
            remedy="restore the files of the model; or start over: checkpoint.resume=never",
            where=recipe.model.path,
        )


def require_same_packing(recipe: Recipe, before: Mapping[str, Any], resolved: Mapping[str, Any], source: Path) -> None:
    """Raise if the result of `data.packing: auto` has changed since the run began: its steps would have other rows.

    Args:
        before: the results of `auto` then; empty if they are unknown.
        source: the checkpoint.
    """
    if recipe.data.packing == "auto" and before.get("packing", resolved["packing"]) != resolved["packing"]:
        then, now = ("true", "false") if before["packing"] else ("false", "true")
        raise RecipeError(
            f"data.packing: auto is {now} on this device, and was {then} when this run began, so that the remaining "
            "steps would have other rows",
            code="packing-changed",
            remedy=(
                f"give data.packing={then} --allow-change data.packing; or continue on the kind of device on "
                "which the run began"
            ),
            where=source,
        )


def log_new_schedule(run: RunDir, step: int, schedule: Schedule) -> None:
    """Log how the learning rate jumps if its schedule is not the one of the recorded steps.

    Args:
        step: the last step that was made.
    """
    last = run.last_metrics() if step else None
    if last is None or last["step"] != step or not isinstance(before := last.get("learning_rate"), float):
        return
    if step < schedule.total_steps and not math.isclose(before, schedule.learning_rate(step - 1), rel_tol=1e-6):
        say(
            f"the schedule of the learning rate has changed: {before:.3g} in step {step}, "
            f"{schedule.learning_rate(step):.3g} in step {step + 1}"
        )


def resume(
    run: RunDir, source: Path | None, recipe: Recipe, strategy: Strategy, checkpointer: Checkpointer,
    total_steps: int, evaluated_on: str,
) -> Counters:  # fmt: skip
    """Load the checkpoint that this start resumes from, if any, and remove later records and checkpoints.

    Args:
        evaluated_on: see `Counters.evaluated_on`.

    Raises:
        RecipeError: the checkpoint is of another run, and no step is left to train.
    """
    is_foreign = source is not None and not is_checkpoint_of(run, source)
    counters = Counters.of(checkpointer.load(source)) if source is not None else Counters()
    if is_foreign and counters.step >= total_steps:
        raise RecipeError(
            f"checkpoint.resume: the checkpoint is of step {counters.step:,}, and this run ends after step "
            f"{total_steps:,}: no step is left to train",
            code="nothing-to-train",
            remedy="raise optim.max_steps or optim.epochs; to train its weights from step 1 on: model.path=RUN/model, "
            "for an adapter method.lora.start_from=[RUN]",
            where=source,
        )
    if strategy.is_main and counters.step > total_steps:
        warn(
            f"the checkpoint is of step {counters.step:,}, and the run ends after step {total_steps:,}: the model is "
            f"exported as it was after step {counters.step:,}"
        )
    if evaluated_on != counters.evaluated_on and counters.evaluated_step:
        if strategy.is_main and evaluated_on:
            warn("the evaluation data has changed: its losses are not compared with those before")
        counters.forget_evaluations()
    counters.evaluated_on = evaluated_on
    if is_foreign:
        # They describe evaluations, and a checkpoint, of the other run, which may have stopped early.
        counters.forget_evaluations()
        counters.tokens_of_datasets = []
    reason = counters.early_stop(recipe.eval.early_stop)
    if strategy.is_main and reason and counters.step < total_steps:
        warn(f"no step is trained: {reason}; to train further raise eval.early_stop.patience")
    best = counters.best_step if recipe.checkpoint.best else None
    # The best checkpoint may be missing: this may be a start from an older one.
    exists = best is not None and strategy.from_main(str(run.checkpoint(best).exists())) == "True"
    if best is not None and (best > counters.step or not exists):
        if strategy.is_main:
            warn(f"the checkpoint of step {best}, the best so far, is gone: the best is looked for from here on")
        counters.best_step = counters.best_loss = None
    strategy.barrier()
    if strategy.is_main:
        run.remove_unfinished()
        run.drop_records_after(counters.step, counters.evaluated_step)
        run.remove_checkpoints_after(counters.step)
        run.update(resume_from=str(source) if is_foreign else None)
    strategy.barrier()
    return counters
