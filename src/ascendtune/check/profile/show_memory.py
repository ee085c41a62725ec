"""The memory of a profile as text and as plain values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ascendtune.check.profile.kinds import short_name
from ascendtune.check.profile.language import say
from ascendtune.check.profile.memory import CATEGORIES, MemoryOwner, MemoryUse
from ascendtune.core.terminal_text import safe, wrap_words
from ascendtune.core.text_table import indented_table
from ascendtune.core.units import format_bytes

_SHOWN_OWNERS = 6


def memory_as_plain(memory: MemoryUse, steps: int) -> dict[str, Any]:
    """The memory as plain values; all sizes are bytes.

    Args:
        steps: number of profiled steps.
    """
    return {
        "peak_bytes": memory.peak_bytes,
        "peak_phase": memory.peak_phase,
        "peak_step": memory.peak_step,
        "peak_seconds": memory.peak_seconds,
        "at_peak_bytes": memory.peak,
        "held_before_bytes": memory.initial,
        "allocated_bytes": memory.allocated,
        "reserved_bytes": memory.reserved,
        "owners": [asdict(each) for each in memory.owners],
        "steps": steps,
        "curve": {"seconds": memory.seconds, "bytes": memory.curve},
    }


def memory_lines(memory: MemoryUse | None, columns: int, first_step: int | None) -> list[str]:
    """The report on memory for the terminal; empty if no allocation was recorded.

    Args:
        first_step: number of the first profiled step, if known.
    """
    if memory is None:
        return []
    lines = wrap_words(peak_sentence(memory, first_step), columns, "", "  ")
    rows = [
        [say(name), format_bytes(memory.peak[name]), f"{100 * memory.peak[name] / memory.peak_bytes:.1f} %"]
        for name in CATEGORIES
        if memory.peak.get(name)
    ]
    heads = [say(name) for name in ("category", "size", "share")]
    lines += indented_table(heads, rows, columns, right=heads[1:])
    owners = [owner_row(each) for each in memory.owners[:_SHOWN_OWNERS]]
    if owners:
        lines += ["", say("allocated in these steps and held at the peak:")]
        lines += indented_table(owner_heads(), owners, columns, right=owner_heads()[:2])
    return ["", *lines]


def peak_sentence(memory: MemoryUse, first_step: int | None) -> str:
    """A sentence on the size and time of the peak."""
    step = memory.peak_step + (1 if first_step is None else first_step)
    size = format_bytes(memory.peak_bytes)
    text = (
        say("memory: at most {size}, in step {step} ({phase})", size=size, step=step, phase=say(memory.peak_phase))
        if memory.peak_phase
        else say("memory: at most {size}, in step {step}", size=size, step=step)
    )
    if memory.reserved is None:
        return text
    reserved = say("the allocator has reserved {size}", size=format_bytes(memory.reserved))
    return say("{one}; {other}", one=text, other=reserved)


def owner_heads() -> list[str]:
    return [say(name) for name in ("size", "tensors", "category", "phase", "operator")]


def owner_row(owner: MemoryOwner) -> list[str]:
    """A row of cells for the columns `owner_heads`."""
    name = safe(short_name(owner.operator)) if owner.operator else say("outside operators")
    phase = say(owner.phase) if owner.phase else "-"
    return [format_bytes(owner.size_bytes), f"{owner.count:,}", say(owner.category), phase, name]
