"""A PEFT adapter, LoRA or OFT, read from its config and its file's header; forms that cannot be merged are refused."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascendtune.core.errors import InputError
from ascendtune.hub.adapter_files import (
    CONFIG,
    PREFIX,
    WEIGHTS,
    is_adapter_weight,
    read_adapter_config,
    require_known_experts,
)
from ascendtune.hub.oft_adapter import Rotation, require_known_rotations, rotation_of
from ascendtune.hub.safetensors_header import FLOAT_DTYPES, SafetensorsHeader, read_safetensors_header

_WRAPPED = ".base_layer"
_PARTS = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_A\.weight|lora_B\.weight|lora_B\.bias|lora_embedding_A|lora_embedding_B"
    r"|lora_magnitude_vector(?:\.weight)?|oft_R\.weight)"
)
_PREFIXES = {"LORA": "lora_", "OFT": "oft_"}
"""Prefix of an adapter's own weights, by PEFT's name of the adapter type."""
# Keys of adapter_config.json with which the change is not B @ A added to a matrix.
_OTHER_FORMS = (
    "trainable_token_indices",
    "layer_replication",
    "use_qalora",
    "use_bdlora",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
)
# Initialisations that subtract their part from the base: such an adapter belongs to a base changed in memory.
_STARTS_THAT_CHANGE_THE_BASE = ("pissa", "olora", "corda", "lora_ga", "loftq")


_MERGE_WITH_PEFT = "merge it with PEFT: load it, then call merge_and_unload()"
_COPY_AGAIN = "copy or download the adapter again"


@dataclass(frozen=True)
class LowRank:
    """The adapter of one module: its change is scaling · B @ A."""

    module: str
    """Name in the model, e.g. model.layers.0.self_attn.q_proj."""
    a: str
    """Names in the adapter's file. A: (rank, in)."""
    b: str
    """B: (out, rank)."""
    scaling: float
    shape: tuple[int, int]
    """(out, in) of B @ A."""
    is_embedding: bool = False
    """Whether the weight is the transpose: (in, out), one row per token."""
    magnitude: str | None = None
    """DoRA: the length of each row (of each column of an embedding)."""
    bias: str | None = None


@dataclass(frozen=True)
class ExpertLora:
    """The adapter of a parameter with the matrices of all experts: each has its own B @ A; they are concatenated."""

    module: str
    """The module that has the parameter."""
    depth: int
    """Index among the module's adapted parameters: PEFT nests their wrappers, and this many are around it."""
    a: str
    """Names in the adapter's file. A: (experts · rank, in), expert by expert."""
    b: str
    """B: (out, rank · experts), the experts of each rank beside each other."""


@dataclass(frozen=True)
class Adapter:
    directory: Path
    config: dict[str, Any]
    file: SafetensorsHeader
    weight: float
    """Factor of its change."""
    low_rank: list[LowRank]
    expert_loras: list[ExpertLora]
    rotations: list[Rotation]
    whole: dict[str, str]
    """Weights that replace the base's: name in the model -> name in the file."""
    whole_base: set[str] = field(default_factory=set)
    """Those of `whole` that are the base's own, enlarged; not copies beside it, as modules_to_save makes them."""

    @property
    def uses_dora(self) -> bool:
        return any(each.magnitude for each in self.low_rank)


