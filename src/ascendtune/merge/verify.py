"""Does the merged model compute the same as base and adapter? Tested on a few tokens, in fp32, through PEFT.

Rounding the merged weights to half precision can change logits as much as a small adapter does. So two questions are
separated: whether the weights, before rounding, have the effect of the adapter, to the last digits of fp32; and how
much of the effect rounding preserves. That the files contain these weights, rounded to the nearest, is checked number
by number (`rounded.py`).
"""

from __future__ import annotations

import re
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from ascendtune.core.foreign_json import first_line
from ascendtune.core.units import format_bytes
from ascendtune.hub.adapter_files import is_adapter_weight
from ascendtune.hub.loaded_weights import HEADS, require_all_weights, resize_embeddings, without_own_implementations
from ascendtune.hub.peft_adapter import Adapter
from ascendtune.hub.weight_files import read_weight_headers
from ascendtune.merge.arithmetic import DTYPES
from ascendtune.merge.mapped_model import AsStored, Changes, MappedFiles, NotInFp32, in_fp32
from ascendtune.merge.merge_plan import MergePlan, Progress
from ascendtune.merge.rounded import ExactWeights, rounded_outputs
from ascendtune.merge.source import Base

# The layer of a tensor, by its name; and a tensor of one expert, which transformers joins with the others.
_LAYER = re.compile(r".*?\.\d+\.")
_ONE_EXPERT = re.compile(r"\.experts\.\d+\.")
_TOKENS, _TOKENS_OF_EXPERTS = 3, 16
"""A product with 3 tokens takes as long as reading the weights, with 8 almost three times as long. With experts, more
tokens reach more of them."""
_DOING = "comparing with base and adapter"
# Relative to the logits. In fp32 only the order of additions differs, which is 1e-6 to 1e-5.
_TOLERANCE = 1e-4
# Minimum effect, in tolerances: in a smaller one a missing part could not be detected.
_DISCERNIBLE = 10


@dataclass(frozen=True)
class Verification:
    """Differences are root mean squares of logits, relative to those of base and adapter."""

    tokens: int
    error: float
    """Between the merged weights before they are rounded, and base with adapter."""
    difference: float
    """Between the merged model as it is written, and base with adapter."""
    effect: float
    """Between the base alone and base with adapter."""
    tolerance: float
    """The largest `error` that agrees."""
    seconds: float

    @property
    def agrees(self) -> bool:
        return self.error <= self.tolerance

    @property
    def is_conclusive(self) -> bool:
        """Whether the adapter's effect is large enough for `agrees` to be meaningful."""
        return self.effect >= _DISCERNIBLE * self.tolerance

    @property
    def lost(self) -> float:
        """Share of the adapter's effect that rounding removed."""
        return min(self.difference / self.effect, 1.0) if self.effect else 0.0


class CannotVerify(Exception):
    """The comparison is not possible; the merge itself may be correct."""


def verify(plan: MergePlan, merged: Path, progress: Progress) -> Verification:
    """Compare logits; a block of one model is in memory at a time.

    Raises:
        CannotVerify: too little memory, or the model needs remote code.
        CheckFailed: the files do not contain the computed weights.
    """
    began = time.perf_counter()
    _require_memory(plan)
    ids = _tokens(plan)
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            progress(_DOING, 0, 2)
            adapted, base = _logits_with_adapter(plan, ids, in_one_batch=_can_share_a_batch(plan))
            progress(_DOING, 1, 2)
            exact, rounded = _logits_of_merged(plan, merged, ids)
    except NotInFp32 as error:
        raise CannotVerify(str(error)) from error
    # New tokens are the adapter's own: the base has no logits for them.
    known = min(base.shape[-1], adapted.shape[-1])
    base = base[..., :known]
    scale = _scale(base, adapted)
    return Verification(
        tokens=ids.numel(),
        error=_rms(exact - adapted) / scale,
        difference=_rms(rounded - adapted) / scale,
        effect=_rms(base - adapted[..., :known]) / scale,
        tolerance=_TOLERANCE,
        seconds=time.perf_counter() - began,
    )


def _scale(base: torch.Tensor, adapted: torch.Tensor) -> float:
    """The scale of rounding errors: the magnitude of a logit's terms.

    One score of a reward model may be close to 0 because its terms cancel out; not those of the other model as well.

    Args:
        base: (1, tokens, known) logits, or (1, scores).
        adapted: (1, tokens, vocabulary) logits, or (1, scores).
    """
    return max(_rms(base), _rms(adapted))


