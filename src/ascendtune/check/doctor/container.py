"""Whether the container has the mounts that the NPUs need, and no privileges beyond."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.system import System
from ascendtune.check.finding import Finding, Status, ok, warning

CONTAINER = "container"

_DRIVER = "/usr/local/Ascend/driver"
_NPU_SMI = "/usr/local/sbin/npu-smi"
MOUNT_NPU_SMI = f"-v $(command -v npu-smi):{_NPU_SMI}"
"""Older drivers install it in sbin, newer ones in bin; Docker makes a directory of a path that the host lacks."""
_TOOL: tuple[Status, str] = ("warning", "health, memory and processes of the cards are unknown")
_MOUNTS: dict[str, tuple[Status, str]] = {
    f"{_DRIVER}/lib64": ("failure", "torch_npu cannot load the driver's libraries"),
    f"{_DRIVER}/version.info": ("warning", "the driver version is unknown"),
    f"{_DRIVER}/tools/hccn_tool": ("warning", "the network ports of the NPUs are unknown"),
    "/usr/local/dcmi": ("warning", "npu-smi fails (-9005) without it"),
    "/etc/ascend_install.info": ("warning", "tools of the driver do not find where it is installed"),
}
_CAP_SYS_PTRACE = 19
_ALL_CAPABILITIES = 0x1FFFFFFFFF
"""The 37 capabilities of the oldest kernel in use on such servers; a privileged process has all of them."""


def _look(system: System) -> Iterator[Finding]:
    has_npus = bool(system.npu_nodes or system.npus_on_bus)
    if not system.in_container or not (has_npus or system.gpus[0]):
        return
    mask = _capabilities(system)
    found = [*(_mounts(system) if has_npus else ()), *_privileges(mask, has_npus=has_npus)]
    yield from found
    if not found:
        mounted = say("driver libraries, version file and dcmi are mounted") if has_npus else say("not privileged")
        untraced = mask is not None and not mask >> _CAP_SYS_PTRACE & 1
        note = say("; without CAP_SYS_PTRACE, which py-spy may need to show the stacks of a rank that hangs")
        yield ok(CONTAINER, mounted + (note if untraced else ""))


def _mounts(system: System) -> Iterator[Finding]:
    missing = [place for place in _MOUNTS if not system.path(place).exists()]
    if not _has_npu_smi(system):
        missing.append(_NPU_SMI)
    for status in ("failure", "warning"):
        places = [place for place in missing if _MOUNTS.get(place, _TOOL)[0] == status]
        if places:
            yield Finding(
                CONTAINER,
                status,
                say("; ").join(
                    say("{place} does not exist: {why}", place=place, why=say(_MOUNTS.get(place, _TOOL)[1]))
                    for place in places
                ),
                expected=say("mounted from the host"),
                remedy=say("start the container with {options}", options=" ".join(_options(missing))),
            )


def _options(places: list[str]) -> list[str]:
    """The options that mount all of them; the driver's directory once if several of its parts are missing."""
    parts = [place for place in places if place.startswith(f"{_DRIVER}/")]
    whole = [_DRIVER] if len(parts) > 1 else parts
    rest = (each for each in places if each not in parts)
    return [MOUNT_NPU_SMI if place == _NPU_SMI else f"-v {place}:{place}" for place in (*whole, *rest)]


def _has_npu_smi(system: System) -> bool:
    is_in_path = shutil.which("npu-smi", path=system.env.get("PATH")) is not None
    return is_in_path or any(system.path(place).exists() for place in (_NPU_SMI, "/usr/local/bin/npu-smi"))


def _capabilities(system: System) -> int | None:
    """The effective capabilities as a bit mask; None if unknown."""
    mask = re.search(r"^CapEff:\s*([0-9a-f]+)", system.text("/proc/self/status"), re.MULTILINE)
    return int(mask[1], 16) if mask else None


def _privileges(mask: int | None, *, has_npus: bool) -> Iterator[Finding]:
    if mask is not None and mask & _ALL_CAPABILITIES == _ALL_CAPABILITIES:
        each_card = say("--device=/dev/davinciN for each card, and the three shared files")
        devices = each_card if has_npus else "--gpus"
        yield warning(
            CONTAINER,
            say("the container runs with --privileged, which training does not need"),
            expected=devices,
            remedy=say(
                "replace --privileged by {value}, --shm-size and, for stack dumps, --cap-add=SYS_PTRACE",
                value=say("--device options") if has_npus else say("--gpus all"),
            ),
        )


CONTAINER_CHECK = Check(
    CONTAINER,
    what="In a container: checks that the driver's libraries, version file and tools (npu-smi, hccn_tool), dcmi "
    "and /etc/ascend_install.info are mounted, and that the container is not privileged.",
    why="Images contain CANN, but not the driver, which is mounted from the host. Each missing mount fails with a "
    "different error, and none of them names the mount. With --privileged every container sees every card, and two "
    "jobs may use the same one.",
    fix="docker run --device=/dev/davinci0 … --device=/dev/davinci_manager --device=/dev/devmm_svm "
    "--device=/dev/hisi_hdc -v /usr/local/Ascend/driver:/usr/local/Ascend/driver -v /usr/local/dcmi:/usr/local/dcmi -v "
    "$(command -v npu-smi):/usr/local/sbin/npu-smi -v /etc/ascend_install.info:/etc/ascend_install.info "
    "--shm-size=16g, or use Ascend Docker Runtime, which does all of this.",
    look=_look,
    vital=True,
)
