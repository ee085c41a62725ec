"""The checks of `--deep`: run programs that compute with torch on the visible devices, and judge their output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.system import COMPUTE_SECONDS, System
from ascendtune.check.finding import Finding, failure, ok, unknown
from ascendtune.core.process import Finished
from ascendtune.core.units import format_bytes
from ascendtune.machine.visible import VisibleDevices

_PROBE = ("-P", "-m", "ascendtune.check.doctor.probe")


def _missing_requirement(system: System, code: str) -> Finding | None:
    """The finding if torch or devices are missing, so that no program is started."""
    if system.package("torch") is None:
        return unknown(code, say("torch is not installed"), remedy=say("pip install 'ascendtune[train]'"))
    if not system.visible.ids:
        return unknown(code, say("no device is visible"), remedy=say("see the finding visible_devices"))
    return None


def _answer(done: Finished) -> dict[str, Any] | None:
    """The last line as JSON, if the program succeeded; torch and its plugins print above it."""
    if done.exit_code != 0:
        return None
    try:
        answer = json.loads(done.output.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


def _no_answer(code: str, subject: str, done: Finished, *, expected: str, remedy: str) -> Finding:
    """The failure of a program without output: how it exited, and its last error lines."""
    how = done.error.strip().splitlines()[-1:] or [say("no message")]
    exited = (
        say("signal {number}", number=-done.exit_code)
        if done.exit_code < 0
        else say("exit code {number}", number=done.exit_code)
    )
    ended = say("timed out") if done.timed_out else say("ended with {how}", how=exited)
    return failure(
        code,
        f"{subject} {ended}: {how[0][:200]}",
        expected=expected,
        remedy=remedy,
        evidence=tuple(done.error.strip().splitlines()[-6:]),
    )


COMPUTE = "compute"

_AT_ONCE = 4
_PRODUCT_TOLERANCE = {"fp32": 3e-3, "bf16": 1e-2, "fp16": 2e-3}
"""Relative error of a product over 512 terms. fp32 allows for the reduced formats of NPU and GPU (HF32 and TF32 keep 11
bits: 5e-4); rounding results to bf16 and fp16 adds at most 2^-9 and 2^-12."""


def _look_at_compute(system: System) -> Iterator[Finding]:
    if nothing := _missing_requirement(system, COMPUTE):
        yield nothing
        return
    visible = system.visible
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        runs = pool.map(lambda index: _probe(system, visible, index), range(len(visible.ids)))
        for index, done in enumerate(runs):
            yield _judge_product(visible.label(index), done)


def _probe(system: System, visible: VisibleDevices, index: int) -> Finished:
    # Logical ids among the visible devices: the child has the same environment.
    argv = [system.program, *_PROBE, "compute", visible.kind, str(index)]
    return system.run(argv, timeout_seconds=COMPUTE_SECONDS)


def _judge_product(label: str, done: Finished) -> Finding:
    answer = _answer(done)
    if answer is None:
        remedy = say("check the findings versions and libraries first; then `ascendtune explain` on the lines below")
        return _no_answer(
            COMPUTE, say("torch on {label}", label=label), done, expected=say("a matrix product"), remedy=remedy
        )
    wrong = {name: error for name, error in answer["errors"].items() if not error <= _PRODUCT_TOLERANCE[name]}
    if wrong:
        shown = ", ".join(f"{name} {error:.2g}" for name, error in wrong.items())
        return failure(
            COMPUTE,
            say("{label} multiplies incorrectly: relative error {shown}", label=label, shown=shown),
            expected=", ".join(
                say("{name} below {limit:g}", name=name, limit=_PRODUCT_TOLERANCE[name]) for name in wrong
            ),
            remedy=say(
                "take the device out of use and check its health (ECC errors); have it replaced if this persists"
            ),
        )
    return ok(COMPUTE, f"{label} ({answer['name']}): {_sentence(answer)}")


def _sentence(answer: dict[str, Any]) -> str:
    parts = [
        say("{names} agree with the CPU", names=", ".join(answer["errors"])),
        say("{size} allocated", size=format_bytes(answer["allocated_bytes"])),
    ]
    if "to_device_bytes_per_second" in answer:
        there, back = answer["to_device_bytes_per_second"], answer["from_device_bytes_per_second"]
        template = "{there}/s to the device, {back}/s back"
        parts.append(say(template, there=format_bytes(there), back=format_bytes(back)))
    return say("; ").join(parts)


COMPUTE_CHECK = Check(
    COMPUTE,
    what="Only with `--deep`: on each visible device, in a separate process, torch multiplies two matrices per dtype "
    "and compares with the CPU, copies in both directions, and allocates memory.",
    why="npu-smi may fail on a working card, and report OK for a broken one. Only a correct product shows that driver, "
    "CANN, torch_npu and card work together.",
    fix="If the process fails at import, see the checks versions and libraries. If it fails in the product, check the "
    "kernels package and the driver. If the product is wrong, the card is faulty.",
    look=_look_at_compute,
    vital=True,
)


TRANSFER_TO_NPU = "transfer_to_npu"

_TRANSFER_TOLERANCE = 3e-3
"""Relative error of an fp32 product over 256 terms; NPUs may compute in HF32, which keeps 11 bits (5e-4)."""


def _look_at_transfer_to_npu(system: System) -> Iterator[Finding]:
    if not system.npu_nodes:
        return
    if system.package("torch-npu") is None:
        yield unknown(TRANSFER_TO_NPU, say("torch_npu is not installed"), remedy=say("see the finding accelerators"))
        return
    visible = system.visible
    variables = visible.vendor.cuda_environment(system.env)
    if not variables:
        yield unknown(TRANSFER_TO_NPU, say("no NPU is visible"), remedy=say("see the finding visible_devices"))
        return
    # As in `ascendtune migrate run`.
    with_transfer = replace(system, env={**system.env, **variables})
    done = with_transfer.run([system.program, *_PROBE, "transfer_to_npu"], timeout_seconds=COMPUTE_SECONDS)
    answer = _answer(done)
    if answer is None:
        remedy = say("`ascendtune explain` on the lines below; if compute passes, torch_npu belongs to another torch")
        subject = "a product with torch.cuda"
        yield _no_answer(TRANSFER_TO_NPU, subject, done, expected="a product computed by the NPU", remedy=remedy)
    elif answer["device"] != visible.kind or not answer["is_available"] or not answer["error"] <= _TRANSFER_TOLERANCE:
        yield failure(
            TRANSFER_TO_NPU,
            say(
                "calls of torch.cuda run on {device}, relative error {difference:.2g}",
                device=answer["device"],
                difference=answer["error"],
            ),
            expected=say("npu, below {transfer_tolerance:g}", transfer_tolerance=_TRANSFER_TOLERANCE),
            remedy=say(
                "use the torch_npu that belongs to this torch (`ascendtune doctor versions`); until "
                "then write device='npu' in the script"
            ),
        )
    else:
        yield ok(
            TRANSFER_TO_NPU,
            say("calls of torch.cuda reach NPU {ids}: a product and its gradient are correct", ids=visible.ids[0]),
        )


TRANSFER_TO_NPU_CHECK = Check(
    TRANSFER_TO_NPU,
    what="Only with `--deep`, on a machine with NPUs: with transfer_to_npu a process computes a product and its "
    "gradient through torch.cuda, and checks where they were computed.",
    why="Scripts for CUDA run on an NPU through transfer_to_npu, which replaces functions of torch when it is loaded. "
    "With a torch_npu for another torch they fail with `Torch not compiled with CUDA enabled`.",
    fix="Install the pair of torch and torch_npu that `ascendtune doctor versions` names. `ascendtune migrate check` "
    "lists code that cannot be replaced; `ascendtune migrate run` runs a script.",
    look=_look_at_transfer_to_npu,
)


ALL_REDUCE = "all_reduce"

_RANKS = 2
_CPU = VisibleDevices("cpu", ("0",))
_ENDED_BY_THE_OTHER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "wait timeout")


def _look_at_all_reduce(system: System) -> Iterator[Finding]:
    if nothing := _missing_requirement(system, ALL_REDUCE):
        yield nothing
        return
    # NCCL and HCCL do not allow two ranks on one device.
    joined = system.visible if len(system.visible.ids) >= _RANKS else _CPU
    with TemporaryDirectory(prefix="ascendtune-all-reduce-") as meeting, ThreadPoolExecutor(_RANKS) as pool:
        argv = [system.program, *_PROBE, "all_reduce", joined.kind]
        argvs = [[*argv, str(rank), str(_RANKS), f"{meeting}/store"] for rank in range(_RANKS)]
        ranks = list(pool.map(lambda each: system.run(each, timeout_seconds=COMPUTE_SECONDS), argvs))
    yield _judge_sums(joined, ranks, is_all=joined.kind == system.visible.kind)


def _judge_sums(joined: VisibleDevices, ranks: Sequence[Finished], *, is_all: bool) -> Finding:
    """`is_all`: the ranks ran on visible devices, not on the CPU instead."""
    answers = [_answer(done) for done in ranks]
    silent = [rank for rank, answer in enumerate(answers) if answer is None]
    if silent:
        rank = _first_to_fail(ranks, silent)
        names = " and ".join([*joined.vendor.interface_variables, "GLOO_SOCKET_IFNAME"])
        return _no_answer(
            ALL_REDUCE,
            say("rank {rank} of {ranks}, on {label},", rank=rank, ranks=_RANKS, label=joined.label(rank)),
            ranks[rank],
            expected=say("the sum over both ranks"),
            remedy=say(
                "check {names}, compute and hccl_host first; then `ascendtune explain` on the lines below", names=names
            ),
        )
    given_answers = [each for each in answers if each is not None]
    backend, places = given_answers[0]["backend"], " and ".join(dict.fromkeys(map(joined.label, range(_RANKS))))
    wrong = [rank for rank, each in enumerate(given_answers) if each["wrong_elements"]]
    if wrong:
        count = given_answers[wrong[0]]["wrong_elements"]
        return failure(
            ALL_REDUCE,
            say(
                "{backend} computes wrong sums: rank {wrong} on {wrong2} has {count} wrong {count:element|elements}",
                backend=backend,
                wrong=wrong[0],
                wrong2=joined.label(wrong[0]),
                count=count,
            ),
            expected=say("the exact sum on both ranks"),
            remedy=say("take the device out of use; check its health and the link between the two devices"),
        )
    speed = format_bytes(min(each["bytes_per_second"] for each in given_answers))
    alone = "" if is_all else say("; one device is visible, so collectives between devices are not tested")
    return ok(
        ALL_REDUCE,
        say(
            "{backend} sums over {ranks} ranks on {places} at {speed}/s{alone}",
            backend=backend,
            ranks=_RANKS,
            places=places,
            speed=speed,
            alone=alone,
        ),
    )


def _first_to_fail(ranks: Sequence[Finished], silent: Sequence[int]) -> int:
    """The rank that failed with an error of its own, not one that waited for the other or lost its connection."""
    by_itself = [
        rank
        for rank in silent
        if not ranks[rank].timed_out and not any(sign in ranks[rank].error for sign in _ENDED_BY_THE_OTHER)
    ]
    return (by_itself or list(silent))[0]


ALL_REDUCE_CHECK = Check(
    ALL_REDUCE,
    what="Only with `--deep`: two processes on different devices run an all-reduce with the devices' backend (HCCL or "
    "NCCL; gloo on a CPU, or if one device is visible), and compare every element with the exact sum.",
    why="A card that computes correctly alone may not reach another one, because of a link, an interface name or a "
    "version of the collective library. In a job with many ranks this is a time-out after half an hour, on every rank.",
    fix="If a rank exits at once, see its message and the check compute. If both wait, they cannot connect to each "
    "other: HCCL_SOCKET_IFNAME, NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME must name an interface that is up on both. If "
    "sums are wrong, the link or the card is faulty.",
    look=_look_at_all_reduce,
)
