"""The checks of `--deep`: programs that compute with torch on the visible devices, and what their answers mean."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import COMPUTE_SECONDS, Outside
from ascendtune.check.finding import Finding, ok, unknown
from ascendtune.core.process import Finished
from ascendtune.core.units import format_bytes
from ascendtune.machine.visible import Kind, Visible

_PROBE = ("-m", "ascendtune.check.doctor.probe")


def _why_not_asked(outside: Outside, code: str) -> Finding | None:
    """The finding where torch has nothing here to compute on, so that no program is started."""
    if outside.package("torch") is None:
        return unknown(code, "torch is not installed", remedy="pip install 'ascendtune[train]'")
    if not outside.visible.ids:
        return unknown(code, "no device is visible", remedy="see the finding visible_devices")
    return None


def _answer(done: Finished) -> dict[str, Any] | None:
    """The last line, of a program that ended well; torch and its plugins print above it."""
    if done.exit_code != 0:
        return None
    try:
        told = json.loads(done.output.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def _no_answer(code: str, who: str, done: Finished, *, expected: str, remedy: str) -> Finding:
    """The failure of a program that gave none: how it ended, and its last words."""
    how = done.error.strip().splitlines()[-1:] or ["no message"]
    exited = f"signal {-done.exit_code}" if done.exit_code < 0 else f"exit code {done.exit_code}"
    ended = "gave no answer" if done.timed_out else f"ended with {exited}"
    return Finding(
        code,
        "failure",
        f"{who} {ended}: {how[0][:200]}",
        expected=expected,
        remedy=remedy,
        evidence=tuple(done.error.strip().splitlines()[-6:]),
    )


COMPUTE = "compute"

_AT_ONCE = 4
_PRODUCT_TOLERANCE = {"fp32": 3e-3, "bf16": 1e-2, "fp16": 2e-3}
"""Relative error of a product over 512 terms. fp32 leaves room for the shortened formats that NPU and GPU multiply in
(HF32 and TF32 keep 11 bits: 5e-4); results that are rounded to bf16 and fp16 are off by 2^-9 and 2^-12 at most."""


def _look_at_compute(outside: Outside) -> Iterator[Finding]:
    if nothing := _why_not_asked(outside, COMPUTE):
        yield nothing
        return
    visible = outside.visible
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        runs = pool.map(lambda index: _probe(outside, visible, index), range(len(visible.ids)))
        for index, done in enumerate(runs):
            yield _judge_product(visible.label(index), done)


def _probe(outside: Outside, visible: Visible, index: int) -> Finished:
    # Logical numbers within what the variable leaves visible: the child has the same environment.
    argv = [outside.program, *_PROBE, "compute", visible.kind, str(index)]
    return outside.run(argv, timeout_seconds=COMPUTE_SECONDS)


def _judge_product(label: str, done: Finished) -> Finding:
    told = _answer(done)
    if told is None:
        remedy = "ascendtune explain the lines below; check the findings versions and libraries first"
        return _no_answer(COMPUTE, f"torch on {label}", done, expected="a matrix product", remedy=remedy)
    wrong = {name: error for name, error in told["errors"].items() if not error <= _PRODUCT_TOLERANCE[name]}
    if wrong:
        shown = ", ".join(f"{name} {error:.2g}" for name, error in wrong.items())
        return Finding(
            COMPUTE,
            "failure",
            f"{label} multiplies wrongly: relative error {shown}",
            expected=", ".join(f"{name} below {_PRODUCT_TOLERANCE[name]:g}" for name in wrong),
            remedy="take the device out of use and look at its health (ECC errors); have it replaced if it stays",
        )
    return ok(COMPUTE, f"{label} ({told['name']}): {_sentence(told)}")


def _sentence(told: dict[str, Any]) -> str:
    parts = [f"{', '.join(told['errors'])} agree with the CPU", f"{format_bytes(told['allocated_bytes'])} allocated"]
    if "to_device_bytes_per_second" in told:
        there, back = told["to_device_bytes_per_second"], told["from_device_bytes_per_second"]
        parts.append(f"{format_bytes(there)}/s to the device, {format_bytes(back)}/s back")
    return "; ".join(parts)


COMPUTE_CHECK = Check(
    COMPUTE,
    what="Made with `--deep` only: on each visible device, in a process of its own, torch multiplies two matrices per "
    "dtype and compares with the CPU, copies in both directions, and allocates memory.",
    why="npu-smi can fail where the card computes, and say OK where it does not. Only a product that is right proves "
    "that driver, CANN, torch_npu and card go together.",
    fix="A process that dies at import: see the checks versions and libraries. One that dies in the product: the "
    "kernels package or the driver. A wrong product: the card.",
    look=_look_at_compute,
    vital=True,
)


TRANSFER_TO_NPU = "transfer_to_npu"

_TRANSFER_TOLERANCE = 3e-3
"""Relative error of an fp32 product over 256 terms; NPUs may multiply in HF32, which keeps 11 bits (5e-4)."""


def _look_at_transfer_to_npu(outside: Outside) -> Iterator[Finding]:
    if not outside.npu_nodes:
        return
    if outside.package("torch-npu") is None:
        yield unknown(TRANSFER_TO_NPU, "torch_npu is not installed", remedy="see the finding accelerators")
        return
    visible = outside.visible
    if visible.kind != "npu":
        yield unknown(TRANSFER_TO_NPU, "no NPU is visible", remedy="see the finding visible_devices")
        return
    # Read by torch_npu when torch loads it: the way of `ascendtune migrate run`.
    there = replace(outside, env={**outside.env, "TORCH_TRANSFER_TO_NPU": "1"})
    done = there.run([outside.program, *_PROBE, "transfer_to_npu"], timeout_seconds=COMPUTE_SECONDS)
    told = _answer(done)
    if told is None:
        remedy = "ascendtune explain the lines below; where compute is right, torch_npu may be too old for the variable"
        who = "a product that is asked of torch.cuda"
        yield _no_answer(TRANSFER_TO_NPU, who, done, expected="an answer of the NPU", remedy=remedy)
    elif told["device"] != "npu" or not told["is_available"] or not told["error"] <= _TRANSFER_TOLERANCE:
        yield Finding(
            TRANSFER_TO_NPU,
            "failure",
            f"calls of torch.cuda are answered by {told['device']}, relative error {told['error']:.2g}",
            expected=f"npu, below {_TRANSFER_TOLERANCE:g}",
            remedy="use the torch_npu that belongs to this torch (`ascendtune doctor versions`); "
            "until then write device='npu' in the script",
        )
    else:
        yield ok(
            TRANSFER_TO_NPU, f"calls of torch.cuda reach NPU {visible.ids[0]}: a product and its gradient are right"
        )


TRANSFER_TO_NPU_CHECK = Check(
    TRANSFER_TO_NPU,
    what="Made with `--deep` only, on a machine with NPUs: with TORCH_TRANSFER_TO_NPU=1 a process asks torch.cuda for "
    "a product and its gradient, and looks where they were computed.",
    why="Scripts for CUDA run on an NPU by transfer_to_npu, which replaces functions of torch as it is loaded. With a "
    "torch_npu that is not of this torch, or that is too old to read the variable, they end with `Torch not compiled "
    "with CUDA enabled`.",
    fix="Install the pair of torch and torch_npu that `ascendtune doctor versions` names. `ascendtune migrate check` "
    "says what of a script cannot be turned; `ascendtune migrate run` runs one.",
    look=_look_at_transfer_to_npu,
)


ALL_REDUCE = "all_reduce"

_RANKS = 2
_CPU = Visible("cpu", ("0",))
_INTERFACES: dict[Kind, tuple[str, ...]] = {"npu": ("HCCL_SOCKET_IFNAME",), "cuda": ("NCCL_SOCKET_IFNAME",), "cpu": ()}
_ENDED_BY_THE_OTHER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "wait timeout")


def _look_at_all_reduce(outside: Outside) -> Iterator[Finding]:
    if nothing := _why_not_asked(outside, ALL_REDUCE):
        yield nothing
        return
    # Two ranks on one device is a thing that NCCL and HCCL refuse.
    joined = outside.visible if len(outside.visible.ids) >= _RANKS else _CPU
    with TemporaryDirectory(prefix="ascendtune-all-reduce-") as meeting, ThreadPoolExecutor(_RANKS) as pool:
        ranks = list(pool.map(lambda rank: _start(outside, joined.kind, rank, Path(meeting) / "store"), range(_RANKS)))
    yield _judge_sums(joined, ranks, is_all=joined.kind == outside.visible.kind)


def _start(outside: Outside, kind: str, rank: int, store: Path) -> Finished:
    argv = [outside.program, *_PROBE, "all_reduce", kind, str(rank), str(_RANKS), str(store)]
    return outside.run(argv, timeout_seconds=COMPUTE_SECONDS)


def _judge_sums(joined: Visible, ranks: Sequence[Finished], *, is_all: bool) -> Finding:
    """`is_all`: what was joined is what is visible."""
    answers = [_answer(done) for done in ranks]
    silent = [rank for rank, told in enumerate(answers) if told is None]
    if silent:
        rank = _first_to_fail(ranks, silent)
        names = " and ".join([*_INTERFACES[joined.kind], "GLOO_SOCKET_IFNAME"])
        return _no_answer(
            ALL_REDUCE,
            f"rank {rank} of {_RANKS}, on {joined.label(rank)},",
            ranks[rank],
            expected="the sum over both ranks",
            remedy=f"ascendtune explain the lines below; check {names} and the findings compute and hccl_host first",
        )
    told = [each for each in answers if each is not None]
    backend, places = told[0]["backend"], " and ".join(dict.fromkeys(map(joined.label, range(_RANKS))))
    wrong = [rank for rank, each in enumerate(told) if each["wrong_elements"]]
    if wrong:
        count = told[wrong[0]]["wrong_elements"]
        return Finding(
            ALL_REDUCE,
            "failure",
            f"{backend} adds up wrongly: rank {wrong[0]} on {joined.label(wrong[0])} has {count} wrong sums",
            expected="the exact sum on both ranks",
            remedy="take the device out of use, look at its health and at the link between the two",
        )
    speed = format_bytes(min(each["bytes_per_second"] for each in told))
    alone = "" if is_all else "; one device is visible, so its own collectives are not tried"
    return ok(ALL_REDUCE, f"{backend} adds up {_RANKS} ranks on {places} at {speed}/s{alone}")


def _first_to_fail(ranks: Sequence[Finished], silent: Sequence[int]) -> int:
    """The rank that failed of itself: not one that waited for, or was left by, the other."""
    by_itself = [
        rank
        for rank in silent
        if not ranks[rank].timed_out and not any(sign in ranks[rank].error for sign in _ENDED_BY_THE_OTHER)
    ]
    return (by_itself or list(silent))[0]


ALL_REDUCE_CHECK = Check(
    ALL_REDUCE,
    what="Made with `--deep` only: two processes, each on a device of its own, add up a vector with the backend of the "
    "devices (HCCL, NCCL; gloo on a CPU and where one device is visible), and compare every sum with the exact one.",
    why="A card that computes alone may still not reach its neighbour: a link, an interface name or a version of the "
    "collective library is wrong. In a job of many ranks that is a time-out after half an hour, on every rank alike.",
    fix="A rank that ends at once: its message says why; see the check compute. Both wait: the two do not reach each "
    "other; HCCL_SOCKET_IFNAME, NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME must name an interface that is up and that "
    "both have. Wrong sums: the link or the card.",
    look=_look_at_all_reduce,
)
