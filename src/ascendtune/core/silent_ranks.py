"""When a rank counts as silent: long before the limit of a hang, and in the same words everywhere."""

from __future__ import annotations

from ascendtune.core.units import format_duration

LONG_PHASES = frozenset(("preparation", "loading", "checkpoint", "export"))
"""Phases that read or write large files, and take long without a heartbeat."""
_STEPS = 5
_LEAST_SECONDS = 10.0
_BEFORE_PACE_SECONDS = 60.0


def is_silent(phase: str, seconds: float, step_seconds: float | None) -> bool:
    """Whether a rank in `phase` has been without a heartbeat for much longer than usual.

    Args:
        seconds: since its last heartbeat.
        step_seconds: how long a step usually takes; None before the first.
    """
    limit = _BEFORE_PACE_SECONDS if step_seconds is None else max(_LEAST_SECONDS, _STEPS * step_seconds)
    return phase not in LONG_PHASES and seconds > limit


def silence_in_words(seconds: float, step_seconds: float | None) -> str:
    """`silent for 4:00 (usual step 1.2 s)`."""
    pace = "" if step_seconds is None else f" (usual step {step_seconds:.2g} s)"
    return f"silent for {format_duration(seconds)}{pace}"
