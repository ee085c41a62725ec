"""The loaded CANN toolkit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.system import System
from ascendtune.check.finding import Finding, failure, ok, warning
from ascendtune.machine.compatibility import is_release, release_key
from ascendtune.machine.npu.chip_family import family_of
from ascendtune.machine.npu.versions import Toolkit, ascend_homes, read_values, set_env_script

CANN = "cann"

_KERNELS = "opp/built-in/op_impl/ai_core/tbe/kernel"
"""CANN's directory of compiled operators, with one subdirectory per chip (ascend910b), from the kernels package."""


def loaded_toolkit(system: System) -> Toolkit | None:
    """The toolkit whose set_env.sh was sourced in this environment."""
    return next((kit for kit in system.versions.toolkits if kit.in_use), None)


def operator_packages(system: System, cann: str) -> str:
    """The packages of compiled operators that the chips of this machine need of a CANN release; empty if unknown."""
    families = (family_of(device.name) for device in system.npu_smi[0].devices if device.name)
    return ", ".join(dict.fromkeys(family.package(cann) for family in families if family))


def _look_at_cann(system: System) -> Iterator[Finding]:
    if not system.has_npus:
        return
    kits, loaded = system.versions.toolkits, loaded_toolkit(system)
    names = ", ".join(f"{kit.version or kit.package_version} in {kit.path}" for kit in kits)
    if not kits:
        yield failure(
            CANN,
            say("no CANN toolkit in /usr/local/Ascend, in ~/Ascend or at ASCEND_HOME_PATH"),
            expected=say("a toolkit and the kernels (8.5 and later: ops) package of this chip"),
            remedy=say("install Ascend-cann-toolkit and the kernels package, then source set_env.sh"),
        )
    elif loaded is None:
        newest = max(kits, key=lambda kit: release_key(kit.version or ""))
        script = set_env_script(newest, kits) or f"{newest.path}/set_env.sh"
        wrong = system.env.get("ASCEND_HOME_PATH")
        yield failure(
            CANN,
            say("ASCEND_HOME_PATH={wrong} does not contain CANN", wrong=wrong)
            if wrong
            else say("CANN is installed, but not loaded in this shell"),
            expected=say("ASCEND_HOME_PATH set to an installed toolkit"),
            remedy=say("source {script}", script=script),
            evidence=(f"installed: {names}",),
        )
    else:
        yield from _loaded(system, loaded, kits, names)
        yield from _nnal(system, loaded)


def _loaded(system: System, loaded: Toolkit, kits: tuple[Toolkit, ...], names: str) -> Iterator[Finding]:
    name = loaded.version or loaded.package_version or ""
    there = {path.name for part in ("", "*-linux/") for path in Path(loaded.path).glob(f"{part}{_KERNELS}/ascend*")}
    chips = {device.name: family_of(device.name) for device in system.npu_smi[0].devices if device.name}
    wanted = {chip: family.directory for chip, family in chips.items() if family}
    lacking = {chip: directory for chip, directory in wanted.items() if directory not in there}
    packages = operator_packages(system, name)
    if not there:
        yield failure(
            CANN,
            say("CANN {name} has no compiled operators: the kernels package is not installed", name=name),
            expected=say("a directory of the chip in {kernels}", kernels=_KERNELS),
            remedy=say("install {packages} {name}", packages=packages, name=name)
            if packages
            else say("install Ascend-cann-kernels-<chip> {name} (8.5 and later: Ascend-cann-<chip>-ops)", name=name),
            evidence=(loaded.path,),
        )
        return
    if lacking:
        yield failure(
            CANN,
            say(
                "CANN {name} has compiled operators for {there}, not for the chips of this machine ({chips})",
                name=name,
                there=", ".join(sorted(there)),
                chips=", ".join(lacking),
            ),
            expected=", ".join(dict.fromkeys(f"{_KERNELS}/{directory}" for directory in lacking.values())),
            remedy=say("install {packages} {name}", packages=packages, name=name),
            evidence=(loaded.path,),
        )
        return
    others = say("; also installed: {names}", names=names) if len(kits) > 1 else ""
    yield ok(CANN, say("CANN {name} is loaded from {path}{others}", name=name, path=loaded.path, others=others))


def _nnal(system: System, loaded: Toolkit) -> Iterator[Finding]:
    """The acceleration library (ATB) is optional; another release fails when its first operator runs."""
    versions = {
        read_values(path.read_text(errors="replace")).get("Ascend-cann-atb")
        for home in ascend_homes(system.root, system.env)
        for path in (home / "nnal/atb").glob("*/version.info")
    }
    known = sorted(version for version in versions if version)
    if known and loaded.version and not any(is_release(version, loaded.version) for version in known):
        yield warning(
            CANN,
            say(
                "nnal (ATB) {names} {count:is|are} installed beside CANN {version}",
                count=len(known),
                names=", ".join(known),
                version=loaded.version,
            ),
            expected=say("nnal {version}", version=loaded.version),
            remedy=say(
                "install Ascend-cann-nnal {version}, then source /usr/local/Ascend/nnal/atb/set_env.sh",
                version=loaded.version,
            ),
        )


CANN_CHECK = Check(
    CANN,
    what="Lists the CANN toolkits and the one that this shell has loaded, and checks that nnal (ATB) is of the same "
    "release and that compiled operators of this machine's chips are installed.",
    why="torch_npu finds CANN through the environment. A shell without set_env.sh ends with `libhccl.so: cannot open "
    "shared object file`; a toolkit without the kernels package of the chip ends with `Cannot find bin of op` (EZ9999, "
    "500001).",
    fix="source .../set_env.sh in every shell and in the job script. Install the kernels (8.5 and later: ops) package "
    "of the chip in the toolkit's version.",
    look=_look_at_cann,
    vital=True,
)
