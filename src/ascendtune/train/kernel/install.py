"""Installs a device's fused operators in a model, each only after a test that it computes the same.

Modules are found by their structure (`FusableModule`), never by the name of a model. Only this model is changed: not
transformers' classes and modules.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any, Literal

import torch
from torch import nn

from ascendtune.core.errors import MachineError
from ascendtune.core.log import warn
from ascendtune.core.units import count_of
from ascendtune.machine.torch_backend.device import Device
from ascendtune.recipe.sections import KernelSection
from ascendtune.train.deferred_weights import nothing_deferred
from ascendtune.train.kernel.experts import find_experts
from ascendtune.train.kernel.fusable import FusableModule, Kernel, randn
from ascendtune.train.kernel.rms_norm import find_rms_norms
from ascendtune.train.kernel.rotary import find_rotary
from ascendtune.train.kernel.swiglu import find_mlps
from ascendtune.train.precision import DTYPES, Precision

# `Device.kernels` -> part of a model -> the operator for it.
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
        "experts": "ascendtune.train.kernel.experts:grouped_mm",
    },
    "cuda": {"experts": "ascendtune.train.kernel.experts:grouped_mm"},
}
_FINDERS: dict[str, Callable[[Any, torch.device], list[FusableModule]]] = {
    "rms_norm": find_rms_norms,
    "rotary": find_rotary,
    "swiglu": find_mlps,
    "experts": find_experts,
}
# Allowed rounding errors, as a share of the largest value.
_ALLOWED = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}
_Results = dict[str, tuple[torch.Tensor, float]]
"""Outputs and gradients by name, each with its allowed rounding error."""


@dataclass(frozen=True)
class KernelChoice:
    """The implementation of one part of a model."""

    description: str
    """For run.json."""
    operator: str | None = None
    """Name of the fused operator; None if the model's own forward computes all of this part."""


def install_kernels(
    model: Any,
    choice: Literal["auto", "off"] | KernelSection,
    device: Device,
    precision: Precision,
    fill: Callable[[nn.Module], None] = nothing_deferred,
) -> dict[str, KernelChoice]:
    """Install the operators that the recipe allows and the device has; return the choice for each part of the model.

    An operator that disagrees with the module it replaces, or fails, is removed again with a warning.

    Args:
        fill: reads those weights of a module that are still in their files; called before an operator is tested in it.

    Raises:
        MachineError: after an operator's failure the device returns wrong results.
    """
    operators = TABLE.get(device.kernels or "", {})
    outcome = {}
    for part in _FINDERS:
        if choice == "off" or (isinstance(choice, KernelSection) and not getattr(choice, part)):
            outcome[part] = KernelChoice("the model's own, as asked")
        elif part not in operators:
            outcome[part] = KernelChoice(f"the model's own: no fused operator on {device.kind}")
        else:
            modules = _FINDERS[part](model, device.torch_device)
            outcome[part] = _install(part, modules, operators, device, precision, fill)
    if outcome["experts"].operator:
        kernel: Kernel = resolve_name(operators["experts"])
        outcome["experts"] = _install_in_adapters(outcome["experts"], model, kernel, device, precision)
    return outcome


def _install(
    part: str,
    modules: list[FusableModule],
    operators: dict[str, str],
    device: Device,
    precision: Precision,
    fill: Callable[[nn.Module], None],
) -> KernelChoice:
    if not modules:
        return KernelChoice("the model's own: nothing of this form in it")
    try:
        kernel: Kernel = resolve_name(operators[part])
    except ImportError as error:
        warn(f"kernel.{part} stays the model's own: {error.name} is not installed")
        return KernelChoice(f"the model's own: {error.name} is not installed")
    count, reasons = _replace_forwards(modules, kernel, device, precision, fill)
    for reason in reasons:
        warn(f"kernel.{part}: {kernel.__name__} is not used: {reason}")
    if not count:
        return KernelChoice(f"the model's own: {kernel.__name__} {reasons[0]}")
    return KernelChoice(f"{count} of {count_of(len(modules), 'module')}, {kernel.__name__}", kernel.__name__)


