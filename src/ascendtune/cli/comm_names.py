"""Names of collectives and dtypes on the command line: what a shell completes, and what was meant."""

from __future__ import annotations

from collections.abc import Collection

from ascendtune.core.errors import InputError
from ascendtune.core.suggest import closest

_OTHER_NAMES = {
    "fp64": "float64", "double": "float64", "fp32": "float32", "float": "float32", "fp16": "float16",
    "half": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn", "float8": "float8_e4m3fn", "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2", "long": "int64", "int": "int32", "short": "int16", "byte": "uint8", "boolean": "bool",
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all", "sendrecv": "send_recv", "sendreceive": "send_recv", "bcast": "broadcast",
}  # fmt: skip
"""What a neighbour calls it, without marks between words -> torch's name."""


def known(names: Collection[str], given: list[str] | None, what: str) -> list[str]:
    """The given names, or all.

    Raises:
        InputError: there is no such name; says the nearest.
    """
    for name in given or ():
        if name not in names:
            usual = _OTHER_NAMES.get(name.lower().replace("_", "").replace("-", ""))
            near = usual if usual in names else closest(name, names)
            remedy = f"did you mean {near}?" if near else f"choose from {', '.join(names)}"
            raise InputError(f"there is no {what} {name}", remedy=remedy)
    return list(dict.fromkeys(given or names))


def complete_collective(incomplete: str) -> list[str]:
    """Those that `comm bench` measures."""
    from ascendtune.check.comm.collective import COLLECTIVES

    return [name for name in COLLECTIVES if name.startswith(incomplete)]


def complete_tested(incomplete: str) -> list[str]:
    """Those that `comm test` tries."""
    from ascendtune.check.comm.collective import BARRIER, COLLECTIVES

    return [name for name in (*COLLECTIVES, BARRIER) if name.startswith(incomplete)]


def complete_dtype(incomplete: str) -> list[str]:
    from ascendtune.check.comm.dtype import LARGEST_EXACT

    return [name for name in LARGEST_EXACT if name.startswith(incomplete)]
