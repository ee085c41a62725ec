"""Whether the container was given what the NPUs need, and not more."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok

CODE = "container"

_MOUNTS = {
    "/usr/local/Ascend/driver/lib64": ("failure", "torch_npu cannot reach the driver without its libraries"),
    "/usr/local/Ascend/driver/version.info": ("warning", "the driver's version cannot be told"),
    "/usr/local/dcmi": ("warning", "npu-smi fails (-9005) without it"),
}
_ALL_CAPABILITIES = 0x1FFFFFFFFF
"""The 37 capabilities of the oldest kernel that is in use on such servers; a privileged process has them all."""


def _look(outside: Outside) -> Iterator[Finding]:
    if not outside.in_container or not outside.npu_nodes:
        return
    found = [*_mounts(outside), *_privileges(outside)]
    yield from found
    if not found:
        yield ok(CODE, "driver libraries, version file and dcmi are mounted")


def _mounts(outside: Outside) -> Iterator[Finding]:
    for place, (status, why) in _MOUNTS.items():
        if not outside.path(place).exists():
            yield Finding(
                CODE,
                "failure" if status == "failure" else "warning",
                f"{place} is not here: {why}",
                expected="mounted from the host",
                remedy=f"start the container with -v {place}:{place}",
            )


def _privileges(outside: Outside) -> Iterator[Finding]:
    held = re.search(r"^CapEff:\s*([0-9a-f]+)", outside.text("/proc/self/status"), re.MULTILINE)
    if held and int(held[1], 16) & _ALL_CAPABILITIES == _ALL_CAPABILITIES:
        yield Finding(
            CODE,
            "warning",
            "the container runs with --privileged, which training does not need",
            expected="--device=/dev/davinciN for each card, and the three shared files",
            remedy="replace --privileged by --device options, --shm-size and, for stack dumps, --cap-add=SYS_PTRACE",
        )


CHECK = Check(
    CODE,
    what="Within a container: looks for the driver's libraries and version file, for dcmi, and for rights that are not "
    "needed.",
    why="Images bring CANN, but never the driver: that comes from the host by mounts. Each that is missing fails in "
    "its own way, and none of the messages names the mount. With --privileged every container sees every card, "
    "and two jobs meet on one.",
    fix="docker run --device=/dev/davinci0 … --device=/dev/davinci_manager --device=/dev/devmm_svm "
    "--device=/dev/hisi_hdc -v /usr/local/Ascend/driver:/usr/local/Ascend/driver -v "
    "/usr/local/dcmi:/usr/local/dcmi -v /usr/local/sbin/npu-smi:/usr/local/sbin/npu-smi -v "
    "/etc/ascend_install.info:/etc/ascend_install.info --shm-size=16g, or Ascend Docker Runtime, which does all "
    "of it.",
    look=_look,
    vital=True,
)