def read_adapter(directory: Path, weight: float = 1.0) -> Adapter:
    """Read config and header of the adapter in `directory`.

    Raises:
        InputError: neither LoRA nor OFT, a form of them that cannot be merged, or a damaged file.
    """
    config = _config(directory)
    path = directory / WEIGHTS
    if not path.exists():
        if (directory / "adapter_model.bin").is_file():
            raise InputError(
                "the adapter's weights are a pickle, which can run code when it is loaded",
                code="pickled-weights",
                remedy="load it with PEFT and save it with save_pretrained, if you trust it",
                where=directory,
            )
        raise InputError(
            f"the adapter has no weights: {WEIGHTS} is missing",
            code="adapter-weights-missing",
            remedy=_COPY_AGAIN,
            where=directory,
        )
    file = read_safetensors_header(path)
    modules, whole, whole_base = _sorted_names(file, config)
    if config["peft_type"] == "OFT":
        rotations = [rotation_of(module, parts["oft_R"], file) for module, parts in modules.items()]
        return Adapter(directory, config, file, weight, [], [], rotations, whole, whole_base)
    require_known_experts(config, {name: each.shape for name, each in file.tensors.items()}, directory / CONFIG)
    expert_loras = [
        ExpertLora(module.replace(_WRAPPED, ""), module.count(_WRAPPED), parts["lora_A"], parts["lora_B"])
        for module, parts in modules.items()
        if _is_stack(module, parts, config, file)
    ]
    stacked = {each.a for each in expert_loras}
    low_rank = [
        _low_rank(module, parts, config, file, weight)
        for module, parts in modules.items()
        if parts.get("lora_A") not in stacked
    ]
    return Adapter(directory, config, file, weight, low_rank, expert_loras, [], whole, whole_base)


