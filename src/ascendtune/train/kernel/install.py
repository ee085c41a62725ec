"""Put a device's fused operators into a model, each only after it has shown that it computes the same.

Places are found by their structure (`place`), never by the name of a model, and changed in this one model: classes and
modules of transformers stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from pkgutil import resolve_name
from typing import Any, Literal

import torch

from ascendtune.core.log import warn
from ascendtune.machine.torch_backend.device import Device
from ascendtune.recipe.sections import KernelSection
from ascendtune.train.kernel.experts import find_experts
from ascendtune.train.kernel.place import Kernel, Place
from ascendtune.train.kernel.rms_norm import find_norms
from ascendtune.train.kernel.rotary import find_rotary
from ascendtune.train.kernel.selftest import try_kernel
from ascendtune.train.kernel.swiglu import find_mlps
from ascendtune.train.precision import Precision

# What a device says (`Device.kernels`) -> part of a model -> the operator for it.
TABLE: dict[str, dict[str, str]] = {
    "npu": {
        "rms_norm": "ascendtune.train.kernel.npu:npu_rms_norm",
        "rotary": "ascendtune.train.kernel.npu:npu_rotary_mul",
        "swiglu": "ascendtune.train.kernel.npu:npu_swiglu",
        "experts": "ascendtune.train.kernel.npu:npu_grouped_matmul",
    },
    "liger": {
        "rms_norm": "ascendtune.train.kernel.liger:liger_rms_norm",
        "rotary": "ascendtune.train.kernel.liger:liger_rope",
        "swiglu": "ascendtune.train.kernel.liger:liger_silu_mul",
        "experts": "ascendtune.train.kernel.cuda:grouped_mm",
    },
    "cuda": {"experts": "ascendtune.train.kernel.cuda:grouped_mm"},
}
_FINDERS: dict[str, Callable[[Any, torch.device], list[Place]]] = {
    "rms_norm": find_norms,
    "rotary": find_rotary,
    "swiglu": find_mlps,
    "experts": find_experts,
}


def install_kernels(
    model: Any, choice: Literal["auto", "off"] | KernelSection, device: Device, precision: Precision
) -> dict[str, str]:
    """Swap what the recipe allows, the device has and the model contains; returns what became of each part.

    An operator that disagrees with the module it replaces, or fails, is taken out again with a warning.

    Raises:
        MachineError: an operator's failure has left the device unusable.
    """
    operators = TABLE.get(device.kernels or "", {})
    outcome = {}
    for part in _FINDERS:
        if choice == "off" or (isinstance(choice, KernelSection) and not getattr(choice, part)):
            outcome[part] = "the model's own, as asked"
        elif part not in operators:
            outcome[part] = f"the model's own: no fused operator on {device.kind}"
        else:
            outcome[part] = _install(part, _FINDERS[part](model, device.torch_device), operators, device, precision)
    return outcome


def fused(outcome: dict[str, str]) -> list[str]:
    """The operators in an outcome of `install_kernels`, for a line that a person reads."""
    return [said.rpartition(", ")[2] for said in outcome.values() if not said.startswith("the model's own")]


def _install(part: str, places: list[Place], operators: dict[str, str], device: Device, precision: Precision) -> str:
    if not places:
        return "the model's own: nothing of this form in it"
    try:
        kernel: Kernel = resolve_name(operators[part])
    except ImportError as error:
        warn(f"kernel.{part} stays the model's own: {error.name} is not installed")
        return f"the model's own: {error.name} is not installed"
    verdicts: dict[Hashable, str | None] = {}
    for place in places:
        # One test for all places of one shape.
        if place.key in verdicts:
            if verdicts[place.key] is None:
                place.swap(kernel)
            continue
        verdicts[place.key] = try_kernel(place, kernel, device.torch_device, precision)
    failures = {reason for reason in verdicts.values() if reason is not None}
    for reason in sorted(failures):
        warn(f"kernel.{part}: {kernel.__name__} is not used: {reason}")
    count = Counter(verdicts[place.key] is None for place in places)[True]
    if not count:
        return f"the model's own: {kernel.__name__} {min(failures)}"
    return f"{count} of {len(places)} modules, {kernel.__name__}"
