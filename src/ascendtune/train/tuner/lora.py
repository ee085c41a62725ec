"""Low-rank adapters by PEFT: the base is frozen and stays as it is on disk, the trained weights are fp32.

W·x + scale·B·A·x (Hu et al. 2021, arXiv 2106.09685, eq. 3), with scale alpha / rank, or alpha / √rank with rsLoRA
(arXiv 2312.03732); DoRA: arXiv 2402.09353, eq. 5.

One adapter is trained. Others may be active beside it, frozen: earlier ones of `start_from`, or the one that subtracts
the start of PiSSA. All are added to the base's output and never merged into its weights, so training uses the weights
of the base's files, and the sum of the adapters is exported (`write_sum`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ascendtune.core.errors import RecipeError
from ascendtune.core.log import say
from ascendtune.recipe.method import ALL_LINEAR, LoraSection, MethodSection, OftSection
from ascendtune.train.deferred_weights import cast
from ascendtune.train.tuner.frozen_adapters import (
    TRAINED,
    Compute,
    compute_here,
    frozen_adapters,
    init_pissa,
    keep_frozen_adapters,
)
from ascendtune.train.tuner.peft_names import literal_names, misread_names, read_config, unreadable_modules
from ascendtune.train.tuner.start_from import (
    continue_adapter,
    errors_as_recipe_errors,
    load_adapter_weights,
    task_type,
)
from ascendtune.train.tuner.targets import Targets, choose_targets, require_modules, require_targets_beside, short_names


def add_adapter(
    model: Any, section: MethodSection, adapters: Sequence[Path] = (), compute: Compute = compute_here
) -> Any:
    """A PeftModel around `model`; the adapters' layers are inserted into `model` itself.

    Args:
        adapters: directories to start from: the last one is trained, the others are frozen.
        compute: computes an adapter's initial weights.

    Raises:
        RecipeError: a target is not a module of this model, or an adapter does not fit it.
    """
    from ascendtune.train.tuner.lora_linear import fuse_adapters

    # PEFT calls a method of the model by a name that transformers has just renamed; a user cannot change that.
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        # PEFT warns that table and head, if trained, are no longer tied; the file holds both, and `merge` writes both.
        warnings.filterwarnings("ignore", message="Model has `tie_word_embeddings=True`")
        # PEFT searches the patterns of parameters among modules.
        warnings.filterwarnings("ignore", message="The following (rank|alpha)_pattern keys")
        tuned = _loaded_adapters(model, section, adapters) if adapters else _new_adapter(model, section, compute)
    _freeze_other_adapters(tuned)
    fuse_adapters(tuned)
    return tuned


def modules_to_save(model: Any, section: LoraSection | OftSection) -> list[str]:
    """Names, as in `modules_to_save`, of the modules that are trained as a whole.

    Raises:
        RecipeError: the model has no module with one of the names.
    """
    if section.modules_to_save != "all-embeddings":
        tuner = "lora" if isinstance(section, LoraSection) else "oft"
        require_modules(model, f"method.{tuner}.modules_to_save", section.modules_to_save)
        # A copy: PEFT adds the score head of a reward model to the list that it gets.
        return list(section.modules_to_save)
    tables = [model.get_input_embeddings(), model.get_output_embeddings()]
    return [name.rpartition(".")[2] for name, module in model.named_modules() if any(module is each for each in tables)]


def _new_adapter(model: Any, section: MethodSection, compute: Compute) -> Any:
    from peft import LoraConfig, get_peft_model

    lora = section.lora
    whole, targets = modules_to_save(model, lora), choose_targets(model, lora)
    require_targets_beside(targets, whole)
    if targets.parameters:
        _require_plain(model, targets.parameters, lora)
    modules = short_names(targets.modules, [name for name, _ in model.named_modules()])
    parameters = short_names(targets.parameters, [name for name, _ in model.named_parameters()], parts=2)
    config = LoraConfig(
        # PEFT trains and saves the score head of a reward model as a whole: it starts with random weights.
        task_type=task_type(section),
        target_modules=modules,
        target_parameters=parameters or None,
        r=lora.rank,
        lora_alpha=lora.alpha_or_default,
        lora_dropout=lora.dropout,
        use_rslora=lora.rslora,
        use_dora=lora.dora,
        modules_to_save=whole or None,
    )
    if lora.dora:
        why = "PEFT loads adapters of these modules as adapters of parameters, which do not support DoRA"
        _leave_out(sorted(misread_names(config, model)), config, lora, targets, why, key="dora")
    with literal_names():
        tuned = get_peft_model(model, config)
        if unreadable := unreadable_modules(tuned):
            model = tuned.unload()
            every = short_names(unreadable, [name for name, _ in model.named_modules()])
            why = "PEFT would load the adapters of these modules under another name"
            _leave_out(every, config, lora, targets, why, key="target")
            tuned = get_peft_model(model, config)
        if lora.init == "pissa":
            init_pissa(tuned, compute)
    for note in targets.notes:
        say(note)
    return tuned


def _require_plain(model: Any, parameters: list[str], lora: LoraSection) -> None:
    """Raise if a form of LoRA needs the input or the matrix of a module: a parameter may have several, or none."""
    experts = any(model.get_parameter(name).ndim == 3 for name in parameters)
    for key, requested, why in (
        ("dropout", lora.dropout, "PEFT adds these adapters to the weights, so dropout has no input to act on"),
        ("dora", lora.dora, "PEFT supports DoRA for modules only, not for parameters"),
        ("init: pissa", lora.init == "pissa" and experts, "PiSSA supports linear layers only"),
    ):
        if requested:
            raise RecipeError(
                f"method.lora.{key} with {'experts' if experts else 'routers'} in method.lora.target: {why}",
                code="lora-form-not-adaptable",
                remedy=f"remove method.lora.{key}, or remove {parameters[0]} and similar ones from method.lora.target",
            )


def _leave_out(names: list[str], config: Any, lora: LoraSection, targets: Targets, why: str, *, key: str) -> None:
    """Remove `names` from the modules of `config`, with a note in `targets`.

    Args:
        key: key of method.lora because of which the modules are removed.

    Raises:
        RecipeError: the recipe names the modules instead of `all-linear`.
    """
    if not names:
        return
    listed = ", ".join(names)
    if ALL_LINEAR not in lora.target:
        requested = f"method.lora.{key} with {listed} in method.lora.target"
        other = "" if key == "target" else f"remove method.lora.{key}, or "
        raise RecipeError(
            f"{requested if key != 'target' else f'method.lora.target: {listed}'}: {why}",
            code="lora-target-not-loadable",
            remedy=f"{other}remove these modules from method.lora.target",
        )
    config.target_modules -= set(names)
    targets.notes.append(f"method.lora.target: {ALL_LINEAR} leaves out {listed}: {why}")


def _loaded_adapters(model: Any, section: MethodSection, adapters: Sequence[Path]) -> Any:
    from peft import load_peft_weights

    *earlier, last = adapters
    with errors_as_recipe_errors(last, section):
        config = read_config(last, model)
    if config.target_parameters and section.lora.dropout:
        raise RecipeError(
            f"method.lora.dropout with an adapter of {sorted(config.target_parameters)[0]} in method.lora.start_from: "
            "PEFT adds such adapters to the weights, not to the outputs, and dropout acts on the input of an adapter",
            code="lora-form-not-adaptable",
            remedy="remove method.lora.dropout",
            where=last,
        )
    others = []
    for path in earlier:
        # Read all configs before the first adapter changes the model.
        with errors_as_recipe_errors(path, section):
            others.append(read_config(path, model))
    with literal_names():
        tuned = continue_adapter(model, section, last, config, lora_dropout=section.lora.dropout)
        for number, (path, other) in enumerate(zip(earlier, others, strict=True), start=1):
            with errors_as_recipe_errors(path, section):
                # PEFT would apply the dropout of its training, and the export is the sum without.
                tuned.add_adapter(f"earlier_{number}", replace(other, inference_mode=True, lora_dropout=0.0))
                load_adapter_weights(tuned, f"earlier_{number}", load_peft_weights(str(path), device="cpu"), path)
    tuned.peft_config[TRAINED].task_type = task_type(section)
    return tuned


def _freeze_other_adapters(tuned: Any) -> None:
    frozen = frozen_adapters(tuned)
    if frozen:
        keep_frozen_adapters(tuned)
        tuned.base_model.set_adapter([TRAINED, *frozen])
    for name, parameter in tuned.named_parameters():
        if any(f".{each}." in f"{name}." for each in frozen):
            parameter.requires_grad_(False)
    train_in_fp32(tuned)


def train_in_fp32(tuned: Any) -> None:
    """Convert the trained parameters of `tuned` to fp32: in the base's dtype, which PEFT copies, small steps vanish."""
    for parameter in tuned.parameters():
        if parameter.requires_grad:
            cast(parameter, torch.float32)