def _require_memory(plan: MergePlan) -> None:
    tensors = [item for file in plan.base.files.values() for item in file.tensors.items()]
    layers: dict[str, int] = {}
    for name, tensor in tensors:
        layer = found.group() if (found := _LAYER.match(name)) else name
        layers[layer] = layers.get(layer, 0) + torch.Size(tensor.shape).numel()
    # One tensor at a time is computed again and compared: memory for it, its change and intermediate results.
    largest = max((torch.Size(each.shape).numel() for each in rounded_outputs(plan).values()), default=0)
    needed = 4 * (max(layers.values(), default=0) + 5 * largest)
    needed += sum(tensor.size for adapter in plan.adapters for tensor in adapter.file.tensors.values())
    # The tensors that these replace are copied, in fp32 at most.
    replacing = [each.file.tensors[key] for each in plan.adapters for key in each.whole.values()]
    needed += sum(4 * torch.Size(tensor.shape).numel() for tensor in replacing)
    needed += sum(tensor.size for name, tensor in tensors if _ONE_EXPERT.search(name))
    available = psutil.virtual_memory().available
    if available < needed:
        raise CannotVerify(f"it takes {format_bytes(needed)} of memory, {format_bytes(available)} are available")


def _tokens(plan: MergePlan) -> torch.Tensor:
    texts = [each.get("text_config") or each for each in (plan.base.config, plan.config)]
    count = _TOKENS_OF_EXPERTS if _has_experts(plan.base) else _TOKENS
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, min(int(each.get("vocab_size", 256)) for each in texts), (1, count), generator=generator)


def _has_experts(base: Base) -> bool:
    return any(".experts." in name for file in base.files.values() for name in file.tensors)


