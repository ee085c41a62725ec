"""What offloading moves in a step, and how long that takes. No torch.

Copies over the link between host and device run beside computation, as collectives do; the update on the host does not:

    seconds = max(0, copies of micro-batches - 0.9 · computation) + copies of the step + update
    update  = bytes of all ranks of a host / bandwidth of its memory
"""

from __future__ import annotations

from dataclasses import dataclass

from ascendtune.core.units import format_bytes

LINK_SHARE = 0.7
"""Of the published bandwidth of an accelerator's links: all-gather of 2 to 8 measures 0.57 to 0.78 (docs/plan.md). The
link to the host has not been measured."""
HIDING_SHARE = 0.9
"""Of the computation that runs beside a collective or a copy, hides it: the first and the last one run alone."""
_HOST_BYTES_PER_SECOND = (40e9, 75e9, 150e9)
"""Low, expected and high of what all ranks of a host read and write together in an update: an assumption. Steps of
Qwen2.5-3B on two A100 with the optimizer on a host of 128 cores take 2.4 s with ranks bound to cores and 3.1 s without
(https://github.com/microsoft/DeepSpeed/pull/7474): 124 GB, and the computation."""


@dataclass(frozen=True)
class Offload:
    """Of one rank, in bytes."""

    copied_of_micro_batch: int = 0
    """Over the link between host and device, in both directions together, for each micro-batch."""
    copied_of_step: int = 0
    """Likewise, once a step."""
    updated: int = 0
    """Read and written in host memory by clipping and optimizer, each step."""
    on_disk: int = 0
    """Read from and written to a disk, each step of one micro-batch."""
    activations: bool = False
    """Whether activations go to the host, which nothing of this counts."""


@dataclass(frozen=True)
class OffloadSeconds:
    """Of a step."""

    copies: float
    exposed: float
    """Of the copies, what computation does not hide."""
    update: tuple[float, float, float]
    """With much, expected and little bandwidth."""
    notes: tuple[str, ...]
    """What is not counted."""


def offload_seconds(
    offload: Offload, *, micro_batches: int, compute: float, ranks_of_host: int, link: float | None
) -> OffloadSeconds:
    """How much longer a step takes.

    Args:
        compute: seconds of the step's computation.
        link: published bytes per second between host and device in one direction, None where it is not public.
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
        notes.append("the bandwidth between host and device is not public: copies for offloading count as nothing")
    if offload.on_disk:
        notes.append(
            f"reading and writing {format_bytes(offload.on_disk)} on the disk for each rank and step is not counted: "
            "divide it by the speed that `ascendtune doctor` measures there"
        )
    if offload.activations:
        notes.append("copies of activations to host memory and back are not counted: a step takes longer than this")
    update = tuple(ranks_of_host * offload.updated / each for each in reversed(_HOST_BYTES_PER_SECOND))
    return OffloadSeconds(copies, exposed, (update[0], update[1], update[2]), tuple(notes))
