"""Whether npu-smi answers, and whether it sees what /dev has."""

from __future__ import annotations

from collections.abc import Iterator

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok, unknown
from ascendtune.core.units import count_of
from ascendtune.machine.inventory import Trouble

CODE = "npu_smi"

_QUIET = ("not_supported", "unknown_question")
"""A chip that lacks one answer is no trouble of the machine."""
_BROKEN = ("npu_smi_hangs", "dcmi_not_initialized", "no_npu", "npu_smi_not_executable")
"""What speaks against the machine itself. Other inner errors are usual in containers where the cards do compute."""


def _look(outside: Outside) -> Iterator[Finding]:
    info, troubles, answers = outside.npu_smi
    if info.devices:
        troubles = tuple(trouble for trouble in troubles if trouble.code not in _QUIET)
    if not outside.has_npus and not info.devices and not troubles:
        return
    yield from (_trouble(trouble) for trouble in troubles)
    if not info.devices:
        if not troubles and not answers:
            yield _absent(outside)
        return
    chips, nodes = len(info.devices), len(outside.npu_nodes)
    if chips == nodes:
        if not troubles:
            yield ok(CODE, f"npu-smi {info.npu_smi_version or ''} lists {count_of(chips, 'chip')}, as /dev does")
    else:
        yield Finding(
            CODE,
            "warning",
            f"npu-smi lists {count_of(chips, 'chip')}, /dev has {nodes} of davinciN",
            expected="the same number",
            remedy="in a container: map the same cards as npu-smi shows; on the host: look at the kernel log for a "
            "card that did not start",
        )


def _trouble(trouble: Trouble) -> Finding:
    return Finding(
        CODE,
        "failure" if trouble.code in _BROKEN else "warning",
        trouble.what,
        expected="a table of the cards",
        remedy=trouble.remedy,
        evidence=(trouble.evidence,) if trouble.evidence else (),
    )


def _absent(outside: Outside) -> Finding:
    mounts = "-v /usr/local/sbin/npu-smi:/usr/local/sbin/npu-smi -v /usr/local/dcmi:/usr/local/dcmi"
    where = f"start the container with {mounts}" if outside.in_container else "add its directory to PATH"
    why = "npu-smi was not found, so health, memory and processes cannot be seen; training does not need it"
    return unknown(CODE, why, remedy=where)


CHECK = Check(
    CODE,
    what="Asks `npu-smi info`, five seconds at most, and compares its chips with the device files.",
    why="npu-smi hangs when a card or its driver hangs, and training then hangs at its first operator. An inner error "
    "alone proves nothing about the cards: in containers with a part of them, or without /usr/local/dcmi, npu-smi "
    "fails where torch_npu computes.",
    fix="Hanging: look at `dmesg`, end the processes that hold the card, restart. -8005: group HwHiAiUser, device "
    "files, and a restart after the driver was installed. -8020: another container has the card. -9005 or missing "
    "libraries: mount /usr/local/dcmi and /usr/local/Ascend/driver/lib64.",
    look=_look,
    vital=True,
)
