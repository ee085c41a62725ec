"""Hashes of the weights at the start of a training: of their values, not of files."""

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
    """`weights` of start_weights.json: a hash for each parameter by plain name, and one of all. Every rank calls it.

    The hashes do not depend on the storage dtype or on sharding. Full copies of parameters on different ranks should
    be equal but may not be: `ranks` has the hash of all for each rank.

    Args:
        gather: returns the numbers (signed 64 bits) of all ranks for those of this rank.
        whole: returns the full tensor, any shape, of a parameter that is sharded, but not a DTensor.
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

    Quantised weights, which are not parameters, are represented by their layers.
    """
    named: dict[str, nn.Parameter | Nf4Linear] = dict(model.named_parameters(remove_duplicate=False))
    named |= {f"{name}.weight": each for name, each in model.named_modules() if isinstance(each, Nf4Linear)}
    parameters = {name: each for name, each in named.items() if "original_module" not in name.split(".")}
    names = {each: name for name, each in reversed(parameters.items())}
    return {plain_name(name): each for name, each in parameters.items() if names[each] == name}


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
    # torch shards rows as `torch.chunk` does.
    rows = -(-parameter.shape[0] // parameter.device_mesh.size(-1))
    before = min(rows * parameter.device_mesh.get_local_rank(len(copies)), parameter.shape[0])
    return checksum(parameter.to_local(), offset=before * math.prod(parameter.shape[1:]))


def _holders(parameter: nn.Parameter | Nf4Linear, rank: int) -> list[int]:
    """The ranks with the shards of that copy of which `rank` has one; empty if it has the full tensor."""
    if not isinstance(parameter, DTensor):
        return []
    copies = parameter.device_mesh.mesh.reshape(-1, parameter.device_mesh.size(-1)).tolist()
    return next(ranks for ranks in copies if rank in ranks)


def _over_all(hashes: dict[str, str]) -> str:
    """A hash of all hashes that does not depend on the order of parameters."""
    text = "".join(f"{name} {hashes[name]}\n" for name in sorted(hashes))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
