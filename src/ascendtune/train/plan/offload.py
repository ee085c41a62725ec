"""The traffic of offloading in a step, and its duration. Free of torch.

Copies between host and device overlap with computation, as collectives do; the update on the host does not:

    seconds = max(0, copies of micro-batches - 0.9 · computation) + copies of the step + update
    update  = bytes of all ranks of a host / bandwidth of its memory
"""

from __future__ import annotations

from dataclasses import dataclass

from ascendtune.core.units import format_bytes

LINK_SHARE = 0.7
"""Share of the published bandwidth of an accelerator's links that is reached: all-gather of 2 to 8 measures 0.57 to
0.78 (docs/plan.md). The link to the host has not been measured."""
HIDING_SHARE = 0.9
"""Share of the overlapping computation that hides a collective or copy: the first and the last are not hidden."""
_HOST_BYTES_PER_SECOND = (40e9, 75e9, 150e9)
"""Low, expected and high rate at which all ranks of a host together read and write in an update: an assumption. Steps
of Qwen2.5-3B on two A100 with the optimizer on a host of 128 cores take 2.4 s with ranks bound to cores and 3.1 s
without (https://github.com/microsoft/DeepSpeed/pull/7474): 124 GB, and the computation."""


@dataclass(frozen=True)
class Offload:
    """Traffic of one rank, in bytes."""

    copied_of_micro_batch: int = 0
    """Copied between host and device, in both directions together, for each micro-batch."""
    copied_of_step: int = 0
    """Copied between host and device once a step."""
    updated: int = 0
    """Read and written in host memory by clipping and optimizer, each step."""
    on_disk: int = 0
    """Read from and written to a disk, each step of one micro-batch."""
    activations: bool = False
    """Whether activations are offloaded; their bytes are not counted here."""


@dataclass(frozen=True)
class OffloadSeconds:
    """Durations within a step."""

    copies: float
    exposed: float
    """Part of the copies that computation does not hide."""
    update: tuple[float, float, float]
    """With high, expected and low bandwidth."""
    notes: tuple[str, ...]
    """Sentences about traffic that is not counted."""


def offload_seconds(
    offload: Offload, *, micro_batches: int, compute: float, ranks_of_host: int, link: float | None
) -> OffloadSeconds:
    """The additional time of a step.

    Args:
        compute: seconds of the step's computation.
        link: published bytes per second between host and device in one direction; None if not public.
    """
    notes = []
    copies = exposed = 0.0
    if link is not None:
        of_micro_batches, of_step = (
            each / (LINK_SHARE * link)
            for each in (micro_batches * offload.copied_of_micro_batch, offload.copied_of_step)
        )
        copies = of_micro_batches + of_step
        exposed = max(0.0, of_micro_batches - HIDING_SHARE * compute) + of_step
    elif offload.copied_of_micro_batch or offload.copied_of_step:
        notes.append("the bandwidth between host and device is not public: copies for offloading are not counted")
    if offload.on_disk:
        notes.append(
            f"reading and writing {format_bytes(offload.on_disk)} on the disk for each rank and step is not counted: "
            "divide it by the speed that `ascendtune doctor` measures there"
        )
    if offload.activations:
        notes.append("copies of activations to host memory and back are not counted: a step takes longer")
    update = tuple(ranks_of_host * offload.updated / each for each in reversed(_HOST_BYTES_PER_SECOND))
    return OffloadSeconds(copies, exposed, (update[0], update[1], update[2]), tuple(notes))
