"""The place of a host in a super pod (A3), whose hosts HCCS connects, as npu-smi reports it."""

from __future__ import annotations

from dataclasses import dataclass

from ascendtune.machine.npu.number import natural
from ascendtune.machine.npu.versions import read_values


@dataclass(frozen=True)
class SuperPodPlace:
    """`server`: the index of the host in the super pod `pod`, which no other host of it may have."""

    pod: int
    server: int


def read_super_pod(text: str) -> SuperPodPlace | None:
    """The answer of `npu-smi info -t spod-info -i NPU -c CHIP`; None on hosts that are not in a super pod.

    Names as in npu-smi's source (github.com/hicann/driver: print_npu_spod_info).
    """
    values = read_values(text)
    pod, server = natural(values.get("Super Pod ID")), natural(values.get("Server Index"))
    return None if pod is None or server is None else SuperPodPlace(pod, server)
