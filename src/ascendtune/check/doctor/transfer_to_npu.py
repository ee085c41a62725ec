"""Whether a script that is written for CUDA runs on the NPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ascendtune.check.doctor.answer import SECONDS, answer, no_answer
from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok, unknown

CODE = "transfer_to_npu"

_TOLERANCE = 3e-3
"""Relative error of an fp32 product over 256 terms; NPUs may multiply in HF32, which keeps 11 bits (5e-4)."""
_PROBE = "ascendtune.check.doctor.transfer_to_npu_probe"


def _look(outside: Outside) -> Iterator[Finding]:
    if not outside.npu_nodes:
        return
    if outside.package("torch-npu") is None:
        yield unknown(CODE, "torch_npu is not installed", remedy="see the finding accelerators")
        return
    visible = outside.visible
    if not visible.vendor.translates_cuda:
        yield unknown(CODE, "no NPU is visible", remedy="see the finding visible_devices")
        return
    # Read by torch_npu when torch loads it: the way of `ascendtune migrate run`.
    there = replace(outside, env={**outside.env, "TORCH_TRANSFER_TO_NPU": "1"})
    done = there.run([outside.program, "-m", _PROBE], timeout_seconds=SECONDS)
    told = answer(done)
    if told is None:
        remedy = "ascendtune explain the lines below; where compute is right, torch_npu may be too old for the variable"
        who = "a product that is asked of torch.cuda"
        yield no_answer(CODE, who, done, expected="an answer of the NPU", remedy=remedy)
    elif told["device"] != visible.kind or not told["is_available"] or not told["error"] <= _TOLERANCE:
        yield Finding(
            CODE,
            "failure",
            f"calls of torch.cuda are answered by {told['device']}, relative error {told['error']:.2g}",
            expected=f"npu, below {_TOLERANCE:g}",
            remedy="use the torch_npu that belongs to this torch (`ascendtune doctor versions`); "
            "until then write device='npu' in the script",
        )
    else:
        yield ok(CODE, f"calls of torch.cuda reach NPU {visible.ids[0]}: a product and its gradient are right")


CHECK = Check(
    CODE,
    what="Made with `--deep` only, on a machine with NPUs: with TORCH_TRANSFER_TO_NPU=1 a process asks torch.cuda for "
    "a product and its gradient, and looks where they were computed.",
    why="Scripts for CUDA run on an NPU by transfer_to_npu, which replaces functions of torch as it is loaded. With a "
    "torch_npu that is not of this torch, or that is too old to read the variable, they end with `Torch not compiled "
    "with CUDA enabled`.",
    fix="Install the pair of torch and torch_npu that `ascendtune doctor versions` names. `ascendtune migrate check` "
    "says what of a script cannot be turned; `ascendtune migrate run` runs one.",
    look=_look,
)
