"""The merged model before it was rounded: what a comparison with the adapter can be held to."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from ascendtune.core.errors import CheckFailed
from ascendtune.hub.adapter_files import weight_in_files
from ascendtune.merge.arithmetic import DTYPES, Merger
from ascendtune.merge.output import Output
from ascendtune.merge.plan import Plan

_ROUNDED = {"F16": "fp16", "BF16": "bf16"}
# Of a tensor's largest number: what the order of additions in fp32 may do to another one.
_SLACK = 1e-6


def rounded_outputs(plan: Plan) -> dict[str, Output]:
    """Tensors that are computed in fp32 and written in half precision, by name."""
    outputs = (each for shard in plan.shards.values() for each in shard)
    return {each.name: each for each in outputs if each.is_changed and each.dtype in _ROUNDED}


def rounded_types(plan: Plan) -> str:
    """What tensors are rounded to, e.g. `bf16`; empty where none is."""
    return " and ".join(sorted({_ROUNDED[each.dtype] for each in rounded_outputs(plan).values()}))


def unround(model: Any, plan: Plan) -> list[str]:
    """Put into `model`, loaded in fp32 from the merged files, what they hold before it was rounded.

    Returns:
        Tensors of the files that are no parameter of the model by their name, and stay rounded.

    Raises:
        CheckFailed: a file holds other numbers than those, rounded to the nearest.
    """
    left, merger = rounded_outputs(plan), Merger(plan.layout)
    for name, parameter in model.named_parameters():
        found = weight_in_files(name, left) or (plan.layout.name_of(name) if plan.layout else None)
        if found in left and not left[found].experts:
            output = left.pop(found)
            _put(parameter.data, merger, output, plan)
    parameters = dict(model.named_parameters())
    for name in [name for name, output in left.items() if output.experts]:
        output = left.pop(name)
        piece = output.experts[0].piece
        target = parameters[piece.parameter].data
        _put(target if piece.expert is None else target[piece.expert], merger, output, plan)
    return list(left)


def _put(target: torch.Tensor, merger: Merger, output: Output, plan: Plan) -> None:
    """Put into `target`, a parameter or one expert of it, what `output` is before it is rounded."""
    exact = merger.compute(replace(output, dtype="F32"))
    flat, positions = target.view(-1, 1), None
    if output.experts:
        assert plan.layout is not None
        positions = plan.layout.positions(output.experts[0].piece)
        # Experts lie behind each other, alike: (experts, numbers of one).
        flat = target.view(-1, math.prod(plan.layout.shape(output.experts[0].piece.parameter)[1:]))
        exact = exact.reshape(len(flat), -1)
    stored = flat[:, positions.flatten()] if positions is not None else target
    if not _is_nearest(stored, exact, DTYPES[output.dtype]):
        raise CheckFailed(
            f"{output.name} in the merged files is not base and adapter, rounded to {output.dtype}; nothing was kept",
            remedy="merge again; if it stays, the disk or the memory of this machine is at fault, or ascendtune is",
            where=plan.base.directory,
        )
    if positions is None:
        target.copy_(exact)
    else:
        flat[:, positions.flatten()] = exact


def _is_nearest(stored: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> bool:
    if stored.shape != exact.shape:
        return False
    rounded = exact.to(dtype).float()
    if torch.equal(stored, rounded):
        return True
    # A number halfway between two may go either way when fp32 adds in another order.
    slack = _SLACK * exact.abs().max()
    return bool(((stored - exact).abs() <= (rounded - exact).abs() + slack).all())