def _logits_with_adapter(
    plan: MergePlan, ids: torch.Tensor, *, in_one_batch: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of base with adapters, and of the base alone."""
    files = MappedFiles(plan.base.files.values())
    model = _load(plan, plan.base.directory, files)
    present = model.get_input_embeddings().weight.shape[0]
    rows = _rows(plan) or present
    base = None if in_one_batch and rows == present else _logits(model, files, ids)
    if rows != present:
        resize_embeddings(model, rows)
    tuned = _with_adapters(model, plan.adapters)
    try:
        if base is not None:
            return _logits(tuned, files, ids), base
        both = _logits(tuned, files, ids.repeat(2, 1), adapter_names=[_peft_name(0), "__base__"])
        return both[:1], both[1:]
    except ValueError:
        if base is not None:
            raise
        # The model calls a module of the adapter with another number of rows, and PEFT's hooks stay on it.
        return _logits_with_adapter(plan, ids, in_one_batch=False)
    except (AttributeError, TypeError) as error:
        # PEFT's all-linear includes routers, some of which return several tensors.
        raise CannotVerify(f"PEFT's model does not compute: {first_line(error)}") from error


def _with_adapters(model: Any, adapters: list[Adapter]) -> Any:
    from peft import PeftModel

    # PEFT writes the adapter's numbers into these, or into copies of their dtype, which may be narrower than the
    # adapter's; numbers written into a mapped page would be lost.
    overwritten = {name: each.file.tensors[key] for each in adapters for name, key in each.whole.items()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in overwritten:
            dtype = torch.promote_types(parameter.dtype, DTYPES[overwritten[name].dtype])
            parameter.data = parameter.data.to(dtype, copy=True)
    first, *others = adapters
    try:
        tuned = PeftModel.from_pretrained(model, first.directory, adapter_name=_peft_name(0))
        for number, adapter in enumerate(others, 1):
            tuned.load_adapter(adapter.directory, _peft_name(number))
    except Exception as error:  # PEFT raises any exception on invalid values
        raise CannotVerify(f"PEFT cannot load the adapter: {first_line(error)}") from error
    for number, adapter in enumerate(others, 1):
        _require_loaded(tuned, _peft_name(number), adapter)
    if others or first.weight != 1:
        _combine(tuned, adapters)
    return tuned.eval()


def _peft_name(number: int) -> str:
    """A bare number would be taken for that of a layer when PEFT removes the adapter's name from a weight's."""
    return f"adapter_{number}"


def _require_loaded(tuned: Any, name: str, adapter: Adapter) -> None:
    """PEFT drops weights of a further adapter if ensure_weight_tying needs a head that another one has wrapped.

    Raises:
        CannotVerify: it has dropped weights.
    """
    from peft import get_peft_model_state_dict, load_peft_weights
    from peft.utils.transformers_weight_conversion import convert_peft_adapter_state_dict_for_transformers

    loaded = get_peft_model_state_dict(tuned, adapter_name=name, save_embedding_layers=False)
    weights = load_peft_weights(str(adapter.directory), device="cpu")
    names = convert_peft_adapter_state_dict_for_transformers(tuned, tuned.peft_config[name], weights)
    if lost := [each for each in names if is_adapter_weight(each) and each not in loaded]:
        raise CannotVerify(f"PEFT does not load {lost[0]} of {adapter.directory}")


def _can_share_a_batch(plan: MergePlan) -> bool:
    """Whether PEFT computes base and adapter for two rows of one batch, so that weights are converted once for both.

    It does for one LoRA that only adds to linear modules and embeddings; not in experts, which receive some of the
    batch's tokens without their rows; nor for MPT, where it drops the rows' adapters.
    """
    first, *others = plan.adapters
    adds_only = not (first.expert_loras or first.rotations or first.whole or first.uses_dora)
    is_mpt = plan.base.config.get("model_type") == "mpt"
    return adds_only and not others and not _has_experts(plan.base) and not is_mpt


def _logits_of_merged(plan: MergePlan, merged: Path, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the merged weights before they were rounded, and as they are written."""
    files = MappedFiles(read_weight_headers(merged).values())
    model = _load(plan, merged, files)
    rounded = _logits(model, files, ids)
    if not rounded_outputs(plan):
        return rounded, rounded
    exact = ExactWeights(model, plan)
    if exact.left:
        raise CannotVerify(f"the model calls {exact.left[0]} by another name than its files")
    logits = _logits(model, files, ids, exact)
    exact.check_others(model)
    return logits, rounded


def _logits(
    model: Any, files: MappedFiles, ids: torch.Tensor, changes: Changes | None = None, **options: Any
) -> torch.Tensor:
    """(rows, tokens, vocabulary) fp32; of a classifier (rows, labels).

    Args:
        ids: (rows, tokens) int64.
        changes: as for `in_fp32`.
        options: arguments of the model.

    Raises:
        CannotVerify: the model uses a weight outside its module.
    """
    try:
        with in_fp32(model, files, changes):
            logits: torch.Tensor = model(input_ids=ids, use_cache=False, **options).logits
        if logits.isnan().any():
            with in_fp32(model, files, changes, in_chunks=False):
                logits = model(input_ids=ids, use_cache=False, **options).logits
    except RuntimeError as error:
        raise CannotVerify(f"the model does not compute block by block: {first_line(error)}") from error
    return logits


def _combine(tuned: Any, adapters: list[Adapter]) -> None:
    names = [_peft_name(number) for number in range(len(adapters))]
    tuned.base_model.set_adapter(names)
    for module in tuned.modules():
        if hasattr(module, "set_scale"):
            for name, adapter in zip(names, adapters, strict=True):
                module.set_scale(name, adapter.weight)


def _rows(plan: MergePlan) -> int | None:
    shapes = [each.shape for shard in plan.shards.values() for each in shard if each.name == plan.base.table]
    return shapes[0][0] if shapes else None


def _load(plan: MergePlan, directory: Path, files: MappedFiles) -> Any:
    """The model in `directory` with the weights of `files`, mapped, in their own dtypes."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification
    from transformers.utils import logging

    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    architectures = plan.config.get("architectures") or [""]
    is_classifier = architectures[0].endswith("ForSequenceClassification")
    kind = AutoModelForSequenceClassification if is_classifier else AutoModelForCausalLM
    # Without labels a config has transformers' default, two; the base of a new head has no labels yet.
    options = {"num_labels": len(plan.config["id2label"])} if is_classifier and "id2label" in plan.config else {}
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False, **options)
        config = without_own_implementations(config)
        with torch.device("meta"):
            kind = type(kind.from_config(config, trust_remote_code=False))
        model, report = kind.from_pretrained(
            None,
            state_dict={name: AsStored(tensor) for name, tensor in files.tensors.items()},
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:  # transformers raises any exception on invalid values
        raise CannotVerify(first_line(error)) from error
    finally:
        logging.set_verbosity(verbosity)
    heads = {"drawn": ("score.weight",), "left_out": HEADS} if is_classifier else {}
    require_all_weights(report, directory, model.config, **heads)
    return model.eval()


def _rms(tensor: torch.Tensor) -> float:
    return tensor.float().pow(2).mean().sqrt().item()
