"""Orthogonal fine-tuning by PEFT: W·R·x, where R rotates blocks of x and W is frozen and stays as it is on disk.

R is block-diagonal (Qiu et al. 2023, arXiv 2306.07280). Each block is the Cayley transform of a skew-symmetric matrix
Q, whose numbers above the diagonal are trained, in fp32: (I + Q)(I - Q)⁻¹ with the first terms of the Neumann series
as inverse (Qiu et al. 2025, arXiv 2506.19847), or (I - Q)(I + Q)⁻¹, solved. So the same Q rotates in opposite
directions in PEFT's two forms.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ascendtune.core.errors import RecipeError
from ascendtune.core.log import say
from ascendtune.recipe.method import ALL_LINEAR, MethodSection, OftSection
from ascendtune.train.tuner.frozen_adapters import TRAINED
from ascendtune.train.tuner.lora import modules_to_save, train_in_fp32
from ascendtune.train.tuner.start_from import continue_adapter, errors_as_recipe_errors, task_type
from ascendtune.train.tuner.targets import Targets, choose_targets, require_targets_beside, short_names


def add_rotations(model: Any, section: MethodSection, adapters: Sequence[Path] = ()) -> Any:
    """A PeftModel around `model`; the rotations are inserted into `model` itself.

    Args:
        adapters: the directory of the adapter to train further; empty for a new one.

    Raises:
        RecipeError: a target is not a linear module of this model, or cannot be divided into blocks; or the adapter
            does not fit the model.
    """
    from ascendtune.train.tuner.block_dropout import drop_blocks

    with warnings.catch_warnings():
        # PEFT calls a method of the model by a name that transformers has just renamed; a user cannot change that.
        warnings.filterwarnings("ignore", category=FutureWarning)
        # PEFT warns that table and head, if trained, are no longer tied; the file holds both, and `merge` writes both.
        warnings.filterwarnings("ignore", message="Model has `tie_word_embeddings=True`")
        # `_new_rotations` logs this once instead of once for each module.
        warnings.filterwarnings("ignore", message="Invalid `(oft_block_size|r)`")
        tuned = _loaded_rotations(model, section, adapters[0]) if adapters else _new_rotations(model, section)
    train_in_fp32(tuned)
    if section.oft.module_dropout:
        drop_blocks(tuned)
    _refuse_inputs_of_images(tuned, is_continued=bool(adapters))
    return tuned


def _refuse_inputs_of_images(tuned: Any, *, is_continued: bool) -> None:
    """Make a forward pass raise if PEFT would treat the inputs of a linear module as those of a convolution.

    PEFT checks for four dimensions, which some latent attentions have. It could not run the exported adapter either.
    """
    from peft.tuners.oft.layer import Linear

    key, remedy = "method.oft.start_from" if is_continued else "method.oft.target", "use method.tuner: lora"

    def require_vectors(name: str, inputs: tuple[Any, ...]) -> None:
        if inputs[0].dim() != 4:
            return
        others = []
        if not is_continued:
            # Only if they are names: in an adapter from elsewhere they may be a pattern, and its file determines them.
            targets = sorted(tuned.peft_config[TRAINED].target_modules)
            others = [each for each in targets if not f".{name}".endswith(f".{each}")]
        raise RecipeError(
            f"{key}: the model gives {name} inputs of four dimensions, which PEFT's OFT takes for images",
            code="oft-target-not-linear",
            remedy=f"leave it out: method.oft.target: [{', '.join(others)}]; or {remedy}" if others else remedy,
        )

    for name, layer in tuned.base_model.model.named_modules():
        if isinstance(layer, Linear):
            layer.register_forward_pre_hook(lambda _, inputs, name=name: require_vectors(name, inputs))


def _loaded_rotations(model: Any, section: MethodSection, adapter: Path) -> Any:
    from peft import OFTConfig

    with errors_as_recipe_errors(adapter, section):
        config = OFTConfig.from_pretrained(adapter)
    tuned = continue_adapter(model, section, adapter, config, module_dropout=section.oft.module_dropout)
    tuned.peft_config[TRAINED].task_type = task_type(section)
    return tuned


def _new_rotations(model: Any, section: MethodSection) -> Any:
    from peft import OFTConfig, get_peft_model

    oft = section.oft
    whole, targets = modules_to_save(model, oft), _linear_targets(model, oft)
    require_targets_beside(targets, whole)
    sizes = _require_blocks(model, targets, oft)
    config = OFTConfig(
        task_type=task_type(section),
        target_modules=short_names(targets.modules, [name for name, _ in model.named_modules()]),
        r=oft.rank or 0,
        oft_block_size=0 if oft.rank is not None else oft.block_size or 32,
        module_dropout=oft.module_dropout,
        coft=oft.coft,
        eps=oft.eps,
        block_share=oft.block_share,
        use_cayley_neumann=oft.cayley_neumann,
        num_cayley_neumann_terms=oft.cayley_neumann_terms,
        modules_to_save=whole or None,
    )
    tuned = get_peft_model(model, config)
    for note in (*targets.notes, *sizes):
        say(note)
    return tuned


def _linear_targets(model: Any, oft: OftSection) -> Targets:
    """The targets: PEFT's OFT supports torch's linear modules only, not GPT-2's Conv1D nor parameters."""
    targets = choose_targets(model, oft)
    head = model.get_output_embeddings()
    others = [
        name
        for name in targets.modules
        if not isinstance(module := model.get_submodule(name), nn.Linear) or module is head
    ]
    targets.modules = [name for name in targets.modules if name not in others]
    if (others or targets.parameters) and (ALL_LINEAR not in oft.target or not targets.modules):
        raise RecipeError(
            f"{targets.key}: {[*others, *targets.parameters][0]} is not a linear module inside the model: OFT turns "
            "the inputs of such modules only",
            code="oft-target-not-linear",
            remedy="name linear modules, e.g. [q_proj, v_proj], or use method.tuner: lora",
        )
    if others:
        targets.notes.append(f"{targets.key}: {ALL_LINEAR} leaves out {', '.join(others)}: OFT is for linear modules")
    return targets


def _require_blocks(model: Any, targets: Targets, oft: OftSection) -> list[str]:
    """A note for each number of inputs that the requested size does not divide.

    Raises:
        RecipeError: blocks would have one input, which cannot be rotated.
    """
    widths = {model.get_submodule(name).in_features: name for name in targets.modules}
    size_key = f"rank: {oft.rank}" if oft.rank is not None else f"block_size: {oft.block_size or 32}"
    notes = []
    for inputs, name in sorted(widths.items()):
        size = oft.block_of(inputs)
        if size < 2:
            raise RecipeError(
                f"method.oft.{size_key} leaves blocks of one input in {name}, which has {inputs:,} inputs",
                code="oft-block-too-small",
                remedy=f"set method.oft.block_size to a divisor of {inputs:,}, or leave {name} out of {targets.key}",
            )
        if (inputs // size if oft.rank is not None else size) != (oft.rank or oft.block_size or 32):
            notes.append(f"method.oft.{size_key} does not divide {inputs:,} inputs: blocks of {size} are used there")
    return notes
