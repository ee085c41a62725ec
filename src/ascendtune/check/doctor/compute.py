"""Each visible device computes, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ascendtune.check.doctor.answer import SECONDS, answer, no_answer, why_not_asked
from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok
from ascendtune.core.process import Finished
from ascendtune.core.units import format_bytes
from ascendtune.machine.visible import Visible

CODE = "compute"

_AT_ONCE = 4
_TOLERANCE = {"fp32": 3e-3, "bf16": 1e-2, "fp16": 2e-3}
"""Relative error of a product over 512 terms. fp32 leaves room for the shortened formats that NPU and GPU multiply in
(HF32 and TF32 keep 11 bits: 5e-4); results that are rounded to bf16 and fp16 are off by 2^-9 and 2^-12 at most."""


def _look(outside: Outside) -> Iterator[Finding]:
    if nothing := why_not_asked(outside, CODE):
        yield nothing
        return
    visible = outside.visible
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        runs = pool.map(lambda index: _probe(outside, visible, index), range(len(visible.ids)))
        for index, done in enumerate(runs):
            yield _judge(visible.label(index), done)


def _probe(outside: Outside, visible: Visible, index: int) -> Finished:
    # Logical numbers within what the variable leaves visible: the child has the same environment.
    argv = [outside.program, "-m", "ascendtune.check.doctor.probe", visible.kind, str(index)]
    return outside.run(argv, timeout_seconds=SECONDS)


def _judge(label: str, done: Finished) -> Finding:
    told = answer(done)
    if told is None:
        remedy = "ascendtune explain the lines below; check the findings versions and libraries first"
        return no_answer(CODE, f"torch on {label}", done, expected="a matrix product", remedy=remedy)
    wrong = {name: error for name, error in told["errors"].items() if not error <= _TOLERANCE[name]}
    if wrong:
        shown = ", ".join(f"{name} {error:.2g}" for name, error in wrong.items())
        return Finding(
            CODE,
            "failure",
            f"{label} multiplies wrongly: relative error {shown}",
            expected=", ".join(f"{name} below {_TOLERANCE[name]:g}" for name in wrong),
            remedy="take the device out of use and look at its health (ECC errors); have it replaced if it stays",
        )
    return ok(CODE, f"{label} ({told['name']}): {_sentence(told)}")


def _sentence(told: dict[str, Any]) -> str:
    parts = [f"{', '.join(told['errors'])} agree with the CPU", f"{format_bytes(told['allocated_bytes'])} allocated"]
    if "to_device_bytes_per_second" in told:
        there, back = told["to_device_bytes_per_second"], told["from_device_bytes_per_second"]
        parts.append(f"{format_bytes(there)}/s to the device, {format_bytes(back)}/s back")
    return "; ".join(parts)


CHECK = Check(
    CODE,
    what="Made with `--deep` only: on each visible device, in a process of its own, torch multiplies two matrices per "
    "dtype and compares with the CPU, copies in both directions, and allocates memory.",
    why="npu-smi can fail where the card computes, and say OK where it does not. Only a product that is right proves "
    "that driver, CANN, torch_npu and card go together.",
    fix="A process that dies at import: see the checks versions and libraries. One that dies in the product: the "
    "kernels package or the driver. A wrong product: the card.",
    look=_look,
    vital=True,
)
