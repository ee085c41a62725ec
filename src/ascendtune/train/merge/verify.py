"""Does the merged model say the same as base and adapter? Asked on a few tokens, in fp32, through PEFT."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from ascendtune.core.units import format_bytes
from ascendtune.train.merge.adapter import Adapter
from ascendtune.train.merge.base import Base
from ascendtune.train.merge.plan import Plan

Progress = Callable[[str, int, int], None]

_TOKENS = 16
_DOING = "comparing with base and adapter"
# What rounding every weight once may do to logits; fp32 is a matter of the order of additions.
_TOLERANCE = {"F64": 1e-3, "F32": 1e-3, "F16": 2e-2, "BF16": 1e-1}


@dataclass(frozen=True)
class Verification:
    """Differences are root mean squares of logits, relative to those of base and adapter."""

    tokens: int
    difference: float
    """Between the merged model and base with adapter."""
    effect: float | None
    """Between the base alone and base with adapter; None where the base alone cannot be asked."""
    tolerance: float
    seconds: float

    @property
    def agrees(self) -> bool:
        return self.difference <= self.tolerance

    @property
    def lost(self) -> float | None:
        """Share of the adapter's effect that rounding took."""
        return self.difference / self.effect if self.effect else None


class CannotVerify(Exception):
    """Why nothing could be asked; the merge itself is not in doubt."""


def verify(plan: Plan, merged: Path, progress: Progress) -> Verification:
    """Compare logits; one model is in memory at a time.

    Raises:
        CannotVerify: too little memory, or the model needs code of its own.
    """
    began = time.perf_counter()
    _require_memory(plan)
    ids = _tokens(plan.base)
    with warnings.catch_warnings(action="ignore"), torch.inference_mode():
        progress(_DOING, 0, 2)
        adapted, base = _ask_adapter(plan, ids)
        progress(_DOING, 1, 2)
        result = _load(plan, merged)(input_ids=ids).logits
    scale = _rms(adapted)
    return Verification(
        tokens=ids.numel(),
        difference=_rms(result - adapted) / scale,
        effect=_rms(base - adapted) / scale if base is not None else None,
        tolerance=max(
            _TOLERANCE[each.dtype] for shard in plan.shards.values() for each in shard if each.dtype in _TOLERANCE
        ),
        seconds=time.perf_counter() - began,
    )


def _require_memory(plan: Plan) -> None:
    counts = [tensor.shape for file in plan.base.files.values() for tensor in file.tensors.values()]
    needed = 4 * sum(torch.Size(shape).numel() for shape in counts) + sum(
        tensor.size for adapter in plan.adapters for tensor in adapter.file.tensors.values()
    )
    available = psutil.virtual_memory().available
    if available < needed:
        raise CannotVerify(f"it takes {format_bytes(needed)} of memory, {format_bytes(available)} are available")


def _tokens(base: Base) -> torch.Tensor:
    text = base.config.get("text_config") or base.config
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, int(text.get("vocab_size", 256)), (1, _TOKENS), generator=generator)


def _ask_adapter(plan: Plan, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Logits of base with adapters, and of the base alone."""
    from peft import PeftModel

    model = _load(plan, plan.base.directory)
    rows = _rows(plan)
    has_grown = rows is not None and rows > model.get_input_embeddings().weight.shape[0]
    if has_grown:
        model.resize_token_embeddings(rows, mean_resizing=False)
    first, *others = plan.adapters
    tuned = PeftModel.from_pretrained(model, first.directory, adapter_name="0")
    for number, adapter in enumerate(others, 1):
        tuned.load_adapter(adapter.directory, str(number))
    if others or first.weight != 1:
        _combine(tuned, plan.adapters)
    tuned.eval()
    adapted = tuned(input_ids=ids).logits
    # New rows are the adapter's own: without it there is no such base.
    if has_grown:
        return adapted, None
    with tuned.disable_adapter():
        return adapted, tuned(input_ids=ids).logits


def _combine(tuned: Any, adapters: list[Adapter]) -> None:
    names = [str(number) for number in range(len(adapters))]
    tuned.base_model.set_adapter(names)
    for module in tuned.modules():
        if hasattr(module, "set_scale"):
            for name, adapter in zip(names, adapters, strict=True):
                module.set_scale(name, adapter.weight)


def _rows(plan: Plan) -> int | None:
    shapes = [each.shape for shard in plan.shards.values() for each in shard if each.name == plan.base.table]
    return shapes[0][0] if shapes else None


def _load(plan: Plan, directory: Path) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
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
        model = kind.from_pretrained(directory, dtype=torch.float32, use_safetensors=True, **options)
    except (ValueError, ImportError) as error:
        raise CannotVerify(str(error).strip().splitlines()[0]) from error
    finally:
        logging.set_verbosity(verbosity)
    return model.eval()


def _rms(tensor: torch.Tensor) -> float:
    return tensor.float().pow(2).mean().sqrt().item()
