"""What is published about the speed of the links between devices. What is not is unknown, never guessed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from ascendtune.machine.npu.smi import NpuSmi
from ascendtune.machine.visible import Kind

_HCCS_LINK = 56e9
"""Bytes per second between two 910B of a server in which each is linked to each. Not a figure of Huawei's: it is the
one-to-one maximum in arthurchiao.art, "GPU Performance (Data Sheets) Quick Reference" (one to seven: 392), which does
not say whether both directions are counted."""
_HCCS_CHIP = "910B"


@dataclass(frozen=True)
class Peak:
    """`what`: where the figure comes from, or why there is none."""

    bytes_per_second: float | None
    what: str


def link_peak(kind: Kind, ids: Sequence[str], *, smi: NpuSmi | None = None) -> Peak:
    """Of one link between two of these devices.

    Args:
        ids: as the kind's visibility variable takes them.
        smi: npu-smi, when `kind` needs it (default: this machine's).
    """
    if kind == "npu":
        return _between_npus(ids, smi or NpuSmi())
    if kind == "cpu":
        return Peak(None, "between processes of one host there is no link with a published speed")
    return Peak(None, "no published speed of the links between these GPUs is known here")


def _between_npus(ids: Sequence[str], smi: NpuSmi) -> Peak:
    topology = smi.topology()
    if topology is None:
        return Peak(None, "npu-smi does not tell the topology")
    wanted = [int(name) for name in ids if name.isdecimal()]
    if len(wanted) < len(ids) or any(number >= len(topology.npus) for number in wanted):
        return Peak(None, f"the topology does not show the NPUs {', '.join(ids)}")
    npus = [topology.npus[number] for number in wanted]
    ways = sorted({topology.links.get(pair, "NA") for pair in combinations(npus, 2)})
    chips = {device.name for device in smi.info().devices}
    if ways == ["HCCS"] and chips and all(name and name.startswith(_HCCS_CHIP) for name in chips):
        return Peak(_HCCS_LINK, "HCCS of the 910B, as reported in public")
    return Peak(None, f"no published speed of {', '.join(ways)} between these NPUs is known here")
