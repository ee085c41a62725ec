"""How much device memory a strategy needs, in closed form, and which one `auto` takes. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass

from ascendtune.core.units import format_bytes

COMFORTABLE = 0.7
"""Share of a device's memory that weights, gradients and optimiser state may take; the rest is for activations."""


@dataclass(frozen=True)
class Weights:
    """Numbers of parameters, and bytes of one."""

    all: int
    trained: int
    outside: int
    """Outside the decoder blocks: embeddings, head, final norm."""
    block: int
    """In the largest decoder block."""
    frozen_bytes: int
    trained_bytes: int
    computed_bytes: int
    """Of one as matrix products take it."""


@dataclass(frozen=True)
class Need:
    """Bytes on each device before the first activation."""

    ddp: int
    fsdp: int
    offloaded: int
    """FSDP with everything at rest in host memory."""


def memory_need(weights: Weights, *, states: int, ranks: int) -> Need:
    """What each strategy holds: weights, a gradient for each trained one, and the optimiser's state.

    Args:
        states: tensors of a parameter's size that the optimiser keeps: 2 for AdamW.
    """
    share = weights.trained / weights.all
    frozen = (weights.all - weights.trained) * weights.frozen_bytes
    resting = frozen + weights.trained * weights.trained_bytes * (2 + states)
    # Autocast keeps a copy of what it has cast until the forward pass ends.
    copies = weights.all * weights.computed_bytes if weights.computed_bytes < weights.frozen_bytes else 0
    held = share * weights.trained_bytes + (1 - share) * weights.frozen_bytes
    # Gathered at once: what lies outside the blocks, with its gradient, and two blocks: this one and the next.
    outside = weights.outside * (held * (1 + share) + (weights.computed_bytes if copies else 0))
    blocks = 2 * weights.block * weights.computed_bytes * (1 + share)
    gathered = int(outside + blocks)
    return Need(resting + copies, resting // ranks + gathered, gathered)


def choose_strategy(need: Need, *, memory_bytes: int, ranks: int) -> tuple[str, bool, str]:
    """Name, whether weights go to the host, and the reason as a sentence."""
    limit = int(memory_bytes * COMFORTABLE)
    room = f"{format_bytes(limit)} ({COMFORTABLE:.0%} of the device's {format_bytes(memory_bytes)})"
    whole = f"weights, gradients and optimizer state take {format_bytes(need.ddp)}"
    if need.ddp <= limit:
        return "ddp", False, f"{whole} on each device, which fits into {room}"
    divided = f"{format_bytes(need.fsdp)} when divided among {ranks} devices"
    if need.fsdp <= limit:
        return "fsdp", False, f"{whole}, more than {room}; {divided}"
    return "fsdp", True, f"{whole}, {divided}, both more than {room}; they are kept in host memory"
