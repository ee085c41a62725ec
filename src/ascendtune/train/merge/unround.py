"""The merged model before it was rounded: what a comparison with the adapter can be held to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ascendtune.core.errors import FoundWrong
from ascendtune.train.merge.arithmetic import DTYPES, Merger
from ascendtune.train.merge.base import find_name
from ascendtune.train.merge.output import Output
from ascendtune.train.merge.plan import Plan

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
        FoundWrong: a file holds other numbers than those, rounded to the nearest.
    """
    left, merger = rounded_outputs(plan), Merger()
    for name, parameter in model.named_parameters():
        found = find_name(name, left)
        if found is None:
            continue
        output = left.pop(found)
        exact = merger.compute(replace(output, dtype="F32"))
        if not _is_nearest(parameter.data, exact, DTYPES[output.dtype]):
            raise FoundWrong(
                f"{found} in the merged files is not base and adapter, rounded to {output.dtype}; nothing was kept",
                remedy="merge again; if it stays, the disk or the memory of this machine is at fault, or ascendtune is",
                where=plan.base.directory,
            )
        parameter.data.copy_(exact)
    return list(left)


def _is_nearest(stored: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> bool:
    if stored.shape != exact.shape:
        return False
    rounded = exact.to(dtype).float()
    if torch.equal(stored, rounded):
        return True
    # A number halfway between two may go either way when fp32 adds in another order.
    slack = _SLACK * exact.abs().max()
    return bool(((stored - exact).abs() <= (rounded - exact).abs() + slack).all())
