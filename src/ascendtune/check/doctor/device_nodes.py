"""The files in /dev through which a process reaches the NPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok

CODE = "device_nodes"

_SHARED = ("davinci_manager", "devmm_svm", "hisi_hdc")
"""Every process needs these beside its own davinciN (vendor's container guide)."""


def _look(outside: Outside) -> Iterator[Finding]:
    cards = outside.npu_nodes
    if not cards:
        return
    nodes = [*cards, *(outside.path(f"/dev/{name}") for name in _SHARED)]
    missing = [node.name for node in nodes if not node.exists()]
    closed = [node.name for node in nodes if node.exists() and not outside.may_access(node, os.R_OK | os.W_OK)]
    if missing:
        options = " ".join(f"--device=/dev/{name}" for name in missing)
        yield Finding(
            CODE,
            "failure",
            f"/dev has davinci0 to davinci{cards[-1].name[7:]} but not {', '.join(missing)}",
            expected=f"{', '.join(_SHARED)} beside the cards",
            remedy=f"start the container with {options}"
            if outside.in_container
            else "install the driver again, restart",
        )
    if closed:
        yield Finding(
            CODE,
            "failure",
            f"this user may not read and write {', '.join(f'/dev/{name}' for name in closed)}",
            expected="read and write for this user, by the group HwHiAiUser",
            remedy="sudo usermod -aG HwHiAiUser $USER, then log in again",
        )
    if not missing and not closed:
        yield ok(CODE, f"{len(cards)} cards and {', '.join(_SHARED)} can be opened")


CHECK = Check(
    CODE,
    what="Looks for /dev/davinci0…, davinci_manager, devmm_svm and hisi_hdc, and whether this user may open them.",
    why="Without one of the three shared files the runtime fails with an initialisation error (507033, -8005) that "
    "names none of them. Their group is HwHiAiUser; who is not in it sees the cards in no tool.",
    fix="Container: pass the missing ones with `--device`. Host: add the user to the group HwHiAiUser and log in "
    "again; if the files are missing, the driver is not loaded (`lsmod | grep drv`).",
    look=_look,
    vital=True,
)
