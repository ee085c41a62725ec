"""From a run directory to the loop: model, tuner, objective, data, optimizer, and the checkpoint to resume from."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ascendtune import __version__
from ascendtune.core.errors import RecipeError
from ascendtune.core.files import write_json
from ascendtune.core.log import say, warn
from ascendtune.core.rundir import RunDir
from ascendtune.core.units import format_count
from ascendtune.data.plan import BatchPlan
from ascendtune.data.prepare import Prepared
from ascendtune.data.store import TokenDataset
from ascendtune.data.tokenizer import Tokenizer
from ascendtune.machine.torch_backend.device import Device
from ascendtune.recipe.recipe import Recipe
from ascendtune.train import model_checks
from ascendtune.train.adapters import Adapter
from ascendtune.train.attention.choice import AttentionChoice, choose_attention
from ascendtune.train.attention.model_type import require_rows_alone
from ascendtune.train.batch import Batches
from ascendtune.train.checkpoint.checkpointer import Checkpointer, require_space_for_run
from ascendtune.train.counters import Counters
from ascendtune.train.dump.start_weights import hashes_of_weights
from ascendtune.train.dump.step_dumps import StepDumps
from ascendtune.train.flops import histogram
from ascendtune.train.kernel.install import KernelChoice, install_kernels
from ascendtune.train.loop import Loop
from ascendtune.train.model import (
    activation_store,
    apply_tuner,
    load_model,
    read_config,
    recompute_activations,
    set_single_score,
    trainable_share,
)
from ascendtune.train.model_flops import model_flops
from ascendtune.train.objective.base import make_objective
from ascendtune.train.objective.head import HeadForm
from ascendtune.train.objective.preference import PreferenceObjective
from ascendtune.train.optimizer import Schedule, make_optimizer, tables_of
from ascendtune.train.precision import Precision, choose_precision, export_dtype
from ascendtune.train.reference import attention_of_reference, reference_key, reference_log_probs, reference_model
from ascendtune.train.report.callback import Callback, MetricsWriter
from ascendtune.train.report.progress import ProgressDisplay
from ascendtune.train.strategy.base import RootModule, Strategy
from ascendtune.train.supervision import Phases, StopRequest


def set_up(
    run: RunDir,
    record: dict[str, Any],
    recipe: Recipe,
    strategy: Strategy,
    prepared: Prepared,
    phases: Phases,
    held: ExitStack,
) -> Loop:
    """Everything before the first step.

    Args:
        record: run.json.
        prepared: the tokens.
        held: closed when the attempt ends; signals are noted until then.

    Raises:
        RecipeError: the model or a name in the recipe does not fit.
        CheckFailed: packed documents would see each other.
        MachineError: the disk has no space for the run, or a checkpoint is damaged.
    """
    device, directory = strategy.device, Path(record["model_directory"])
    precision = choose_precision(recipe, device)
    config = read_config(recipe.model, directory)
    if recipe.method.stage == "reward":
        set_single_score(config, prepared.pad_id)
    attention = _choose_attention(recipe, config, strategy)
    tokenizer = Tokenizer.load(directory, recipe.model.new_tokens)
    # The seed decides random weights and adapters, alike on every rank.
    model = load_model(
        recipe.model, recipe.method.stage, directory, config,
        precision=precision, implementation=attention.implementation(),
        vocabulary=tokenizer.vocab_size, seed=recipe.seed,
    )  # fmt: skip
    if not strategy.divides_weights:
        model.to(device.torch_device)
    torch.manual_seed(recipe.seed)
    tuned = apply_tuner(model, recipe.method, [Adapter.of(each).path for each in record.get("adapters", [])])
    # After the tuner: it copies modules, and the copies must be of the model's own modules.
    kernels = install_kernels(model, recipe.kernel, device, precision)
    model_checks.warn_of_untrained_parts(model, recipe, config, attention, is_main=strategy.is_main)
    recompute_activations(model, recipe.memory)
    root = RootModule(model)
    strategy.shard(root, precision)
    start_weights = hashes_of_weights(
        model, lambda sums: [json.loads(each) for each in strategy.gather(json.dumps(sums))]
    )
    head_form = root.with_full_params(lambda: _check_head(model, recipe, strategy, precision))
    packed = root.with_full_params(lambda: _packs(model, recipe, strategy, precision, attention))
    objective = make_objective(model, recipe, head_form=head_form, mean_over_ranks=strategy.mean)
    # Dropout differs between ranks from here on.
    torch.manual_seed(recipe.seed + strategy.rank)

    reference_attention, masked = None, attention.is_own
    if reference_directory := record.get("reference_directory"):
        reference_attention = attention_of_reference(recipe, reference_directory, device)
        packed = packed and _may_pack(recipe, reference_attention, is_main=strategy.is_main)
        masked = masked or reference_attention.is_own
    batches, held_out = _make_batches(recipe, strategy, prepared, record, packed=packed, masked=masked)
    model_checks.warn_of_long_rows(config, int(batches.dataset.lengths.max()))
    total_steps = recipe.optim.max_steps or math.ceil((recipe.optim.epochs or 1) * batches.plan.steps_per_epoch)
    trainable, parameters = trainable_share(model)
    padding_ratio = batches.plan.padding_ratio(recipe.batch.micro_batch)
    flops = model_flops(model, recipe, head_is_fused=head_form is not None).per_token(
        histogram(batches.dataset.lengths.tolist()), padding_ratio=padding_ratio
    )
    resolved = {
        **_resolved_by_device(strategy, precision, attention, kernels),
        "loss": _name_of_loss(recipe, head_form),
        "packing": packed,
        "weights_hash": start_weights["hash"],
        "learning_rate": recipe.learning_rate,
        "total_steps": total_steps,
        "steps_per_epoch": batches.plan.steps_per_epoch,
        "global_batch": batches.plan.global_batch,
        "per_device": recipe.batch.micro_batch,
        "parameters": parameters,
        "trainable": trainable,
        "padding_ratio": padding_ratio,
    }
    if strategy.is_main:
        _say(resolved, kernels, recipe, strategy)
    checkpoint_every = recipe.checkpoint.every_steps or max(20, total_steps // 10)
    dtype = export_dtype(recipe, config)
    require_space_for_run(run, recipe, model, dtype, checkpoints=(total_steps - 1) // checkpoint_every)

    module, optimizer = strategy.prepare(
        root,
        precision,
        lambda: make_optimizer(
            recipe.optim, model.named_parameters(), recipe.learning_rate,
            fused=device.fuses_optimizer(precision.compute), plus_ratio=recipe.method.lora.plus_ratio,
            tables=tables_of(model),
        ),
    )  # fmt: skip
    in_loop = strategy.loop_precision(precision)
    stop = StopRequest()
    if recipe.method.needs_reference:
        assert isinstance(objective, PreferenceObjective)
        reference = reference_model(
            recipe, reference_directory, reference_attention, objective, root, strategy, precision, tokenizer.vocab_size
        )
        key = reference_key(recipe, record, precision, attention.name)

        def with_reference(part: str, without: Batches, steps: int) -> Batches:
            found = reference_log_probs(
                run.reference(part, key), without, map(without.plan.batch, range(steps)),
                precision=in_loop, reference=reference, pulse=phases.pulse, stop=stop,
            )  # fmt: skip
            return replace(without, reference=found)

        with stop.listening("the reference answers so far"):
            batches = with_reference("train", batches, min(total_steps, batches.plan.steps_per_epoch))
            held_out = held_out and with_reference("eval", held_out, held_out.plan.steps_per_epoch)

    checkpointer = Checkpointer(run, strategy, strategy.content(model, optimizer), keep=recipe.checkpoint.keep)
    held.enter_context(stop.listening("a checkpoint"))
    counters = _resume(run, record, recipe, strategy, checkpointer)
    if strategy.is_main:
        write_json(run.start_weights, start_weights)
        global_batch = batches.plan.global_batch
        run.update(resume_from=None, global_batch=global_batch, resolved=resolved, versions=_versions(device))
    scaler = in_loop.scaler(device)
    if scaler is not None and counters.scaler:
        scaler.load_state_dict(counters.scaler)
    return Loop(
        run_directory=run, recipe=recipe, strategy=strategy, precision=in_loop,
        root=root, module=module, objective=objective,
        optimizer=optimizer, scaler=scaler, schedule=Schedule(recipe.optim, recipe.learning_rate, total_steps),
        batches=batches, held_out=held_out, activations=activation_store(recipe.memory, device),
        flops=flops,
        checkpointer=checkpointer, checkpoint_every=checkpoint_every, counters=counters,
        phases=phases, dumps=_step_dumps(run, recipe, strategy, model, head_form),
        stop=stop, callbacks=_callbacks(run, recipe) if strategy.is_main else [],
        model=tuned, tokenizer=tokenizer, export_dtype=dtype,
    )  # fmt: skip


def _choose_attention(recipe: Recipe, config: Any, strategy: Strategy) -> AttentionChoice:
    attention = choose_attention(recipe.model, recipe.method.stage, config, strategy.device.attention)
    if not attention.verdict.padded:
        require_rows_alone(recipe, str(attention.verdict.why_padded))
    if attention.is_own and strategy.is_main:
        warn(f"attention is {attention.name}, the model's own, on padded rows; {attention.reason}")
    elif attention.verdict.reason is not None and strategy.is_main:
        say(f"attention is {attention.name}; {attention.reason}")
    return attention


def _make_batches(
    recipe: Recipe, strategy: Strategy, prepared: Prepared, record: dict[str, Any], *, packed: bool, masked: bool
) -> tuple[Batches, Batches | None]:
    """Those of the training data, and of the evaluation data where there is any."""

    def plan(dataset: TokenDataset, global_batch: int, seed: int | None) -> BatchPlan:
        return BatchPlan(
            dataset.lengths, dataset.label_counts,
            capacity=recipe.data.max_length if packed else None,
            global_batch=global_batch, seed=seed, group_size=dataset.group_size,
        )  # fmt: skip

    dataset = TokenDataset.open(prepared.train)
    at_once = recipe.batch.micro_batch * strategy.world_size
    batches = Batches(
        dataset, plan(dataset, record.get("global_batch") or at_once * recipe.batch.accumulate, recipe.seed),
        strategy, recipe.batch.micro_batch, packed=packed, pad_id=prepared.pad_id, masked=masked,
        mismatched=recipe.method.stage == "preference" and recipe.method.preference.loss == "kto",
    )  # fmt: skip
    if not prepared.eval:
        return batches, None
    held_out = TokenDataset.open(prepared.eval)
    return batches, replace(batches, dataset=held_out, plan=plan(held_out, at_once, None))


def _resolved_by_device(
    strategy: Strategy, precision: Precision, attention: AttentionChoice, kernels: dict[str, KernelChoice]
) -> dict[str, Any]:
    """What `auto` came to on this device, for run.json."""
    device = strategy.device
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
    }


def _step_dumps(run: RunDir, recipe: Recipe, strategy: Strategy, model: Any, head_form: HeadForm | None) -> StepDumps:
    head = model.get_output_embeddings() if head_form is not None else None
    return StepDumps(run.dumps, recipe.align, strategy, model, left_out=[] if head is None else [head])


def _resume(
    run: RunDir, record: dict[str, Any], recipe: Recipe, strategy: Strategy, checkpointer: Checkpointer
) -> Counters:
    """Load the checkpoint that this start goes on from, if any, and remove later records and checkpoints."""
    steps = run.checkpoint_steps()
    resume_from = record.get("resume_from")
    source = Path(resume_from) if resume_from else run.checkpoint(steps[-1]) if steps else None
    counters = Counters.of(checkpointer.load(source)) if source is not None else Counters()
    best = counters.best_step if recipe.checkpoint.best else None
    # A start from an older checkpoint, or of another run, may be without the best one.
    if best is not None and (best > counters.step or not run.checkpoint(best).exists()):
        if strategy.is_main:
            warn(f"the checkpoint of step {best}, the best so far, is gone: the best is looked for from here on")
        counters.best_step = counters.best_loss = None
    strategy.barrier()
    if strategy.is_main:
        run.remove_unfinished()
        run.cut_back(counters.step, counters.evaluated_step)
        run.remove_checkpoints_after(counters.step)
    strategy.barrier()
    return counters


def _versions(device: Device) -> dict[str, str | None]:
    libraries = ("torch", "transformers", "peft", "tokenizers")
    return {
        "ascendtune": __version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in libraries},
        **device.versions(),
    }


def _callbacks(run: RunDir, recipe: Recipe) -> list[Callback]:
    callbacks: list[Callback] = [MetricsWriter(run), ProgressDisplay(run)]
    if recipe.track.tensorboard:
        from ascendtune.train.report.tensorboard import TensorBoardWriter

        callbacks.append(TensorBoardWriter(run))
    return callbacks


def _check_head(model: Any, recipe: Recipe, strategy: Strategy, precision: Precision) -> HeadForm | None:
    device, vocabulary = strategy.device.torch_device, model.get_input_embeddings().weight.shape[0]
    with precision.autocast():
        if recipe.method.stage == "reward":
            model_checks.require_one_score(model, device, vocabulary)
            return None
        return model_checks.fusible_head(model, device, vocabulary)


def _packs(model: Any, recipe: Recipe, strategy: Strategy, precision: Precision, attention: AttentionChoice) -> bool:
    """Whether documents share sequences; shown on this device, with this model, where they do."""
    if not _may_pack(recipe, attention, is_main=strategy.is_main):
        return False
    device, vocabulary = strategy.device.torch_device, model.get_input_embeddings().weight.shape[0]
    try:
        with precision.autocast():
            model_checks.prove_isolation(model, device, vocabulary, attention=attention.name, compute=precision.compute)
    except RecipeError as error:
        if recipe.data.packing is True:
            raise
        if strategy.is_main:
            warn(f"data.packing: auto pads: {error.what}")
        return False
    return True


def _may_pack(recipe: Recipe, attention: AttentionChoice, *, is_main: bool) -> bool:
    """Whether documents share sequences: where the recipe lets them, and the model keeps them apart.

    Raises:
        RecipeError: the recipe wants it, and the model does not keep them apart.
    """
    if recipe.data.packing is False:
        return False
    if attention.verdict.packed:
        return True
    why = f"this model does not support packed documents: {attention.verdict.why_padded}"
    if recipe.data.packing is True:
        raise RecipeError(why, code="packing-unsupported", remedy="set data.packing: auto or false")
    # A model with its own attention has had a warning already.
    if is_main and not attention.is_own:
        warn(f"data.packing: auto pads: {why}")
    return False


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
        case "sft":
            return f"{recipe.method.sft.loss}, {how}"
        case _:
            return how


def _say(resolved: dict[str, Any], kernels: dict[str, KernelChoice], recipe: Recipe, strategy: Strategy) -> None:
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
            f"the global batch stays {resolved['global_batch']} sequences, as the run began, "
            f"though this start would make it {of_this_start}"
        )
