"""The sentences of the doctor, in English or Chinese."""

from __future__ import annotations

from typing import Literal

from ascendtune.core.language import Phrases

say = Phrases(__package__)

_COUNTED = {
    "NPU": ("1 NPU", "{count} NPUs"),
    "GPU": ("1 GPU", "{count} GPUs"),
    "NVIDIA device": ("1 NVIDIA device", "{count} NVIDIA devices"),
    "chip": ("1 chip", "{count} chips"),
}


def counted(number: int, noun: Literal["NPU", "GPU", "NVIDIA device", "chip"]) -> str:
    """`counted(8, "chip")` -> "8 chips", as a part of another sentence."""
    one, several = _COUNTED[noun]
    return say(one) if number == 1 else say(several, count=number)
