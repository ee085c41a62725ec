"""Binds each rank to the cores of its device's NUMA node: from another socket, access to the device is slower."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ascendtune.job.rank import CORES
from ascendtune.job.spec import JobSpec
from ascendtune.machine.host import numa_nodes
from ascendtune.machine.vendor.find import vendor_of
from ascendtune.machine.visible import attached

_OTHER_BINDER = "CPU_AFFINITY_CONF"
"""torch_npu's own variable, which binds single threads: if it is set, the user's choice is kept."""


def numa_binding(
    spec: JobSpec,
    user: Mapping[str, str],
    *,
    near: Callable[[Sequence[str]], list[set[int]]] | None = None,
    root: Path = Path("/"),
) -> dict[str, str]:
    """The variable with the cores of each rank; empty with one NUMA node, on CPUs, or if the user has set cores.

    Args:
        near: returns the cores that are near devices, given as values of the visibility variable (default: from the
            vendor's information).
    """
    vendor = vendor_of(spec.kind)
    if not vendor.is_accelerator or len(numa_nodes(root)) < 2 or CORES in user or _OTHER_BINDER in user:
        return {}
    allowed = os.sched_getaffinity(0)
    # Cores to which the user has bound the command are kept.
    parts = [_written(cores & allowed) for cores in (near or vendor.near_cores)(_ids(spec, user, root / "dev"))]
    return {CORES: ";".join(parts)} if any(parts) else {}


def _ids(spec: JobSpec, user: Mapping[str, str], dev: Path) -> list[str]:
    """The devices of the ranks; only those that the runtime shows to them, as it may hide some that the user names."""
    named = spec.device_ids or attached(vendor_of(spec.kind), user, dev)
    return list(named[: spec.nproc]) or [str(number) for number in range(spec.nproc)]


def _written(cores: set[int]) -> str:
    """{0, 1, 2, 8} as "0-2,8"."""
    ranges: list[list[int]] = []
    for core in sorted(cores):
        if ranges and core == ranges[-1][1] + 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
