"""Which cores are near which device: npu-smi tells for NPUs, the kernel for GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ascendtune.machine.cuda import gpus
from ascendtune.machine.npu.smi import NpuSmi
from ascendtune.machine.npu.topology import cores_of
from ascendtune.machine.visible import Kind


def near_cores(kind: Kind, ids: Sequence[str], root: Path = Path("/")) -> list[set[int]]:
    """The cores on the NUMA node of each device; an empty set where nobody tells.

    Args:
        ids: as the kind's visibility variable takes them.
        root: where the kernel's files lie.
    """
    if kind == "npu":
        return _near_npus(ids)
    if kind == "cuda":
        return _near_gpus(ids, root)
    return [set() for _ in ids]


def _near_npus(ids: Sequence[str]) -> list[set[int]]:
    topology = NpuSmi().topology()
    if topology is None:
        return [set() for _ in ids]
    # The lines stand in the order of the logical ids.
    cores = {str(index): cores_of(topology.cores.get(npu, "")) for index, npu in enumerate(topology.npus)}
    return [cores.get(each, set()) for each in ids]


def _near_gpus(ids: Sequence[str], root: Path) -> list[set[int]]:
    found: dict[str, set[int]] = {}
    for gpu in gpus()[0]:
        # NVIDIA writes the domain with eight digits, the kernel with four.
        place = (gpu.bus_id or "").lower()[-12:]
        try:
            found[str(gpu.phy_id)] = cores_of((root / "sys/bus/pci/devices" / place / "local_cpulist").read_text())
        except OSError:
            found[str(gpu.phy_id)] = set()
    return [found.get(each, set()) for each in ids]
