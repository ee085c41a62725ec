"""Does the merged model compute the same as base and adapter? Asked on a few tokens, in fp32, through PEFT.

Rounding the merged weights to half precision can move logits as far as a small adapter does. So two questions are
asked: do the weights, before they are rounded, do what the adapter does, to the last digits of fp32; and how much of it
does rounding leave. That the files hold these weights, rounded to the nearest, is checked number by number.
"""

from __future__ import annotations

import math
import re
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from ascendtune.core.errors import CheckFailed
from ascendtune.core.foreign_json import first_line
from ascendtune.core.units import format_bytes
from ascendtune.hub.adapter_files import weight_in_files
from ascendtune.hub.loaded_weights import HEADS, require_all_weights, without_own_implementations
from ascendtune.hub.lora_adapter import Adapter
from ascendtune.hub.weight_files import read_weight_headers
from ascendtune.merge.arithmetic import DTYPES, Merger
from ascendtune.merge.mapped import AsStored, Change, MappedFiles, NotInFp32, in_fp32
from ascendtune.merge.output import MergePlan, Output, Progress
from ascendtune.merge.source import Base

_ROUNDED = {"F16": "fp16", "BF16": "bf16"}
# Of a tensor's largest number: what the order of additions in fp32 may do to another one.
_SLACK = 1e-6
_BLOCK = 1 << 18
"""Numbers compared at a time."""
_INTEGERS = (torch.int64, torch.int32, torch.int16)


def rounded_outputs(plan: MergePlan) -> dict[str, Output]:
    """Tensors that are computed in fp32 and written in half precision, by name."""
    outputs = (each for shard in plan.shards.values() for each in shard)
    return {each.name: each for each in outputs if each.is_changed and each.dtype in _ROUNDED}


def rounded_types(plan: MergePlan) -> str:
    """What tensors are rounded to, e.g. `bf16`; empty where none is."""
    return " and ".join(sorted({_ROUNDED[each.dtype] for each in rounded_outputs(plan).values()}))


class ExactWeights:
    """What the merged files hold before it was rounded, computed again for each weight of the model when it is used."""

    def __init__(self, model: Any, plan: MergePlan) -> None:
        """
        Args:
            model: loaded from the merged files.
        """
        self._plan, self._merger = plan, Merger(plan.layout)
        self._outputs: dict[str, list[tuple[Output, tuple[int, int] | None]]] = {}
        changed = rounded_outputs(plan)
        left = dict(changed)
        for name, _ in model.named_parameters():
            found = weight_in_files(name, changed) or (plan.layout.name_of(name) if plan.layout else None)
            if found in changed and not changed[found].experts:
                rows = plan.layout.rows_of(name) if plan.layout else None
                self._outputs[name] = [(changed[found], rows)]
                left.pop(found, None)
        for name in [name for name, output in left.items() if output.experts]:
            output = left.pop(name)
            self._outputs.setdefault(output.experts[0].piece.parameter, []).append((output, None))
        self._unchecked = set(self._outputs)
        self.left = list(left)
        """Tensors of the files whose names are not parameters of the model; they stay rounded."""

    def put(self, name: str, stored: torch.Tensor, target: torch.Tensor) -> bool:
        """Put what the weight `name` is before it is rounded into `target`; False where it was not rounded.

        Args:
            stored: (*shape,) of the weight in the file, in its type.
            target: (*shape,) fp32.

        Raises:
            CheckFailed: a file holds other numbers than those, rounded to the nearest.
        """
        self._unchecked.discard(name)
        outputs = self._outputs.get(name, [])
        if len(outputs) == 1 and _is_whole(stored, *outputs[0]):
            # Computed in its place; compared in half precision, which is half of the bytes.
            output = outputs[0][0]
            exact = self._merger.compute(replace(output, dtype="F32"), into=target)
            _require_rounded(stored, exact, output, self._plan)
            return True
        if outputs:
            target.copy_(stored)
        for output, rows in outputs:
            expert = output.experts[0].piece.expert if output.experts else None
            _put(target if expert is None else target[expert], self._merger, output, self._plan, rows)
        return bool(outputs)

    def check_others(self, model: Any) -> None:
        """The same for weights that no token has used.

        Raises:
            CheckFailed: a file holds other numbers than those, rounded to the nearest.
        """
        for name, parameter in model.named_parameters():
            if name in self._unchecked:
                self.put(name, parameter.data, torch.empty(parameter.shape))


def _put(
    target: torch.Tensor, merger: Merger, output: Output, plan: MergePlan, rows: tuple[int, int] | None = None
) -> None:
    """Put into `target`, a parameter or one expert of it, what `output` is before it is rounded.

    Args:
        rows: of `output`, where `target` is a part of it.
    """
    exact = merger.compute(replace(output, dtype="F32"))
    if rows is not None:
        exact = exact[slice(*rows)]
    flat, positions = target.view(-1, 1), None
    if output.experts:
        assert plan.layout is not None
        positions = plan.layout.positions(output.experts[0].piece)
        # Experts lie behind each other, alike: (experts, numbers of one).
        flat = target.view(-1, math.prod(plan.layout.shape(output.experts[0].piece.parameter)[1:]))
        exact = exact.reshape(len(flat), -1)
    stored = flat[:, positions.flatten()] if positions is not None else target
    _require_rounded(stored, exact, output, plan)
    if positions is not None:
        flat[:, positions.flatten()] = exact
    else:
        target.copy_(exact)


