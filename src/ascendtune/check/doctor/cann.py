"""Which CANN toolkits are installed, and which one this environment has loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok
from ascendtune.machine.compatibility import is_release
from ascendtune.machine.npu.versions import Toolkit, read_values

CODE = "cann"

_KERNELS = "opp/built-in/op_impl/ai_core/tbe/kernel"
"""Where CANN looks for compiled operators, a directory a chip (ascend910b); the kernels package brings them."""


def loaded_toolkit(outside: Outside) -> Toolkit | None:
    """The toolkit whose set_env.sh was read in this environment."""
    return next((kit for kit in outside.versions.toolkits if kit.in_use), None)


def _look(outside: Outside) -> Iterator[Finding]:
    if not outside.has_npus:
        return
    kits, loaded = outside.versions.toolkits, loaded_toolkit(outside)
    names = ", ".join(f"{kit.version or kit.package_version} in {kit.path}" for kit in kits)
    if not kits:
        yield Finding(
            CODE,
            "failure",
            "no CANN toolkit in /usr/local/Ascend or at ASCEND_HOME_PATH",
            expected="a toolkit and the kernels (8.5 and later: ops) package of this chip",
            remedy="install Ascend-cann-toolkit and the kernels package, then source set_env.sh",
        )
    elif loaded is None:
        script = f"{Path(kits[-1].path).parent}/set_env.sh"
        wrong = outside.env.get("ASCEND_HOME_PATH")
        yield Finding(
            CODE,
            "failure",
            f"ASCEND_HOME_PATH={wrong} holds no CANN" if wrong else "CANN is installed, but not loaded in this shell",
            expected="ASCEND_HOME_PATH of an installed toolkit",
            remedy=f"source {script}",
            evidence=(f"installed: {names}",),
        )
    else:
        yield from _loaded(loaded, kits, names)
        yield from _nnal(outside, loaded)


def _loaded(loaded: Toolkit, kits: tuple[Toolkit, ...], names: str) -> Iterator[Finding]:
    name = loaded.version or loaded.package_version
    if not any(any(Path(loaded.path).glob(f"{part}{_KERNELS}/ascend*")) for part in ("", "*-linux/")):
        yield Finding(
            CODE,
            "failure",
            f"CANN {name} has no compiled operators: the kernels package is not installed",
            expected=f"a directory of the chip in {_KERNELS}",
            remedy=f"install Ascend-cann-kernels-<chip> {name} (8.5 and later: Ascend-cann-<chip>-ops)",
            evidence=(loaded.path,),
        )
        return
    others = f"; also installed: {names}" if len(kits) > 1 else ""
    yield ok(CODE, f"CANN {name} is loaded from {loaded.path}{others}")


def _nnal(outside: Outside, loaded: Toolkit) -> Iterator[Finding]:
    """The acceleration library (ATB) is optional; one of another release fails when its first operator runs."""
    versions = {
        read_values(path.read_text(errors="replace")).get("Ascend-cann-atb")
        for path in outside.path("/usr/local/Ascend/nnal/atb").glob("*/version.info")
    }
    known = sorted(version for version in versions if version)
    if known and loaded.version and not any(is_release(version, loaded.version) for version in known):
        yield Finding(
            CODE,
            "warning",
            f"nnal (ATB) {', '.join(known)} is installed beside CANN {loaded.version}",
            expected=f"nnal {loaded.version}",
            remedy=f"install Ascend-cann-nnal {loaded.version}, then source /usr/local/Ascend/nnal/atb/set_env.sh",
        )


CHECK = Check(
    CODE,
    what="Lists the CANN toolkits, tells which one this shell has loaded, whether nnal (ATB) is of the same release, "
    "and whether its operators are there.",
    why="torch_npu takes CANN from the environment. A shell without set_env.sh ends with `libhccl.so: cannot open "
    "shared object file`; a toolkit without the kernels package ends with `Cannot find bin of op` (EZ9999, "
    "500001).",
    fix="source .../set_env.sh in every shell and in the job script. Install the kernels (8.5 and later: ops) package "
    "of the chip in the toolkit's version.",
    look=_look,
    vital=True,
)