def _config(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG
    config = read_adapter_config(path)
    kind = config["peft_type"]
    if kind not in _PREFIXES:
        raise _not_mergeable(
            f"this is a {kind} adapter: only LoRA and OFT can be merged here",
            path,
            f"{_MERGE_WITH_PEFT} if the adapter has this method",
        )
    if kind == "OFT":
        require_known_rotations(config, path)
    for key in _OTHER_FORMS:
        if config.get(key):
            raise _not_mergeable(f"the adapter uses {key}, which cannot be merged here", path)
    start = str(config.get("init_lora_weights")).lower()
    if start.startswith(_STARTS_THAT_CHANGE_THE_BASE):
        what = f"init_lora_weights: {start} changed the base in memory, and the adapter was saved without conversion"
        # PEFT changes the base again when it loads the former.
        remedy = (
            _MERGE_WITH_PEFT if start == "loftq" else "save it with PEFT's path_initial_model_for_weight_conversion"
        )
        raise _not_mergeable(what, path, remedy)
    return config


def _sorted_names(
    file: SafetensorsHeader, config: dict[str, Any]
) -> tuple[dict[str, dict[str, str]], dict[str, str], set[str]]:
    """Parts per module; whole weights; those of them that are the base's own."""
    modules: dict[str, dict[str, str]] = {}
    whole: dict[str, str] = {}
    whole_base = set()
    saved = tuple(config.get("modules_to_save") or ())
    for name, tensor in file.tensors.items():
        if ".original_module." in name:
            # If the vocabulary has grown, PEFT saves the base's own embeddings in addition to those that replaced them.
            continue
        if tensor.dtype not in FLOAT_DTYPES:
            what = f"{name} has the dtype {tensor.dtype}; only floating-point adapters can be merged"
            raise _not_mergeable(what, file.path, "save the adapter in fp32 or bf16")
        plain = name.removeprefix(PREFIX)
        if (match := _PARTS.fullmatch(plain)) and match["part"].startswith(_PREFIXES[config["peft_type"]]):
            parts = modules.setdefault(match["module"], {})
            parts[match["part"].removesuffix(".weight").replace("embedding_", "")] = name
            if "embedding" in match["part"]:
                parts["embedding"] = name
        elif is_adapter_weight(plain) or plain == name or not plain.endswith((".weight", ".bias")):
            what = f"the adapter contains {name}, which is not a known weight of {config['peft_type']}"
            raise _not_mergeable(what, file.path)
        else:
            inner = plain.replace(".base_layer.", ".").replace(".modules_to_save.", ".")
            whole[inner] = name
            module = inner.rpartition(".")[0]
            if ".base_layer." in plain or not any(module == each or f".{each}" in f".{module}" for each in saved):
                whole_base.add(inner)
    return modules, whole, whole_base


def _not_mergeable(what: str, where: Path, remedy: str = _MERGE_WITH_PEFT) -> InputError:
    return InputError(what, code="adapter-not-mergeable", remedy=remedy, where=where)


def _is_stack(module: str, parts: dict[str, str], config: dict[str, Any], file: SafetensorsHeader) -> bool:
    """Whether A has the rows of several experts."""
    targets = config.get("target_parameters") or ()
    if not targets or parts.keys() != {"lora_A", "lora_B"}:
        return False
    a, b = (file.tensors[parts[name]].shape for name in ("lora_A", "lora_B"))
    if len(a) != 2 or len(b) != 2 or a[0] != b[1]:
        return False
    plain = module.replace(_WRAPPED, "")
    # A matrix is the weight of its module. A stack's parameter may also be called weight; then its rank decides.
    owners = [owner for owner, _, parameter in (each.rpartition(".") for each in targets) if parameter != "weight"]
    if any(owner and f".{plain}".endswith(f".{owner}") for owner in owners):
        return True
    rank, _ = rank_and_alpha(config, _name_for_patterns(plain, config), file)
    return a[0] != rank


def _low_rank(
    module: str, parts: dict[str, str], config: dict[str, Any], file: SafetensorsHeader, weight: float
) -> LowRank:
    if missing := {"lora_A", "lora_B"} - parts.keys():
        raise InputError(
            f"{module} has no {missing.pop()}",
            code="adapter-damaged",
            remedy=_COPY_AGAIN,
            where=file.path,
        )
    a, b = (file.tensors[parts[name]].shape for name in ("lora_A", "lora_B"))
    rank, alpha = rank_and_alpha(config, _name_for_patterns(module, config), file)
    if len(a) != 2 or len(b) != 2 or rank < 1 or a[0] != rank or b[1] != rank:
        raise InputError(
            f"{module}: A is {list(a)} and B is {list(b)}, which are not matrices of rank {rank}",
            code="adapter-config-mismatch",
            remedy="copy weights and adapter_config.json from one adapter; adapters of convolutions cannot be merged",
            where=file.path,
        )
    for part in ("lora_magnitude_vector", "lora_B.bias"):
        if part in parts and math.prod(file.tensors[parts[part]].shape) != b[0]:
            raise InputError(
                f"{parts[part]} has shape {list(file.tensors[parts[part]].shape)}, but the adapter's B has {b[0]} rows",
                code="adapter-config-mismatch",
                remedy=_COPY_AGAIN,
                where=file.path,
            )
    return LowRank(
        module, parts["lora_A"], parts["lora_B"], scaling_of(config, rank, alpha, weight), (b[0], a[1]),
        is_embedding="embedding" in parts,
        magnitude=parts.get("lora_magnitude_vector"),
        bias=parts.get("lora_B.bias"),
    )  # fmt: skip


def _name_for_patterns(module: str, config: dict[str, Any]) -> str:
    """The name that PEFT compares with the patterns: a parameter's name if that is the target, as a router's weight."""
    weight = f"{module}.weight"
    is_parameter = any(f".{weight}".endswith(f".{target}") for target in config.get("target_parameters") or ())
    return weight if is_parameter else module


def rank_and_alpha(config: dict[str, Any], name: str, file: SafetensorsHeader) -> tuple[int, float]:
    """Rank and alpha of the adapter of a module or parameter.

    Raises:
        InputError: the config does not contain them.
    """
    try:
        rank = int(_by_pattern(config.get("rank_pattern"), name, config.get("r", 8)))
        return rank, float(_by_pattern(config.get("alpha_pattern"), name, config.get("lora_alpha", 8)))
    except (TypeError, ValueError, AttributeError, re.error) as error:
        raise InputError(
            f"adapter_config.json has no valid rank and alpha for {name}: {error}",
            code="adapter-config-mismatch",
            remedy=_COPY_AGAIN,
            where=file.path.with_name(CONFIG),
        ) from error


def scaling_of(config: dict[str, Any], rank: int, alpha: float, weight: float) -> float:
    """PEFT's order of operations: a factor multiplies alpha before it is divided."""
    return weight * alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _by_pattern(patterns: dict[str, Any] | None, module: str, default: Any) -> Any:
    """PEFT's rule: the first pattern that matches the end of the module's name."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default
