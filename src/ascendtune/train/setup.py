"""From a run directory to the loop: model, tuner, objective, data, optimizer, and the checkpoint to go on from."""

from __future__ import annotations

import importlib.metadata
import math
import platform
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu

from ascendtune import __version__
from ascendtune.core.errors import RecipeError
from ascendtune.core.log import say, warn
from ascendtune.core.rundir import RunDir
from ascendtune.core.units import count_of, format_count
from ascendtune.data.plan import BatchPlan
from ascendtune.data.prepare import Prepared
from ascendtune.data.store import TokenDataset
from ascendtune.data.tokenizer import Tokenizer
from ascendtune.machine.torch_backend.device import Device
from ascendtune.recipe.recipe import Recipe
from ascendtune.recipe.sections import MemorySection
from ascendtune.train import model_checks as guard
from ascendtune.train.adapters import Adapter
from ascendtune.train.attention.choice import AttentionChoice, choose_attention
from ascendtune.train.attention.proof import starred
from ascendtune.train.batch import Batches
from ascendtune.train.checkpoint.checkpointer import Checkpointer
from ascendtune.train.counters import Counters
from ascendtune.train.export import require_space_for_run
from ascendtune.train.kernel.install import fused, install_kernels
from ascendtune.train.loop import Loop
from ascendtune.train.model import flops_per_token, load_model, read_config, recompute_activations, score_once
from ascendtune.train.objective.base import make_objective
from ascendtune.train.objective.head import HeadForm
from ascendtune.train.objective.preference import PreferenceObjective
from ascendtune.train.optimizer import Schedule, make_optimizer
from ascendtune.train.phases import Phases
from ascendtune.train.precision import DTYPES, Precision, choose_precision
from ascendtune.train.reference import attention_of_reference, reference_key, reference_log_probs, reference_model
from ascendtune.train.report.callback import Callback, MetricsWriter
from ascendtune.train.report.progress import ProgressDisplay
from ascendtune.train.stop_request import StopRequest
from ascendtune.train.strategy.base import RootModule, Strategy
from ascendtune.train.tuner import apply_tuner, trainable_share


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
    # The model, ready for an objective.
    device, directory = strategy.device, Path(record["model_directory"])
    precision = choose_precision(recipe, device)
    config = read_config(recipe.model, directory)
    if recipe.method.stage == "reward":
        score_once(config, prepared.pad_id)
    attention = choose_attention(recipe.model, recipe.method.stage, config, device.attention)
    _require_rows_alone(recipe, attention)
    if attention.is_own and strategy.is_main:
        warn(f"attention is {attention.name}, the model's own, on padded rows; {attention.reason}")
    elif attention.verdict.reason is not None and strategy.is_main:
        say(f"attention is {attention.name}; {attention.reason}")
    tokenizer = Tokenizer.load(directory, recipe.model.new_tokens)
    # The seed decides random weights and adapters, alike on every rank.
    torch.manual_seed(recipe.seed)
    model = load_model(
        recipe.model, recipe.method.stage, directory, config,
        precision=precision, implementation=attention.implementation(),
        vocabulary=tokenizer.vocab_size, seed=recipe.seed,
    )  # fmt: skip
    if not strategy.divides_weights:
        model.to(device.torch_device)
    export_dtype = export_dtype_of(recipe, config)
    torch.manual_seed(recipe.seed)
    tuned = apply_tuner(model, recipe.method, [Adapter.of(each).path for each in record.get("adapters", [])])
    # After the tuner: it copies modules, and the copies must be of the model's own modules.
    kernels = install_kernels(model, recipe.kernel, device, precision)
    _warn_of_frozen_parts(model, recipe, config, attention, is_main=strategy.is_main)
    recompute_activations(model, recipe.memory)
    root = RootModule(model)
    strategy.shard(root, precision)
    head_form = root.with_full_params(lambda: _look_at_head(model, recipe, strategy, precision))
    packed = root.with_full_params(lambda: _packs(model, recipe, strategy, precision, attention))
    objective = make_objective(model, recipe, head_form=head_form, mean_over_ranks=strategy.mean)
    # Dropout differs between ranks from here on.
    torch.manual_seed(recipe.seed + strategy.rank)

    # The data, in the batches of the run.
    reference_attention, masked = None, attention.is_own
    if reference_directory := record.get("reference_directory"):
        reference_attention = attention_of_reference(recipe, reference_directory, device)
        packed = packed and _may_pack(recipe, reference_attention, is_main=strategy.is_main)
        masked = masked or reference_attention.is_own
    dataset = TokenDataset.open(prepared.train)
    _warn_of_long_rows(config, int(dataset.lengths.max()))
    global_batch = record.get("global_batch") or recipe.batch.per_device * recipe.batch.accumulate * strategy.world_size
    batches = Batches(
        dataset, _plan(dataset, recipe, packed, global_batch, seed=recipe.seed), strategy, recipe.batch.per_device,
        packed=packed, pad_id=prepared.pad_id, masked=masked,
        mismatched=recipe.method.stage == "preference" and recipe.method.preference.loss == "kto",
    )  # fmt: skip
    held_out = None
    if prepared.eval:
        rows = TokenDataset.open(prepared.eval)
        at_once = recipe.batch.per_device * strategy.world_size
        held_out = replace(batches, dataset=rows, plan=_plan(rows, recipe, packed, at_once, seed=None))
    steps_per_epoch = batches.plan.steps_per_epoch
    total_steps = recipe.optim.max_steps or math.ceil((recipe.optim.epochs or 1) * steps_per_epoch)
    trainable, parameters = trainable_share(model)
    resolved = {
        "device": {
            "kind": device.kind,
            "name": device.name,
            "world_size": strategy.world_size,
            "settings": device.settings(),
        },
        "precision": {"compute": precision.compute, "weights": precision.weights, "reason": precision.reason},
        "attention": {"name": attention.name, "reason": attention.reason},
        "kernel": kernels,
        "strategy": {"name": strategy.name, "reason": strategy.reason},
        "loss": _name_of_loss(recipe, head_form),
        "packing": packed,
        "learning_rate": recipe.learning_rate,
        "total_steps": total_steps,
        "steps_per_epoch": steps_per_epoch,
        "global_batch": global_batch,
        "parameters": parameters,
        "trainable": trainable,
        "padding_ratio": batches.plan.padding_ratio(recipe.batch.per_device),
    }
    if strategy.is_main:
        _say(resolved, recipe, strategy)
    flops = flops_per_token(model, mean_length=float(dataset.lengths.mean()), trains_all=trainable == parameters)
    checkpoint_every = recipe.checkpoint.every_steps or max(20, total_steps // 10)
    require_space_for_run(run, recipe, model, export_dtype, checkpoints=(total_steps - 1) // checkpoint_every)

    # The optimizer, and the answers of a reference.
    module, optimizer = strategy.prepare(
        root,
        precision,
        lambda: make_optimizer(
            recipe.optim, model.named_parameters(), recipe.learning_rate,
            fused=device.fuses_optimizer(precision.compute), plus_ratio=recipe.method.lora.plus_ratio,
        ),
    )  # fmt: skip
    in_loop = strategy.precision_of_loop(precision)
    checkpointer = Checkpointer(run, strategy, strategy.content(model, optimizer), keep=recipe.checkpoint.keep)
    stop = StopRequest()
    if recipe.method.needs_reference:
        assert isinstance(objective, PreferenceObjective)
        reference = reference_model(
            recipe, reference_directory, reference_attention, objective, root, strategy, precision, tokenizer.vocab_size
        )
        key = reference_key(recipe, record, precision, attention.name)

        def with_reference(part: str, without: Batches, steps: Iterable[int]) -> Batches:
            found = reference_log_probs(
                run.reference(part, key), without, map(without.plan.batch, steps),
                precision=in_loop, reference=reference, pulse=phases.pulse, stop=stop,
            )  # fmt: skip
            return replace(without, reference=found)

        with stop.listening("the reference answers so far"):
            batches = with_reference("train", batches, range(min(total_steps, steps_per_epoch)))
            held_out = held_out and with_reference("eval", held_out, range(held_out.plan.steps_per_epoch))

    # The checkpoint that this start goes on from.
    held.enter_context(stop.listening("a checkpoint"))
    counters = _resume(run, record, recipe, strategy, checkpointer)
    if strategy.is_main:
        run.update(resume_from=None, global_batch=global_batch, resolved=resolved, versions=_versions(strategy.device))
    scaler = in_loop.scaler(device)
    if scaler is not None and counters.scaler:
        scaler.load_state_dict(counters.scaler)
    return Loop(
        run_directory=run, recipe=recipe, strategy=strategy, precision=in_loop,
        root=root, module=module, objective=objective,
        optimizer=optimizer, scaler=scaler, schedule=Schedule(recipe.optim, recipe.learning_rate, total_steps),
        batches=batches, held_out=held_out,
        activations=_activation_store(recipe.memory, device), flops_per_token=flops,
        checkpointer=checkpointer, checkpoint_every=checkpoint_every, counters=counters,
        phases=phases, stop=stop, callbacks=_callbacks(run, recipe) if strategy.is_main else [],
        model=tuned, tokenizer=tokenizer, export_dtype=export_dtype,
    )  # fmt: skip


def _plan(dataset: TokenDataset, recipe: Recipe, packed: bool, global_batch: int, *, seed: int | None) -> BatchPlan:
    return BatchPlan(
        dataset.lengths, dataset.label_counts,
        capacity=recipe.data.max_length if packed else None,
        global_batch=global_batch, seed=seed, group_size=dataset.group_size,
    )  # fmt: skip


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


def _activation_store(section: MemorySection, device: Device) -> Callable[[], AbstractContextManager[Any]]:
    """Makes the context of a forward pass: tensors for backward go to host memory, where the recipe asks for it."""
    if not section.offload_activations:
        return nullcontext
    if device.shares_host_memory:
        warn(f"memory.offload_activations has no effect on {device.kind}: activations are in host memory already")
        return nullcontext
    return lambda: save_on_cpu(pin_memory=True, device_type=device.kind)


def _look_at_head(model: Any, recipe: Recipe, strategy: Strategy, precision: Precision) -> HeadForm | None:
    device, vocabulary = strategy.device.torch_device, model.get_input_embeddings().weight.shape[0]
    with precision.autocast():
        if recipe.method.stage == "reward":
            guard.require_one_score(model, device, vocabulary)
            return None
        return guard.fusible_head(model, device, vocabulary)


def _packs(model: Any, recipe: Recipe, strategy: Strategy, precision: Precision, attention: AttentionChoice) -> bool:
    """Whether documents share sequences; shown on this device, with this model, where they do."""
    if not _may_pack(recipe, attention, is_main=strategy.is_main):
        return False
    device, vocabulary = strategy.device.torch_device, model.get_input_embeddings().weight.shape[0]
    try:
        with precision.autocast():
            guard.prove_isolation(model, device, vocabulary, attention=attention.name, compute=precision.compute)
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
    why = f"this model does not take packed documents: {attention.verdict.why_padded}"
    if recipe.data.packing is True:
        raise RecipeError(why, code="packing-unsupported", remedy="set data.packing: auto or false")
    # A model with its own attention has had a warning already.
    if is_main and not attention.is_own:
        warn(f"data.packing: auto pads: {why}")
    return False


def _require_rows_alone(recipe: Recipe, attention: AttentionChoice) -> None:
    """Raise where rows would be padded, and the model computes something else then."""
    if attention.verdict.padded:
        return
    why = f"padding changes what this model computes: {attention.verdict.why_padded}"
    method = recipe.method
    if method.stage == "reward" or (method.stage == "preference" and method.preference.loss != "kto"):
        raise RecipeError(
            f"stage {method.stage} pads a pair's two answers to one length, and {why}",
            code="pairs-need-padding",
            remedy="choose another model, or train on single answers: stage sft, or preference with loss kto",
        )
    if recipe.batch.per_device > 1:
        raise RecipeError(
            why, code="rows-need-padding", remedy="set batch.per_device: 1; batch.accumulate keeps the size of a step"
        )


def _warn_of_frozen_parts(
    model: Any, recipe: Recipe, config: Any, attention: AttentionChoice, *, is_main: bool
) -> None:
    """Name what a user may expect to be trained and is not."""
    if recipe.model.new_tokens and not model.get_input_embeddings().weight.requires_grad:
        warn(
            "the rows of model.new_tokens are frozen at the mean of the others, so the new tokens look alike: "
            "set method.lora.modules_to_save: all-embeddings to train them"
        )
    if not is_main:
        return
    # The trial of a reward model ends before its score.
    _warn_of_silent_weights(model, [each for each in attention.verdict.without_gradient if each != "score.weight"])
    if getattr(config.get_text_config(), "output_router_logits", False):
        warn(
            "config.json asks for the routers' auxiliary loss (output_router_logits): it is not added here, the "
            "loss is that of the tokens alone"
        )


def _warn_of_silent_weights(model: Any, silent: list[str]) -> None:
    """Name trained weights that get no gradient; an adapter gets none where its layer's weight gets none."""
    patterns = {each.removesuffix(".weight") for each in silent}
    names = [
        name
        for name, weight in model.named_parameters()
        if weight.requires_grad
        and starred(name.partition(".lora_")[0].replace(".base_layer", "").removesuffix(".weight")) in patterns
    ]
    if names:
        warn(f"no token gives {count_of(len(names), 'weight')} of this model a gradient, first {names[0]}")


def _warn_of_long_rows(config: Any, longest: int) -> None:
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and longest > positions:
        warn(
            f"the longest row has {longest:,} tokens, the model was made for {positions:,} positions: "
            "set data.max_length lower, or rope scaling in the model's config.json"
        )


def export_dtype_of(recipe: Recipe, config: Any) -> torch.dtype:
    """Type of the exported weights: of a base model as it came in, of adapters as they were trained."""
    if recipe.method.tuner == "lora":
        # As PEFT saves them: they are small, and their effect is smaller than what bf16 rounds off.
        return torch.float32
    if recipe.model.dtype != "auto":
        return DTYPES[recipe.model.dtype]
    source = getattr(config, "dtype", None)
    if recipe.model.init == "random" or source not in DTYPES.values():
        return torch.float32
    assert isinstance(source, torch.dtype)
    return source


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


def _say(resolved: dict[str, Any], recipe: Recipe, strategy: Strategy) -> None:
    device, trainable, parameters = resolved["device"], resolved["trainable"], resolved["parameters"]
    say(
        f"{device['name']} ({device['kind']} × {strategy.world_size}), {resolved['precision']['compute']}, "
        f"attention {resolved['attention']['name']}, kernels {', '.join(fused(resolved['kernel'])) or 'of the model'}; "
        f"{format_count(trainable)} of {format_count(parameters)} parameters train ({trainable / parameters:.2%})"
    )
    if strategy.world_size > 1:
        say(f"{strategy.name}: {strategy.reason}")
    of_this_start = recipe.batch.per_device * recipe.batch.accumulate * strategy.world_size
    if resolved["global_batch"] != of_this_start:
        say(
            f"the global batch stays {resolved['global_batch']} sequences, as the run began, "
            f"though this start would make it {of_this_start}"
        )