def _is_whole(stored: torch.Tensor, output: Output, rows: tuple[int, int] | None) -> bool:
    """Whether `stored`, a weight of the model, is `output` of the files itself, neither a part nor a stack."""
    return rows is None and not output.experts and tuple(stored.shape) == output.shape


def _require_rounded(stored: torch.Tensor, exact: torch.Tensor, output: Output, plan: MergePlan) -> None:
    """Raise unless `stored`, in the type of the files or in fp32, is `exact`, fp32, rounded to the type of `output`.

    Raises:
        CheckFailed: it has another shape or other numbers.
    """
    if not _is_rounded(stored, exact, DTYPES[output.dtype]):
        raise CheckFailed(
            f"{output.name} in the merged files is not base plus adapter, rounded to {output.dtype}; the result was "
            "removed",
            code="merge-differs",
            remedy="merge again; if the error remains, check disk and memory of this machine, then report a bug",
            where=plan.base.directory,
        )


def _have_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors, any shape, of one shape and type, hold the same bits."""
    numbers = [each.contiguous().flatten() for each in (one, other)]
    # The fewer integers, the sooner they are compared. A part of a tensor may begin at any number.
    lengths = [count * one.dtype.itemsize for each in numbers for count in (each.storage_offset(), each.numel())]
    integer = next(each for each in _INTEGERS if all(length % each.itemsize == 0 for length in lengths))
    return torch.equal(numbers[0].view(integer), numbers[1].view(integer))


def _is_rounded(stored: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether `stored`, in fp32 or in `dtype`, is `exact`, any shape, fp32, rounded to `dtype`."""
    if stored.shape != exact.shape:
        return False
    # In blocks, which fit into a core's cache; no second tensor of this size is made.
    rows = max(1, _BLOCK // max(1, exact[:1].numel()))
    for one, other in zip(stored.split(rows), exact.split(rows), strict=True):
        rounded = other.to(dtype)
        if not _have_same_bits(one, rounded.to(one.dtype)):
            # A number halfway between two may go either way when fp32 adds in another order.
            slack = _SLACK * exact.abs().max()
            if not ((one.float() - other).abs() <= (rounded.float() - other).abs() + slack).all():
                return False
    return True


# The layer of a tensor, by its name; and a tensor of one expert, of which transformers makes one with the others.
_LAYER = re.compile(r".*?\.\d+\.")
_ONE_EXPERT = re.compile(r"\.experts\.\d+\.")
_TOKENS, _TOKENS_OF_EXPERTS = 3, 16
"""Multiplying by 3 tokens takes as long as reading the weights, by 8 almost three times as long. With experts, more
tokens reach more of them."""
_DOING = "comparing with base and adapter"
# Of the size of the logits. In fp32 only the order of additions differs, which is 1e-6 to 1e-5.
_TOLERANCE = 1e-4
# An effect of fewer tolerances is too small for a part of it that is missing to be found.
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
        """Whether the adapter does enough for `agrees` to say something."""
        return self.effect >= _DISCERNIBLE * self.tolerance

    @property
    def lost(self) -> float:
        """Share of the adapter's effect that rounding took."""
        return min(self.difference / self.effect, 1.0) if self.effect else 0.0


class CannotVerify(Exception):
    """The comparison is not possible; the merge itself may be correct."""


def verify(plan: MergePlan, merged: Path, progress: Progress) -> Verification:
    """Compare logits; a block of one model is in memory at a time.

    Raises:
        CannotVerify: too little memory, or the model needs code of its own.
        CheckFailed: the files do not hold what was computed.
    """
    began = time.perf_counter()
    _require_memory(plan)
    ids = _tokens(plan.base)
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            progress(_DOING, 0, 2)
            adapted, base = _ask_adapter(plan, ids)
            progress(_DOING, 1, 2)
            exact, rounded = _ask_merged(plan, merged, ids)
    except NotInFp32 as error:
        raise CannotVerify(str(error)) from error
    scale = _rms(adapted)
    # New tokens are the adapter's own: the base has no logits for them.
    known = min(base.shape[-1], adapted.shape[-1])
    return Verification(
        tokens=ids.numel(),
        error=_rms(exact - adapted) / scale,
        difference=_rms(rounded - adapted) / scale,
        effect=_rms(base[..., :known] - adapted[..., :known]) / scale,
        tolerance=_TOLERANCE,
        seconds=time.perf_counter() - began,
    )


def _require_memory(plan: MergePlan) -> None:
    tensors = [item for file in plan.base.files.values() for item in file.tensors.items()]
    layers: dict[str, int] = {}
    for name, tensor in tensors:
        layer = found.group() if (found := _LAYER.match(name)) else name
        layers[layer] = layers.get(layer, 0) + torch.Size(tensor.shape).numel()
    # One tensor at a time is computed again and compared: it, its change and what lies between.
    largest = max((torch.Size(each.shape).numel() for each in rounded_outputs(plan).values()), default=0)
    needed = 4 * (max(layers.values(), default=0) + 5 * largest)
    needed += sum(tensor.size for adapter in plan.adapters for tensor in adapter.file.tensors.values())
    needed += sum(tensor.size for name, tensor in tensors if _ONE_EXPERT.search(name))
    available = psutil.virtual_memory().available
    if available < needed:
        raise CannotVerify(f"it takes {format_bytes(needed)} of memory, {format_bytes(available)} are available")


def _tokens(base: Base) -> torch.Tensor:
    text = base.config.get("text_config") or base.config
    has_experts = any(".experts." in name for file in base.files.values() for name in file.tensors)
    count = _TOKENS_OF_EXPERTS if has_experts else _TOKENS
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, int(text.get("vocab_size", 256)), (1, count), generator=generator)


