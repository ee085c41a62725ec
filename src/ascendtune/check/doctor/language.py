"""The sentences of the doctor, in English or Chinese."""

from __future__ import annotations

from typing import Literal

from ascendtune.core.language import Phrases

say = Phrases(__package__)

_COUNTED = {
    "NPU": "{count} {count:NPU|NPUs}",
    "GPU": "{count} {count:GPU|GPUs}",
    "NVIDIA device": "{count} NVIDIA {count:device|devices}",
    "chip": "{count} {count:chip|chips}",
}


def counted(number: int, noun: Literal["NPU", "GPU", "NVIDIA device", "chip"]) -> str:
    """`counted(8, "chip")` -> "8 chips", as a part of another sentence."""
    return say(_COUNTED[noun], count=number)
