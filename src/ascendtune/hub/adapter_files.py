"""The files of a PEFT adapter: checks of its config, its weights and its base model. Free of torch."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from ascendtune.core.errors import RecipeError
from ascendtune.core.foreign_json import (
    FLAG,
    TEXT,
    TEXT_LIST,
    FieldRule,
    bad_field,
    check_fields,
    is_number,
    is_text_list,
    read_json_object,
    shown_names,
)
from ascendtune.core.units import count_of
from ascendtune.hub.module_patterns import may_be_endless
from ascendtune.hub.oft_adapter import rotation_of
from ascendtune.hub.safetensors_header import SafetensorsHeader, read_safetensors_header
from ascendtune.hub.weight_files import all_tensors, read_weight_headers

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
_FIRST_VERSION_OF_EXPERTS = (0, 19, 1)
_LARGEST_NUMBER = 1e30


def _whole_number(least: int, most: int) -> FieldRule:
    expected = f"a whole number from {least} to {most:,}"
    return FieldRule(lambda value: type(value) is int and least <= value <= most, expected)


def _are_positive(value: Any) -> bool:
    return isinstance(value, dict) and all(is_number(each, 0, _LARGEST_NUMBER) and each for each in value.values())


_RULES = {
    _whole_number(1, 1024): ("num_cayley_neumann_terms",),
    FieldRule(lambda value: is_number(value, -_LARGEST_NUMBER, _LARGEST_NUMBER), "a number"): (
        "lora_alpha", "lora_dropout", "module_dropout", "eps",
    ),
    FieldRule(_are_positive, "an object of names and numbers above 0"): ("rank_pattern", "alpha_pattern"),
    FieldRule(lambda value: isinstance(value, str) or is_text_list(value), "a text or a list of texts"): (
        "target_modules", "exclude_modules",
    ),
    TEXT_LIST: ("modules_to_save", "target_parameters"),
    TEXT: ("base_model_name_or_path", "task_type", "bias", "revision", "peft_version"),
    FLAG: (
        "use_rslora", "use_dora", "fan_in_fan_out", "inference_mode", "lora_bias", "ensure_weight_tying",
        "coft", "block_share", "use_cayley_neumann",
    ),
}  # fmt: skip
_PATTERN_KEYS = (
    "target_modules", "exclude_modules", "layers_pattern", "rank_pattern", "alpha_pattern", "modules_to_save",
)  # fmt: skip
_WEIGHT = re.compile(r"(?:^|\.)(?:lora|oft)_")
_MATRIX = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])\.weight")


def read_adapter_config(path: Path) -> dict[str, Any]:
    """The content of an adapter_config.json, its fields checked.

    Args:
        path: of the file.

    Raises:
        RecipeError: a field has a wrong type or an impossible value, or leads to foreign code; names field and value.
        MachineError: permission is denied, or the disk fails.
    """
    config = read_json_object(path)
    if not isinstance(config.get("peft_type"), str):
        raise RecipeError(
            "adapter_config.json has no peft_type",
            code="adapter-type-missing",
            remedy="give the directory of a PEFT adapter, or a run that was trained with method.tuner: lora (or oft)",
            where=path,
        )
    if config.get("megatron_config"):
        raise RecipeError(
            "adapter_config.json: megatron_config is not accepted: it names a package whose code is run",
            code="foreign-code",
            remedy="export the adapter without it",
            where=path,
        )
    # OFT has a number of blocks or a size of blocks, and 0 for the other one.
    rank = _whole_number(0 if config["peft_type"] == "OFT" else 1, 65_536)
    check_fields(path, config, _RULES | {rank: ("r", "oft_block_size")}, never_null="r")
    _check_patterns(path, config)
    return config


def _check_patterns(path: Path, config: Mapping[str, Any]) -> None:
    """Raise for a regular expression whose matching may not end: PEFT matches it with every module of the model."""
    for key in _PATTERN_KEYS:
        value = config.get(key)
        patterns = [value] if isinstance(value, str) else value if isinstance(value, list | dict) else ()
        for pattern in patterns:
            if isinstance(pattern, str) and may_be_endless(pattern):
                raise bad_field(
                    path, key, pattern, "a pattern without repeats in repeats, such as (a+)+, and at most 5"
                )


def check_adapter(directory: Path, base: Path | None = None) -> None:
    """Raise if an adapter is incomplete, or its shapes do not match its base.

    Args:
        base: directory of a whole model; None if not known yet.

    Raises:
        RecipeError: with the file, and the field or weight.
        MachineError: permission is denied, or the disk fails.
    """
    config = read_adapter_config(directory / CONFIG)
    path = directory / WEIGHTS
    if not path.exists():
        raise RecipeError(
            f"the adapter has no {WEIGHTS}",
            code="adapter-weights-missing",
            remedy="give a directory that PEFT or ascendtune has saved as safetensors; pickled weights are not loaded",
            where=directory,
        )
    file = read_safetensors_header(path)
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    if not shapes:
        raise RecipeError(
            f"{WEIGHTS} contains no weights",
            code="adapter-weights-missing",
            remedy="export or download the adapter again",
            where=path,
        )
    if config["peft_type"] == "LORA":
        _check_ranks(path, shapes, config)
        require_known_experts(config, shapes, directory / CONFIG)
        if base is not None:
            named = Path(config.get("base_model_name_or_path") or "")
            # Files of some types have other names than their modules: the adapter's own base is not checked by name.
            is_its_own = named.is_dir() and named.resolve() == base.resolve()
            _check_base(path, shapes, base, must_meet=not config.get("target_parameters") and not is_its_own)
    elif config["peft_type"] == "OFT":
        _check_rotations(file, base, shared=bool(config.get("block_share")))


def require_all_adapter_weights(names: Iterable[str], loaded: Container[str], directory: Path) -> None:
    """Raise if a weight of the adapter has no counterpart in the model: PEFT drops those silently.

    Args:
        names: names of the weights in the file, as PEFT reads them for this model.
        loaded: names of the adapter's weights in the model, as PEFT saves them.

    Raises:
        RecipeError: with the first of them, and their number.
    """
    lost = [name for name in names if is_adapter_weight(name) and name not in loaded]
    if lost:
        raise _of_another_base(
            f"{count_of(len(lost), 'weight of the adapter has', 'weights of the adapter have')} "
            f"no place in the base model: {shown_names(lost)}",
            directory,
        )


def is_adapter_weight(name: str) -> bool:
    """Whether a parameter with this name belongs to an adapter, not to the model or to `modules_to_save`."""
    return _WEIGHT.search(name) is not None


def adapted_module(name: str) -> str:
    """The name of the module to which a weight of an adapter belongs; other names are returned unchanged."""
    return _WEIGHT.split(name)[0]


def weight_in_files(name: str, files: Container[str]) -> str | None:
    """The name of a model's parameter in the files: in those of models saved without their head the prefix is
    missing."""
    shorter = name.partition(".")[2]
    candidates = (name, shorter, f"model.{name}", f"transformer.{name}")
    return next((each for each in candidates if each in files), None)


def _check_ranks(path: Path, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]) -> None:
    ranks = {config.get("r", 8), *(config.get("rank_pattern") or {}).values()}
    # The matrices of all experts are concatenated in one tensor.
    is_stack = bool(config.get("target_parameters"))
    for name, shape in shapes.items():
        if found := _MATRIX.fullmatch(name):
            rank = shape[0 if found["part"] == "A" else 1] if len(shape) > 1 else None
            if rank not in ranks and not (is_stack and rank and any(rank % each == 0 for each in ranks)):
                raise RecipeError(
                    f"{name} is {list(shape)}, and {CONFIG} says that r is {config.get('r', 8)}",
                    code="adapter-config-mismatch",
                    remedy="copy both files of the adapter from one place",
                    where=path,
                )


def require_known_experts(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """Raise if today's PEFT would compute another change of stacked experts than the adapter was trained to be.

    Args:
        shapes: of the adapter's weights.
        path: path of adapter_config.json.

    Raises:
        RecipeError: it was written by PEFT before 0.19.1.
    """
    ranks = {config.get("r", 8), *(config.get("rank_pattern") or {}).values()}
    has_stacks = bool(config.get("target_parameters")) and any(
        found["part"] == "A" and shape[0] not in ranks
        for name, shape in shapes.items()
        if (found := _MATRIX.fullmatch(name)) and len(shape) == 2
    )
    version = re.match(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})", config.get("peft_version") or "")
    if has_stacks and version and tuple(map(int, version.groups())) < _FIRST_VERSION_OF_EXPERTS:
        raise RecipeError(
            f"PEFT {version[0]} wrote this adapter: before 0.19.1 it exchanged inputs and outputs of stacked experts",
            code="adapter-layout-unsupported",
            remedy="merge it with that version of PEFT: load it, then call merge_and_unload()",
            where=path,
        )


def _check_base(path: Path, shapes: Mapping[str, tuple[int, ...]], base: Path, *, must_meet: bool) -> None:
    base_shapes = _shapes(base)
    pairs: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        if (found := _MATRIX.fullmatch(name)) and len(shape) == 2:
            pairs.setdefault(found["module"].removeprefix(PREFIX), {})[found["part"]] = shape
    places = {module: weight_in_files(f"{module}.weight", base_shapes) for module in pairs}
    # transformers may use another name for a part of the weights than the files; loading compares all of them.
    if must_meet and pairs and not any(places.values()):
        raise _of_another_base(f"the base model has none of the modules of the adapter: {shown_names(pairs)}", path)
    for module, pair in pairs.items():
        place = places[module]
        if place is None or len(pair) < 2:
            continue
        made_for = (pair["B"][0], pair["A"][1])
        # An enlarged head is in the adapter as a whole, and replaces the base's.
        present = shapes.get(f"{PREFIX}{module}.base_layer.weight", base_shapes[place])
        if present not in (made_for, made_for[::-1]):
            raise _of_another_base(
                f"the adapter does not fit this model: {module} is {list(present)} in the base, "
                f"but the adapter was made for {list(made_for)}",
                path,
            )


def _check_rotations(file: SafetensorsHeader, base: Path | None, *, shared: bool) -> None:
    base_shapes = {} if base is None else _shapes(base)
    for name in file.tensors:
        if not name.endswith(".oft_R.weight"):
            continue
        rotation = rotation_of(adapted_module(name).removeprefix(PREFIX), name, file)
        place = weight_in_files(f"{rotation.module}.weight", base_shapes)
        if place is not None and not (
            len(base_shapes[place]) == 2 and rotation.fits(base_shapes[place][1], shared=shared)
        ):
            raise _of_another_base(
                f"the adapter does not fit this model: {rotation.module} is {list(base_shapes[place])} in the base, "
                f"but the adapter was made for "
                f"{count_of(rotation.blocks, 'block')} of {count_of(rotation.size, 'input')}",
                file.path,
            )


def _shapes(model: Path) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in all_tensors(read_weight_headers(model)).items()}


def _of_another_base(what: str, where: Path) -> RecipeError:
    remedy = "give the base model that the adapter was trained on"
    return RecipeError(what, code="adapter-base-mismatch", remedy=remedy, where=where)
