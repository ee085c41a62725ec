"""The type of a check, the parallel run of all checks within a time limit, and the verdict on their findings."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name

from ascendtune.check.doctor import CHECKS, DEEP_CHECKS, NODE_CHECKS
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.outside import COMPUTE_SECONDS, Outside
from ascendtune.check.finding import Finding, unknown
from ascendtune.core.units import count_of
from ascendtune.machine.inventory import Accelerator


@dataclass(frozen=True)
class Check:
    """`look` returns findings with this check's code; none if the check does not apply to the machine.

    `what`, `why` and `fix` become the page docs/checks/CODE.md.
    """

    code: str
    what: str
    why: str
    fix: str
    look: Callable[[Outside], Iterable[Finding]]
    vital: bool = False
    """Whether a failure makes training on the accelerators impossible."""


_ALARM_IS_NORMAL = ("310B",)
"""Developer boards report Alarm for components that the board lacks (transcripts of 310B1 and 310B4)."""
_SICK = ("alarm", "critical", "unknown")
LIMIT_SECONDS = 20.0
"""Longer than any sequence of limited queries; a check that takes longer hangs in the kernel (a dead NFS server)."""

DEEP_LIMIT_SECONDS = 4 * COMPUTE_SECONDS + LIMIT_SECONDS
"""For sixteen devices, four at a time, each within its own limit."""


@dataclass(frozen=True)
class Examination:
    """`not_applicable` are the codes of checks that do not apply to this machine."""

    findings: tuple[Finding, ...]
    not_applicable: tuple[str, ...]


def examine(outside: Outside, codes: Sequence[str] = (), *, limit_seconds: float | None = None) -> Examination:
    """Run the checks in parallel. Findings are in the order of the table, the most important first.

    Args:
        codes: the checks to run (default: all of `CHECKS`).
        limit_seconds: a check that takes longer is abandoned; its finding is unknown.
    """
    chosen = [code for code in (*CHECKS, *DEEP_CHECKS, *NODE_CHECKS) if code in (codes or CHECKS)]
    checks = [get_check(code) for code in chosen]
    if limit_seconds is None:
        limit_seconds = DEEP_LIMIT_SECONDS if DEEP_CHECKS.keys() & set(chosen) else LIMIT_SECONDS
    answers: dict[str, list[Finding]] = {}
    # Daemon threads: a check that hangs in the kernel must not keep the process from exiting.
    threads = [threading.Thread(target=_make, args=(check, outside, answers), daemon=True) for check in checks]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit_seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    told = {check.code: answers.get(check.code) for check in checks}
    late = f"no answer within {limit_seconds:g} s"
    findings = [
        each for code, found in told.items() for each in (found if found is not None else [unknown(code, late)])
    ]
    return Examination(tuple(findings), tuple(code for code, found in told.items() if found == []))


def get_check(code: str) -> Check:
    """The check with this code. Raises KeyError."""
    check: Check = resolve_name((CHECKS | DEEP_CHECKS | NODE_CHECKS)[code])
    return check


def alarm_is_normal(device: Accelerator) -> bool:
    """Whether a device reports an alarm that is usual on its board."""
    return device.health == "Alarm" and (device.name or "").startswith(_ALARM_IS_NORMAL)


def is_sick(device: Accelerator) -> bool:
    """Whether a device reports an alarm, so that no job should count on it."""
    return (device.health or "").lower() in _SICK and not alarm_is_normal(device)


def _make(check: Check, outside: Outside, answers: dict[str, list[Finding]]) -> None:
    try:
        answers[check.code] = list(check.look(outside))
    except Exception as error:  # noqa: BLE001  # a check that fails must not hide the others
        why = say("the check itself failed: {__name__}: {error}", __name__=type(error).__name__, error=error)
        answers[check.code] = [unknown(check.code, why, remedy=say("report this as a bug of ascendtune"))]


def verdict(examination: Examination, outside: Outside) -> str:
    """One sentence: the devices that this machine trains on, or what keeps it from training and the first remedy."""
    failures = [each for each in examination.findings if each.status == "failure"]
    warnings = sum(each.status == "warning" for each in examination.findings)
    vital = [each for each in failures if get_check(each.code).vital]
    if vital:
        return f"this machine cannot train: {_plain(vital[0].measured)}; do: {vital[0].remedy}"
    where = trains_on(outside)
    if failures:
        more = say(" (and {value} more)", value=len(failures) - 1) if len(failures) > 1 else ""
        return f"this machine trains on {where}, but {_plain(failures[0].measured)}{more}; do: {failures[0].remedy}"
    suffix = (
        ""
        if not warnings
        else say(", with 1 warning")
        if warnings == 1
        else say(", with {warnings} warnings", warnings=warnings)
    )
    return f"this machine trains on {where}{suffix}"


def trains_on(outside: Outside) -> str:
    """The devices that a job on this machine would use, in words."""
    if outside.npu_nodes and outside.package("torch-npu"):
        return _npus(outside)
    devices = outside.gpus[0]
    if devices and outside.package("torch"):
        names = {device.name for device in devices if device.name}
        return f"{len(devices)} GPU" + (f" ({', '.join(sorted(names))})" if names else "")
    return f"the CPU ({count_of(len(os.sched_getaffinity(0)), 'core')}); larger models need an NPU or a GPU"


def _npus(outside: Outside) -> str:
    """The NPUs without those that report an alarm; of unknown health where npu-smi lists none."""
    count, devices = len(outside.npu_nodes), outside.npu_smi[0].devices
    if not devices:
        return f"{count} NPU of unknown health (npu-smi lists none)"
    names = ", ".join(sorted({device.name for device in devices if device.name}))
    kind = f" ({names})" if names else ""
    sick = [device.label for device in devices if is_sick(device)]
    return f"{count - len(sick)} of {count} NPU{kind}, without {', '.join(sick)}" if sick else f"{count} NPU{kind}"


def _plain(text: str) -> str:
    return text.rstrip(".")
