"""Are the merged files base + adapter, rounded to the nearest? Each number is computed again before it is rounded."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from ascendtune.core.errors import CheckFailed
from ascendtune.hub.adapter_files import weight_in_files
from ascendtune.merge.arithmetic import DTYPES, Merger
from ascendtune.merge.mapped_model import MappedFiles
from ascendtune.merge.merge_plan import MergePlan, Output

_ROUNDED = {"F16": "fp16", "BF16": "bf16"}
# Relative to a tensor's largest number: possible effect of another order of additions in fp32.
_SLACK = 1e-6
_BLOCK = 1 << 18
"""Numbers compared at a time."""
_INTEGERS = (torch.int64, torch.int32, torch.int16)


def rounded_outputs(plan: MergePlan) -> dict[str, Output]:
    """Outputs that are computed in fp32 and written in half precision, by name."""
    outputs = (each for shard in plan.shards.values() for each in shard)
    return {each.name: each for each in outputs if each.is_changed and each.dtype in _ROUNDED}


def rounded_types(plan: MergePlan) -> str:
    """The dtypes to which tensors are rounded, e.g. `bf16`; empty if none is rounded."""
    return " and ".join(sorted({_ROUNDED[each.dtype] for each in rounded_outputs(plan).values()}))


class ExactWeights:
    """The weights of the merged files before rounding, computed again for each weight of the model when it is used."""

    def __init__(self, model: Any, plan: MergePlan) -> None:
        """
        Args:
            model: the model loaded from the merged files.

        Raises:
            NotInFp32: the base is quantised.
        """
        self._plan, self._merger = plan, Merger(plan.layout)
        self._base = MappedFiles(plan.base.files.values())
        self._files = {file.path for file in plan.base.files.values()}
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

    def concern(self, name: str) -> bool:
        """Whether the weight `name` was rounded."""
        return name in self._outputs

    def put(self, name: str, stored: torch.Tensor, target: torch.Tensor) -> None:
        """Write the weight `name` before rounding into `target`.

        Args:
            stored: (*shape,) the weight in the file, in its type.
            target: (*shape,) fp32.

        Raises:
            CheckFailed: a file contains other numbers than these, rounded to the nearest.
        """
        self._unchecked.discard(name)
        outputs = self._outputs[name]
        if len(outputs) == 1 and _is_whole(stored, *outputs[0]) and outputs[0][0].source[0].path in self._files:
            # Computed in `target`; compared in half precision, which is half of the bytes.
            output = outputs[0][0]
            target.copy_(self._base.tensors[output.source[1]])
            self._base.release()
            exact = self._merger.compute(replace(output, dtype="F32"), target)
            if exact is not target:
                target.copy_(exact)
            _require_rounded(stored, target, output, self._plan)
            return
        target.copy_(stored)
        for output, rows in outputs:
            expert = output.experts[0].piece.expert if output.experts else None
            _put(target if expert is None else target[expert], self._merger, output, self._plan, rows)

    def check_others(self, model: Any) -> None:
        """Check weights that no token has used.

        Raises:
            CheckFailed: a file contains other numbers than the exact ones, rounded to the nearest.
        """
        for name, parameter in model.named_parameters():
            if name in self._unchecked:
                self.put(name, parameter.data, torch.empty(parameter.shape))


def _put(
    target: torch.Tensor, merger: Merger, output: Output, plan: MergePlan, rows: tuple[int, int] | None = None
) -> None:
    """Write `output` before rounding into `target`, a parameter or one expert of it.

    Args:
        rows: rows of `output`, if `target` is a part of it.
    """
    exact = merger.compute(replace(output, dtype="F32"))
    if rows is not None:
        exact = exact[slice(*rows)]
    flat, positions = target.view(-1, 1), None
    if output.experts:
        assert plan.layout is not None
        positions = plan.layout.positions(output.experts[0].piece)
        # Experts are stored one after the other, alike: (experts, numbers of one).
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
    """Whether two tensors, any shape, of one shape and type, are bitwise equal."""
    numbers = [each.contiguous().flatten() for each in (one, other)]
    # Fewer integers are compared faster. A part of a tensor may begin at any number.
    lengths = [count * one.dtype.itemsize for each in numbers for count in (each.storage_offset(), each.numel())]
    integer = next(each for each in _INTEGERS if all(length % each.itemsize == 0 for length in lengths))
    return torch.equal(numbers[0].view(integer), numbers[1].view(integer))


def _is_rounded(stored: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether `stored`, in fp32 or in `dtype`, is `exact`, any shape, fp32, rounded to `dtype`."""
    if stored.shape != exact.shape:
        return False
    # In blocks, which fit into a core's cache; no second tensor of this size is created.
    rows = max(1, _BLOCK // max(1, exact[:1].numel()))
    for one, other in zip(stored.split(rows), exact.split(rows), strict=True):
        rounded = other.to(dtype)
        if not _have_same_bits(one, rounded.to(one.dtype)):
            # A number halfway between two may be rounded either way if fp32 adds in another order.
            slack = _SLACK * exact.abs().max()
            if not ((one.float() - other).abs() <= (rounded.float() - other).abs() + slack).all():
                return False
    return True
