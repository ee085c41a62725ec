"""Whether an operator computes what the module computes that it replaces."""

from __future__ import annotations

import torch

from ascendtune.core.errors import MachineError
from ascendtune.train.kernel.place import Kernel, Place, draw
from ascendtune.train.precision import DTYPES, Precision

# Differences of rounding, as a share of the largest value.
_ALLOWED = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}

_Outcomes = dict[str, tuple[torch.Tensor, float]]
"""Outputs and gradients by name, each with the rounding that is allowed to it."""


def try_kernel(place: Place, kernel: Kernel, device: torch.device, precision: Precision) -> str | None:
    """Put `kernel` into `place` and hold output and gradients against what was there before.

    In the type of the matrix products and in fp32: under autocast the residual stream of a model may be either.

    Returns:
        None where it stays, else why the module's own forward is back.

    Raises:
        MachineError: after a failure of the operator the device no longer computes what it did before.
    """
    was_training = place.module.training
    place.module.eval()
    try:
        expected = _outcomes(place, device, precision)
        place.swap(kernel)
        if (reason := _difference(place, expected, device, precision)) is None:
            return None
        place.restore()
        # A failed operator may leave an Ascend device giving garbage for everything that follows.
        if again := _difference(place, expected, device, precision):
            raise MachineError(
                f"{kernel.__name__} {reason}; since then the device computes wrong: the module's own forward {again}",
                code="device-unusable",
                remedy="switch this operator off under `kernel` in the recipe; `ascendtune doctor` looks at the device",
            )
        return reason
    finally:
        place.module.train(was_training)


def _difference(place: Place, expected: _Outcomes, device: torch.device, precision: Precision) -> str | None:
    try:
        found = _outcomes(place, device, precision)
    # Whatever a vendor's operator raises: no such operator, a type or a shape that it does not take.
    except Exception as error:  # noqa: BLE001
        return f"fails: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
    if found.keys() != expected.keys():
        return "disagrees with the module: it gives another number of results"
    differences = (_of_one(name, found[name][0], *expected[name]) for name in expected)
    return next((each for each in differences if each is not None), None)


def _of_one(name: str, ours: torch.Tensor, theirs: torch.Tensor, allowed: float) -> str | None:
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return (
            f"disagrees with the module: {name} is {tuple(ours.shape)} {ours.dtype}, "
            f"not {tuple(theirs.shape)} {theirs.dtype}"
        )
    difference = (ours.float() - theirs.float()).abs().max().item()
    limit = allowed * theirs.float().abs().max().item()
    if difference <= limit:
        return None
    return f"disagrees with the module: {name} differs by {difference:.3g} (allowed {limit:.2g})"


def _outcomes(place: Place, device: torch.device, precision: Precision) -> _Outcomes:
    found: _Outcomes = {}
    for dtype in dict.fromkeys((DTYPES[precision.compute], torch.float32)):
        with torch.enable_grad(), precision.autocast():
            samples = place.samples(device, dtype)
            outputs = place.run(*samples)
            weighted = [each.float() * draw(tuple(each.shape), device, torch.float32, seed=1) for each in outputs]
            loss = torch.stack([each.sum() for each in weighted]).sum()
        gradients = torch.autograd.grad(loss, [each for each in samples if each.requires_grad])
        # What is bf16 anywhere between input and output is no more exact than that.
        inside = {DTYPES[precision.compute]} if place.multiplies else set()
        allowed = max(_ALLOWED[each] for each in {dtype, *(output.dtype for output in outputs), *inside})
        kind = str(dtype).removeprefix("torch.")
        found |= {f"output {number} ({kind})": (each.detach(), allowed) for number, each in enumerate(outputs)}
        found |= {f"gradient {number} ({kind})": (each, allowed) for number, each in enumerate(gradients)}
    return found
