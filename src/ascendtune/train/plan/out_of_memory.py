"""The memory report of an out-of-memory error: allocated bytes by category, beside the estimate."""

from __future__ import annotations

from typing import Any

from ascendtune.core.units import format_bytes
from ascendtune.train.loop import Loop
from ascendtune.train.memory_by_category import memory_by_category

_EXPECTED = {
    "weights": ("weights", "adapters"), "gradients": ("gradients",), "optimizer state": ("optimizer",),
    "activations and the rest": ("communication", "activations", "loss", "backward", "exported copy", "reference"),
}  # fmt: skip
_GREW = 1.05


def describe_memory(loop: Loop) -> str:
    """Bytes by category and, if the run was planned, the category that exceeds its estimate most."""
    allocated, planned = (
        memory_by_category(loop.root.parameters(), loop.optimizer),
        loop.run_directory.read().get("plan") or {},
    )
    peak = loop.strategy.device.memory_peak_bytes() or 0
    allocated["activations and the rest"] = max(0, peak - sum(allocated.values()))
    listed = ", ".join(f"{name} {format_bytes(size)}" for name, size in allocated.items() if size)
    expected: Any = planned.get("at_peak")
    if not isinstance(expected, dict):
        return f"allocated: {listed}"
    grown = {
        name: (size, sum(int(expected.get(part, 0)) for part in _EXPECTED[name])) for name, size in allocated.items()
    }
    name = max(grown, key=lambda each: grown[each][0] - grown[each][1])
    size, estimated = grown[name]
    if size <= _GREW * estimated:
        return f"allocated: {listed}, as estimated; other processes, or gaps in the allocator's memory, take the rest"
    return f"allocated: {listed}; {name} exceed the estimate of {format_bytes(estimated)}"
