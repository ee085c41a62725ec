"""Python, torch, torch_npu, CANN, driver and firmware against the vendor's tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ascendtune.check.doctor.cann import loaded_toolkit
from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.required_versions import (
    RequiredVersions,
    advice_for,
    is_reported_working,
    user_of_working_pair,
)
from ascendtune.check.doctor.system import System
from ascendtune.check.finding import Finding, failure, ok, unknown, warning
from ascendtune.machine.compatibility import (
    base_version,
    drivers_for,
    find_wheel,
    is_release,
    release_key,
)
from ascendtune.machine.npu.versions import Toolkit, read_list, read_values, runtime_infos

VERSIONS = "versions"


def _look_at_versions(system: System) -> Iterator[Finding]:
    torch, torch_npu = system.package("torch"), system.package("torch-npu")
    kit = loaded_toolkit(system)
    cann = kit.version if kit else None
    if not system.has_npus and not torch_npu:
        return
    # One advice for all findings: a version in one of them must not contradict another.
    advice = advice_for(system)
    found = [
        *_torch_pair(system, torch, torch_npu, advice),
        *_cann(torch_npu, cann, advice),
        *_driver(system, cann),
        *(_interface(system, kit) if kit else ()),
    ]
    names = {"Python": system.python, "torch": torch, "torch_npu": torch_npu, "CANN": cann}
    measured = ", ".join(f"{name} {version or say('missing')}" for name, version in names.items())
    yield from found
    if not found:
        user = user_of_working_pair(torch_npu, cann)
        notes = say("; {user} is published for this pair of torch_npu and CANN", user=user) if user else ""
        if cann and system.driver_version and is_reported_working(system.driver_version, cann):
            notes += say("; this driver was seen working with this CANN")
        driver = system.driver_version or say("unknown")
        yield ok(VERSIONS, say("{versions}, driver {driver}", versions=measured, driver=driver) + notes)


def _torch_pair(
    system: System, torch: str | None, torch_npu: str | None, advice: RequiredVersions
) -> Iterator[Finding]:
    if torch is None or torch_npu is None:
        missing = "torch" if torch is None else "torch_npu"
        yield failure(VERSIONS, say("{missing} is not installed", missing=missing), remedy=advice.text)
        return
    if base_version(torch) != base_version(torch_npu):
        yield failure(
            VERSIONS,
            say("torch_npu {torch_npu} does not work with torch {torch}", torch_npu=torch_npu, torch=torch),
            expected=say("torch and torch_npu with the same first three numbers"),
            remedy=advice.text,
        )
    wheel = find_wheel(torch_npu)
    if wheel and not wheel.takes_python(system.python):
        yield failure(
            VERSIONS,
            say("torch_npu {torch_npu} does not support Python {python}", torch_npu=torch_npu, python=system.python),
            expected=say("Python {names}", names=", ".join(wheel.python)),
            remedy=advice.text,
            evidence=(wheel.source,),
        )


def _cann(torch_npu: str | None, cann: str | None, advice: RequiredVersions) -> Iterator[Finding]:
    if torch_npu is None or cann is None or user_of_working_pair(torch_npu, cann):
        return
    wheel = find_wheel(torch_npu)
    if wheel is None:
        why = say(
            "torch_npu {torch_npu} is not in the vendor's tables, so its CANN version is unknown", torch_npu=torch_npu
        )
        yield unknown(VERSIONS, why, remedy=advice.text)
    elif not wheel.is_made_for(cann) and not (wheel.takes_cann(cann) and advice.keeps_pair):
        # The table lists the pairs that the vendor tested; others often work, and `doctor --deep` tries them.
        accepted = wheel.takes_cann(cann)
        yield warning(
            VERSIONS,
            say(
                "torch_npu {torch_npu} is built for CANN {made_for}, but CANN {loaded} is loaded, ",
                torch_npu=torch_npu,
                made_for=wheel.cann,
                loaded=cann,
            )
            + (say("which the vendor also supports") if accepted else say("a pair that is not in the vendor's table")),
            expected=say(
                "CANN {names}, or a pair with which `ascendtune doctor --deep` computes on every card",
                names=", ".join(dict.fromkeys((wheel.cann, *wheel.also))),
            ),
            remedy=advice.text,
            evidence=(wheel.source,),
        )


def _driver(system: System, cann: str | None) -> Iterator[Finding]:
    driver = system.driver_version
    named = drivers_for(cann) if cann else None
    if cann is None:
        return
    if driver is None or named is None:
        why = (
            say("the driver version is unknown")
            if driver is None
            else say("the vendor's tables have no driver for CANN {cann}", cann=cann)
        )
        yield unknown(VERSIONS, why)
        return
    if any(is_release(driver, each) for each in named.versions) or release_key(driver) >= release_key(named.oldest):
        return
    if is_reported_working(driver, cann):
        return
    # Public bug reports: drivers one year older work with newer CANN, drivers two years older fail with EE1015.
    far = release_key(named.oldest)[0][1] - release_key(driver)[0][1] > 1
    basis = (
        "" if is_release(cann, named.cann) else say(" (table of CANN {cann}, the newest before it)", cann=named.cann)
    )
    yield Finding(
        VERSIONS,
        "failure" if far else "warning",
        say(
            "driver {driver} is {value} for CANN {cann}",
            driver=driver,
            value=say("too old") if far else say("older than the listed versions"),
            cann=cann,
        ),
        expected=say("driver {names} or newer{basis}", names=", ".join(named.versions), basis=basis),
        remedy=say("install driver and firmware {versions} (Ascend HDK) and restart", versions=named.versions[0]),
        evidence=named.sources,
    )


def _interface(system: System, kit: Toolkit) -> Iterator[Finding]:
    """The driver interface version that CANN requires."""
    file, info = next(runtime_infos(Path(kit.path)), (None, {}))
    required = info.get("required_driver_ascendhal_version", "").strip('"<>= ')
    have = read_values(system.text("/usr/local/Ascend/driver/version.info")).get("ascendhal_version")
    if required and have and release_key(have) < release_key(required):
        yield failure(
            VERSIONS,
            say(
                "the driver's interface (ascendhal) is {have}, CANN {version} needs {wanted}",
                have=have,
                version=kit.version,
                wanted=required,
            ),
            expected=say("ascendhal {wanted} or newer", wanted=required),
            remedy=say("install the driver and firmware that belong to this CANN, and restart"),
            evidence=(str(file),),
        )


VERSIONS_CHECK = Check(
    VERSIONS,
    what="Compares Python, torch, torch_npu, the loaded CANN and the driver with the vendor's tables "
    "(machine/compatibility.toml, each row with its source).",
    why="torch_npu does not check versions when it is imported. A wrong pair fails with an undefined symbol in a "
    "library, with EE1015, or with a missing operator after an hour. The number after `.post` does not correspond to a "
    "release; only the table lists it.",
    fix="The remedy names the nearest set that keeps Python and CANN. torch and torch_npu must agree in their first "
    "three numbers. The driver may be newer than the one listed for CANN; one year older is a warning, more is a "
    "failure.",
    look=_look_at_versions,
    vital=True,
)


DRIVER_FIRMWARE = "driver_firmware"

_HOME = "/usr/local/Ascend"


def _look_at_driver_firmware(system: System) -> Iterator[Finding]:
    if not system.has_npus:
        return
    driver = read_values(system.text(f"{_HOME}/driver/version.info"))
    firmware = read_values(system.text(f"{_HOME}/firmware/version.info"))
    driver_version, firmware_version = driver.get("Version"), firmware.get("Version")
    if not driver_version or not firmware_version:
        missing = "driver" if not driver_version else "firmware"
        where = say("; usual in a container, check on the host") if system.in_container else ""
        yield unknown(
            DRIVER_FIRMWARE,
            say("{home}/{missing}/version.info does not exist{where}", home=_HOME, missing=missing, where=where),
        )
        return
    both = say("driver {driver}, firmware {firmware}", driver=driver_version, firmware=firmware_version)
    accepted = read_list(driver.get("compatible_version_fw", ""))
    compatible = read_list(firmware.get("compatible_version_drv", ""))
    if not accepted and not compatible:
        yield unknown(DRIVER_FIRMWARE, say("{both}: neither file lists compatible versions", both=both))
    elif any(_is_within(firmware_version, each) for each in accepted) or any(
        _is_within(driver_version, each) for each in compatible
    ):
        yield ok(DRIVER_FIRMWARE, both)
    else:
        yield failure(
            DRIVER_FIRMWARE,
            say("{both}: neither lists the other as compatible", both=both),
            expected=say("firmware in {names}", names=", ".join(f"[{each}]" for each in accepted))
            if accepted
            else None,
            remedy=say(
                "install driver and firmware of one Ascend HDK release (firmware first for an upgrade) and restart"
            ),
            evidence=(f"{_HOME}/driver/version.info", f"{_HOME}/firmware/version.info"),
        )


def _is_within(version: str, bounds: str) -> bool:
    """ "7.0.0,7.1.99" contains 7.1.0.11.220; the bound "23.0.0." contains all versions with that prefix."""
    low, _, high = bounds.partition(",")
    low, high = low.strip(), (high or low).strip()
    if f"{version.lower()}.".startswith(f"{high.lower().rstrip('.')}."):
        return True
    return release_key(low) <= release_key(version) <= release_key(high.rstrip("."))


DRIVER_FIRMWARE_CHECK = Check(
    DRIVER_FIRMWARE,
    what="Reads the two version.info files and checks whether one lists the other as compatible: "
    "`compatible_version_fw` of the driver, `compatible_version_drv` of the firmware.",
    why="Driver and firmware are installed separately. An incompatible pair starts, and then fails in single operators "
    "or in the links between cards.",
    fix="Install both from the same Ascend HDK release and restart the machine. The newer of the two lists the older, "
    "so one entry is enough.",
    look=_look_at_driver_firmware,
)
