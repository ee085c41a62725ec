"""The type of a check, the parallel run of all checks within a time limit, and the verdict on their findings."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name

from ascendtune.check.doctor import CHECKS, DEEP_CHECKS, NODE_CHECKS
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.system import COMPUTE_SECONDS, System
from ascendtune.check.finding import Finding, unknown
from ascendtune.core.process import programs_end_with_us
from ascendtune.core.threads import run_in_daemon_thread
from ascendtune.machine.vendor.find import vendor_of
from ascendtune.machine.visible import attached


@dataclass(frozen=True)
class Check:
    """`look` returns findings with this check's code; none if the check does not apply to the machine.

    `what`, `why` and `fix` become the page docs/checks/CODE.md.
    """

    code: str
    what: str
    why: str
    fix: str
    look: Callable[[System], Iterable[Finding]]
    vital: bool = False
    """Whether a failure makes training on the accelerators impossible."""


LIMIT_SECONDS = 20.0
"""Longer than any sequence of limited queries; a check that takes longer hangs in the kernel (a dead NFS server)."""

_SHOW_EVERY_SECONDS = 0.5

DEEP_LIMIT_SECONDS = 4 * COMPUTE_SECONDS + LIMIT_SECONDS
"""For sixteen devices, four at a time, each within its own limit."""


@dataclass(frozen=True)
class Examination:
    """`not_applicable` are the codes of checks that do not apply to this machine."""

    findings: tuple[Finding, ...]
    not_applicable: tuple[str, ...]


def examine(
    system: System,
    codes: Sequence[str] = (),
    *,
    limit_seconds: float | None = None,
    show: Callable[[Sequence[str]], object] = lambda missing: None,
) -> Examination:
    """Run the checks in parallel. Findings are in the order of the table, the most important first.

    Args:
        codes: the checks to run (default: all of `CHECKS`).
        limit_seconds: a check that takes longer is abandoned; its finding is unknown.
        show: called twice a second with the codes whose answers are missing.
    """
    chosen = [code for code in (*CHECKS, *DEEP_CHECKS, *NODE_CHECKS) if code in (codes or CHECKS)]
    checks = [get_check(code) for code in chosen]
    if limit_seconds is None:
        limit_seconds = DEEP_LIMIT_SECONDS if DEEP_CHECKS.keys() & set(chosen) else LIMIT_SECONDS
    # A check that hangs in the kernel must not keep the process from exiting.
    with programs_end_with_us():
        answers = {check.code: run_in_daemon_thread(partial(_run, check, system)) for check in checks}
        deadline = time.monotonic() + limit_seconds
        answered, missing = set[Future[list[Finding]]](), set(answers.values())
        while missing and (left := deadline - time.monotonic()) > 0:
            show([code for code, each in answers.items() if each in missing])
            done, missing = wait(missing, min(left, _SHOW_EVERY_SECONDS), return_when=FIRST_COMPLETED)
            answered |= done
    late = say("no answer within {seconds:g} s", seconds=limit_seconds)
    findings_of = {code: each.result() if each in answered else [unknown(code, late)] for code, each in answers.items()}
    findings = tuple(each for found in findings_of.values() for each in found)
    return Examination(findings, tuple(code for code, found in findings_of.items() if not found))


def get_check(code: str) -> Check:
    """The check with this code. Raises KeyError."""
    check: Check = resolve_name((CHECKS | DEEP_CHECKS | NODE_CHECKS)[code])
    return check


def _run(check: Check, system: System) -> list[Finding]:
    try:
        return list(check.look(system))
    except Exception as error:  # noqa: BLE001  # a check that fails must not hide the others
        why = say("the check itself failed: {kind}: {error}", kind=type(error).__name__, error=error)
        return [unknown(check.code, why, remedy=say("report this as a bug of ascendtune"))]


def verdict(examination: Examination, system: System) -> str:
    """One sentence: the devices that this machine trains on, or the problem that prevents training."""
    failures = [each for each in examination.findings if each.status == "failure"]
    warnings = sum(each.status == "warning" for each in examination.findings)
    vital = [each for each in failures if get_check(each.code).vital]
    if vital:
        return say("this machine cannot train: {what}", what=_plain(vital[0].measured))
    where = trains_on(system)
    if where is None:
        begin = say("this machine cannot train: no device is usable")
    elif _is_blind(system):
        begin = say("it is unknown whether this machine trains: {where}", where=where)
    else:
        begin = say("this machine trains on {where}", where=where)
    if failures:
        what = _plain(failures[0].measured)
        what += say(" (and {count} more)", count=len(failures) - 1) if len(failures) > 1 else ""
        if where is None:
            return say("this machine cannot train: {what}", what=what)
        return begin + say(", but {what}", what=what)
    if warnings:
        return begin + say(", with {count} {count:warning|warnings}", count=warnings)
    return begin


def _is_blind(system: System) -> bool:
    """Whether there are NPUs, and npu-smi lists none of them."""
    return bool(system.npu_nodes and system.package("torch-npu") and not system.npu_smi[0].devices)


def trains_on(system: System) -> str | None:
    """The devices that a job on this machine would use, in words; None if none is usable."""
    if system.npu_nodes and system.package("torch-npu"):
        return _npus(system)
    devices = system.gpus[0]
    if devices and system.package("torch"):
        names = {device.name for device in devices if device.name}
        return f"{len(devices)} GPU" + (f" ({', '.join(sorted(names))})" if names else "")
    count = len(os.sched_getaffinity(0))
    cores = say("{count:,} {count:core|cores}", count=count)
    return say("the CPU ({cores}); larger models need an NPU or a GPU", cores=cores)


def _npus(system: System) -> str | None:
    """The NPUs that a job can count on: visible, listed by npu-smi, without an alarm."""
    count, listed = len(system.npu_nodes), system.npu_smi[0].devices
    visible = {int(each) for each in attached(vendor_of("npu"), system.env, system.path("/dev"))}
    if not visible:
        return None
    hidden = say(", those in ASCEND_RT_VISIBLE_DEVICES") if len(visible) < count else ""
    if _is_blind(system):
        some = len(visible) if not hidden else say("{some} of {count}", some=len(visible), count=count)
        return say("{some} NPU of unknown health (npu-smi lists none)", some=some) + hidden
    devices = [device for device in listed if device.logical_id is None or device.logical_id in visible]
    sick = [device.label for device in devices if device.is_unhealthy]
    usable, unlisted = len(devices) - len(sick), len(visible) - len(devices)
    if usable <= 0:
        return None
    names = ", ".join(sorted({device.name for device in devices if device.name}))
    some = str(usable) if usable == count else say("{some} of {count}", some=usable, count=count)
    without = say(", without {names}", names=", ".join(sick)) if sick else ""
    unknown_health = say(", {count} of unknown health", count=unlisted) if unlisted > 0 else ""
    busy = sum(bool(device.processes) for device in devices)
    in_use = say(", {count} in use now", count=busy) if busy else ""
    return f"{some} NPU" + (f" ({names})" if names else "") + hidden + without + unknown_health + in_use


def _plain(text: str) -> str:
    return text.rstrip(".")