def _ask_adapter(plan: MergePlan, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of base with adapters, and of the base alone."""
    from peft import PeftModel

    files = MappedFiles(plan.base.files.values())
    model = _load(plan, plan.base.directory, files)
    base = _logits(model, files, ids)
    rows = _rows(plan)
    if rows is not None and rows > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(rows, mean_resizing=False)
    # PEFT writes the adapter's numbers into these; what is written into a mapped page would be lost.
    overwritten = set[str]().union(*(adapter.whole_base for adapter in plan.adapters))
    for name, parameter in model.named_parameters():
        if name in overwritten:
            parameter.data = parameter.data.to(torch.float32, copy=True)
    first, *others = plan.adapters
    try:
        tuned = PeftModel.from_pretrained(model, first.directory, adapter_name="0")
        for number, adapter in enumerate(others, 1):
            tuned.load_adapter(adapter.directory, str(number))
    except Exception as error:  # PEFT raises what its classes happen to raise on values that cannot be
        raise CannotVerify(f"PEFT cannot load the adapter: {first_line(error)}") from error
    if others or first.weight != 1:
        _combine(tuned, plan.adapters)
    return _logits(tuned.eval(), files, ids), base


def _ask_merged(plan: MergePlan, merged: Path, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the merged weights before they were rounded, and as they are written."""
    files = MappedFiles(read_weight_headers(merged).values())
    model = _load(plan, merged, files)
    rounded = _logits(model, files, ids)
    if not rounded_outputs(plan):
        return rounded, rounded
    exact = ExactWeights(model, plan)
    if exact.left:
        raise CannotVerify(f"the model calls {exact.left[0]} by another name than its files")
    logits = _logits(model, files, ids, exact.put)
    exact.check_others(model)
    return logits, rounded


def _logits(model: Any, files: MappedFiles, ids: torch.Tensor, change: Change | None = None) -> torch.Tensor:
    """(1, tokens, vocabulary) fp32; of a classifier (1, labels).

    Args:
        ids: (1, tokens) int64.
        change: as `in_fp32` takes it.

    Raises:
        CannotVerify: the model uses a weight outside the module that holds it.
    """
    try:
        with in_fp32(model, files, change):
            logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    except RuntimeError as error:
        raise CannotVerify(f"the model does not compute block by block: {first_line(error)}") from error
    return logits


def _combine(tuned: Any, adapters: list[Adapter]) -> None:
    names = [str(number) for number in range(len(adapters))]
    tuned.base_model.set_adapter(names)
    for module in tuned.modules():
        if hasattr(module, "set_scale"):
            for name, adapter in zip(names, adapters, strict=True):
                module.set_scale(name, adapter.weight)


def _rows(plan: MergePlan) -> int | None:
    shapes = [each.shape for shard in plan.shards.values() for each in shard if each.name == plan.base.table]
    return shapes[0][0] if shapes else None


def _load(plan: MergePlan, directory: Path, files: MappedFiles) -> Any:
    """The model in `directory`, its weights those of `files`, mapped, in their own dtypes."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification
    from transformers.utils import logging

    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    architectures = plan.config.get("architectures") or [""]
    is_classifier = architectures[0].endswith("ForSequenceClassification")
    kind = AutoModelForSequenceClassification if is_classifier else AutoModelForCausalLM
    # A config that says nothing means transformers' own number, two; the base of a new head has no labels yet.
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
    except Exception as error:  # transformers raises what its classes happen to raise on values that cannot be
        raise CannotVerify(first_line(error)) from error
    finally:
        logging.set_verbosity(verbosity)
    heads = {"drawn": ("score.weight",), "left_out": HEADS} if is_classifier else {}
    require_all_weights(report, directory, model.config, **heads)
    return model.eval()


def _rms(tensor: torch.Tensor) -> float:
    return tensor.float().pow(2).mean().sqrt().item()
