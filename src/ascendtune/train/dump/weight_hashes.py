"""Hashes of the weights that a training starts from: of their values, not of files."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from ascendtune.train.dump.checksum import as_hex, checksum
from ascendtune.train.dump.names import plain_name
from ascendtune.train.tuner.quantised_linear import Nf4Linear


def hashes_of_weights(
    model: nn.Module,
    gather: Callable[[list[int]], list[list[int]]],
    whole: Callable[[nn.Parameter], torch.Tensor] | None = None,
) -> dict[str, Any]:
    """`weights` of start_weights.json: a hash for each parameter by plain name, and one over all. Every rank calls it.

    They depend neither on the storage type nor on how parameters are divided among ranks. Whole parameters may differ
    between ranks though they must not: `ranks` has the hash over all of each.

    Args:
        gather: from numbers of this rank, signed with 64 bits, to those of every rank.
        whole: makes the whole of a parameter that is divided otherwise than as a DTensor: any shape.
    """
    parameters = _parameters(model)
    own_parts = (
        checksum(whole(each)) if whole is not None and isinstance(each, nn.Parameter) else _own_part(each)
        for each in parameters.values()
    )
    by_rank = gather(torch.stack(list(own_parts)).tolist())
    ranks = []
    for rank, own in enumerate(by_rank):
        sums = (
            sum(by_rank[holder][position] for holder in holders) if (holders := _holders(each, rank)) else own[position]
            for position, each in enumerate(parameters.values())
        )
        ranks.append({name: as_hex(value) for name, value in zip(parameters, sums, strict=True)})
    return {"hash": _over_all(ranks[0]), "ranks": [_over_all(each) for each in ranks], "parameters": ranks[0]}


def _parameters(model: nn.Module) -> dict[str, nn.Parameter | Nf4Linear]:
    """The parameters by plain name, tied ones once, without the originals of modules that PEFT trains as copies.

    A quantised weight, which is none, is represented by its layer.
    """
    named: dict[str, nn.Parameter | Nf4Linear] = dict(model.named_parameters(remove_duplicate=False))
    named |= {f"{name}.weight": each for name, each in model.named_modules() if isinstance(each, Nf4Linear)}
    found = {name: each for name, each in named.items() if "original_module" not in name.split(".")}
    names = {each: name for name, each in reversed(found.items())}
    return {plain_name(name): each for name, each in found.items() if names[each] == name}


def _own_part(parameter: nn.Parameter | Nf4Linear) -> torch.Tensor:
    if isinstance(parameter, Nf4Linear):
        return checksum(parameter.weight)
    if not isinstance(parameter, DTensor):
        return checksum(parameter)
    *copies, placement = parameter.placements
    if any(not isinstance(each, Replicate) for each in copies):
        raise NotImplementedError(f"weights that are divided as {parameter.placements}")
    if not isinstance(placement, Shard) or placement.dim != 0:
        raise NotImplementedError(f"weights that are divided as {placement}")
    # torch divides rows as `torch.chunk` does.
    rows = -(-parameter.shape[0] // parameter.device_mesh.size(-1))
    before = min(rows * parameter.device_mesh.get_local_rank(len(copies)), parameter.shape[0])
    return checksum(parameter.to_local(), offset=before * math.prod(parameter.shape[1:]))


def _holders(parameter: nn.Parameter | Nf4Linear, rank: int) -> list[int]:
    """The ranks that hold the parts of the copy of which `rank` holds one; empty where it holds the whole."""
    if not isinstance(parameter, DTensor):
        return []
    copies = parameter.device_mesh.mesh.reshape(-1, parameter.device_mesh.size(-1)).tolist()
    return next(ranks for ranks in copies if rank in ranks)


def _over_all(hashes: dict[str, str]) -> str:
    """The same whatever the order of parameters."""
    text = "".join(f"{name} {hashes[name]}\n" for name in sorted(hashes))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
