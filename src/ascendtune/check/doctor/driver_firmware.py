"""Whether driver and firmware accept each other."""

from __future__ import annotations

from collections.abc import Iterator

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok, unknown
from ascendtune.machine.compatibility import release_key
from ascendtune.machine.npu.versions import read_list, read_values

CODE = "driver_firmware"

_HOME = "/usr/local/Ascend"


def _look(outside: Outside) -> Iterator[Finding]:
    if not outside.has_npus:
        return
    driver = read_values(outside.text(f"{_HOME}/driver/version.info"))
    firmware = read_values(outside.text(f"{_HOME}/firmware/version.info"))
    driver_version, firmware_version = driver.get("Version"), firmware.get("Version")
    if not driver_version or not firmware_version:
        missing = "driver" if not driver_version else "firmware"
        where = "; usual in a container, ask on the host" if outside.in_container else ""
        yield unknown(CODE, f"{_HOME}/{missing}/version.info is not here{where}")
        return
    both = f"driver {driver_version}, firmware {firmware_version}"
    accepted = read_list(driver.get("compatible_version_fw", ""))
    asked = read_list(firmware.get("compatible_version_drv", ""))
    if not accepted and not asked:
        yield unknown(CODE, f"{both}: neither file says what goes with it")
    elif any(_lies_in(firmware_version, each) for each in accepted) or any(
        _lies_in(driver_version, each) for each in asked
    ):
        yield ok(CODE, both)
    else:
        yield Finding(
            CODE,
            "failure",
            f"{both}: they do not accept each other",
            expected=f"firmware in {', '.join(f'[{each}]' for each in accepted)}" if accepted else None,
            remedy="install driver and firmware of one Ascend HDK release (firmware first for an upgrade) and restart",
            evidence=(f"{_HOME}/driver/version.info", f"{_HOME}/firmware/version.info"),
        )


def _lies_in(version: str, bounds: str) -> bool:
    """ "7.0.0,7.1.99" holds 7.1.0.11.220; an end "23.0.0." holds all that begins so; a single one stands for itself."""
    low, _, high = bounds.partition(",")
    low, high = low.strip(), (high or low).strip()
    if f"{version.lower()}.".startswith(f"{high.lower().rstrip('.')}."):
        return True
    return release_key(low) <= release_key(version) <= release_key(high.rstrip("."))


CHECK = Check(
    CODE,
    what="Reads the two version.info files and checks whether one accepts the other: `compatible_version_fw` of the "
    "driver, `compatible_version_drv` of the firmware.",
    why="Driver and firmware are installed one by one. A pair that does not belong together starts, and then fails in "
    "single operators or in the links between cards.",
    fix="Install both from the same Ascend HDK release and restart the machine. The newer of the two knows the older, "
    "so one acceptance is enough.",
    look=_look,
)