def _install_in_adapters(
    experts: KernelChoice, model: Any, kernel: Kernel, device: Device, precision: Precision
) -> KernelChoice:
    """Add the adapters of experts to the products of `kernel`, which the experts use, and not to the weights."""
    # Imports PEFT.
    from ascendtune.train.kernel.adapted_experts import find_adapted_experts

    modules = list(find_adapted_experts(model))
    if not modules:
        return experts
    # The weights of the test are not those of the modules, so nothing is filled.
    count, reasons = _replace_forwards(modules, kernel, device, precision, nothing_deferred)
    for reason in reasons:
        warn(f"kernel.experts: adapters of experts are computed by PEFT, with more memory: {kernel.__name__} {reason}")
    return replace(experts, description=f"{experts.description}; in {count} of {len(modules)} for adapters, too")


def _replace_forwards(
    modules: Sequence[FusableModule],
    kernel: Kernel,
    device: Device,
    precision: Precision,
    fill: Callable[[nn.Module], None],
) -> tuple[int, list[str]]:
    """The number of modules that use `kernel` now, and the reasons why others do not."""
    # One test for all modules with the same key.
    failures: dict[Hashable, str | None] = {}
    for module in modules:
        if module.key not in failures:
            fill(module.module)
            failures[module.key] = try_kernel(module, kernel, device.torch_device, precision)
        elif failures[module.key] is None:
            module.replace_forward(kernel)
    reasons = sorted({reason for reason in failures.values() if reason is not None})
    return sum(failures[module.key] is None for module in modules), reasons


def try_kernel(module: FusableModule, kernel: Kernel, device: torch.device, precision: Precision) -> str | None:
    """Install `kernel` in `module` and compare output and gradients with those of the module's own forward.

    In the dtype of matrix products and in fp32: under autocast the residual stream of a model may have either.

    Returns:
        None if the kernel stays installed, else the reason why the module's own forward was restored.

    Raises:
        MachineError: after the operator's failure the device returns wrong results.
    """
    was_training = module.module.training
    module.module.eval()
    try:
        expected = _results(module, device, precision)
        module.replace_forward(kernel)
        if (reason := _difference(module, expected, device, precision)) is None:
            return None
        module.restore_forward()
        # After a failed operator an Ascend device may return wrong results for all further computations.
        if again := _difference(module, expected, device, precision):
            raise MachineError(
                f"{kernel.__name__} {reason}. After this failure the device returns wrong results: the module's own "
                f"forward {again}",
                code="device-unusable",
                remedy="disable this operator under `kernel` in the recipe; run `ascendtune doctor --deep`",
            )
        return reason
    finally:
        module.module.train(was_training)


def _difference(module: FusableModule, expected: _Results, device: torch.device, precision: Precision) -> str | None:
    try:
        results = _results(module, device, precision)
    # Errors of any class: a vendor's operator may not exist, or not support this dtype or shape.
    except Exception as error:  # noqa: BLE001
        return f"fails: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
    if results.keys() != expected.keys():
        return "disagrees with the module: it returns another number of results"
    for name, (reference, allowed) in expected.items():
        result = results[name][0]
        if (result.shape, result.dtype) != (reference.shape, reference.dtype):
            return (
                f"disagrees with the module: {name} is {tuple(result.shape)} {result.dtype}, "
                f"not {tuple(reference.shape)} {reference.dtype}"
            )
        difference = (result.float() - reference.float()).abs().max().item()
        limit = allowed * reference.float().abs().max().item()
        if not difference <= limit:
            return f"disagrees with the module: {name} differs by {difference:.3g} (allowed {limit:.2g})"
    return None


def _results(module: FusableModule, device: torch.device, precision: Precision) -> _Results:
    results: _Results = {}
    for dtype in dict.fromkeys((DTYPES[precision.compute], torch.float32)):
        with torch.enable_grad(), precision.autocast():
            samples = module.samples(device, dtype)
            outputs = module.run(*samples)
            weighted = [each.float() * randn(tuple(each.shape), device, torch.float32, seed=1) for each in outputs]
            loss = torch.stack([each.sum() for each in weighted]).sum()
        gradients = torch.autograd.grad(loss, [each for each in samples if each.requires_grad])
        # If there is bf16 anywhere between input and output, the result is only as exact as bf16.
        inside = {DTYPES[precision.compute]} if module.multiplies_inside else set()
        allowed = max(_ALLOWED[each] for each in {dtype, *(output.dtype for output in outputs), *inside})
        kind = str(dtype).removeprefix("torch.")
        results |= {f"output {number} ({kind})": (each.detach(), allowed) for number, each in enumerate(outputs)}
        results |= {f"gradient {number} ({kind})": (each, allowed) for number, each in enumerate(gradients)}
    return results
