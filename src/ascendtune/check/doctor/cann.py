"""The loaded CANN toolkit, and the libraries below torch_npu."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, failure, ok, unknown, warning
from ascendtune.machine.compatibility import is_release
from ascendtune.machine.npu.versions import Toolkit, read_values

CANN = "cann"

_KERNELS = "opp/built-in/op_impl/ai_core/tbe/kernel"
"""Where CANN looks for compiled operators, one directory per chip (ascend910b); the kernels package installs them."""


def loaded_toolkit(outside: Outside) -> Toolkit | None:
    """The toolkit whose set_env.sh was sourced in this environment."""
    return next((kit for kit in outside.versions.toolkits if kit.in_use), None)


def _look_at_cann(outside: Outside) -> Iterator[Finding]:
    if not outside.has_npus:
        return
    kits, loaded = outside.versions.toolkits, loaded_toolkit(outside)
    names = ", ".join(f"{kit.version or kit.package_version} in {kit.path}" for kit in kits)
    if not kits:
        yield failure(
            CANN,
            say("no CANN toolkit in /usr/local/Ascend or at ASCEND_HOME_PATH"),
            expected=say("a toolkit and the kernels (8.5 and later: ops) package of this chip"),
            remedy=say("install Ascend-cann-toolkit and the kernels package, then source set_env.sh"),
        )
    elif loaded is None:
        script = f"{Path(kits[-1].path).parent}/set_env.sh"
        wrong = outside.env.get("ASCEND_HOME_PATH")
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
        yield from _loaded(loaded, kits, names)
        yield from _nnal(outside, loaded)


def _loaded(loaded: Toolkit, kits: tuple[Toolkit, ...], names: str) -> Iterator[Finding]:
    name = loaded.version or loaded.package_version
    if not any(any(Path(loaded.path).glob(f"{part}{_KERNELS}/ascend*")) for part in ("", "*-linux/")):
        yield failure(
            CANN,
            say("CANN {name} has no compiled operators: the kernels package is not installed", name=name),
            expected=say("a directory of the chip in {kernels}", kernels=_KERNELS),
            remedy=say("install Ascend-cann-kernels-<chip> {name} (8.5 and later: Ascend-cann-<chip>-ops)", name=name),
            evidence=(loaded.path,),
        )
        return
    others = say("; also installed: {names}", names=names) if len(kits) > 1 else ""
    yield ok(CANN, say("CANN {name} is loaded from {path}{others}", name=name, path=loaded.path, others=others))


def _nnal(outside: Outside, loaded: Toolkit) -> Iterator[Finding]:
    """The acceleration library (ATB) is optional; another release fails when its first operator runs."""
    versions = {
        read_values(path.read_text(errors="replace")).get("Ascend-cann-atb")
        for path in outside.path("/usr/local/Ascend/nnal/atb").glob("*/version.info")
    }
    known = sorted(version for version in versions if version)
    if known and loaded.version and not any(is_release(version, loaded.version) for version in known):
        yield warning(
            CANN,
            say(
                "nnal (ATB) {names} is installed beside CANN {version}", names=", ".join(known), version=loaded.version
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
    "release and that compiled operators are installed.",
    why="torch_npu finds CANN through the environment. A shell without set_env.sh ends with `libhccl.so: cannot open "
    "shared object file`; a toolkit without the kernels package ends with `Cannot find bin of op` (EZ9999, 500001).",
    fix="source .../set_env.sh in every shell and in the job script. Install the kernels (8.5 and later: ops) package "
    "of the chip in the toolkit's version.",
    look=_look_at_cann,
    vital=True,
)


LIBRARIES = "libraries"

_STUBS = re.compile(r"(^|/)(devlib|stub|stubs)(/|$)")
_RELEASE = re.compile(r"/(?:ascend-toolkit|cann)[-/](\d[\w.]*)")


def _look_at_libraries(outside: Outside) -> Iterator[Finding]:
    if not outside.has_npus and not outside.package("torch-npu"):
        return
    path = outside.env.get("LD_LIBRARY_PATH", "")
    parts = [part for part in path.split(":") if part]
    yield from _stubs(parts)
    yield from _several(parts)
    yield from _unresolved(outside)


def _stubs(parts: list[str]) -> Iterator[Finding]:
    if stubs := [part for part in parts if _STUBS.search(part)]:
        yield failure(
            LIBRARIES,
            say("LD_LIBRARY_PATH contains stub libraries, which can be linked against but do not compute"),
            expected=say("no devlib or stub directory"),
            remedy=say("remove them from LD_LIBRARY_PATH"),
            evidence=tuple(stubs),
        )


def _several(parts: list[str]) -> Iterator[Finding]:
    releases = dict.fromkeys(found[1] for part in parts if (found := _RELEASE.search(part)))
    if len(releases) > 1:
        yield warning(
            LIBRARIES,
            say("LD_LIBRARY_PATH mixes CANN {names}; the first one is used, file by file", names=", ".join(releases)),
            expected=say("one release"),
            remedy=say("open a new shell and source only one set_env.sh"),
            evidence=tuple(part for part in parts if _RELEASE.search(part)),
        )


def _unresolved(outside: Outside) -> Iterator[Finding]:
    directory = outside.package_directory("torch_npu")
    if directory is None:
        return
    library = directory / "lib" / "libtorch_npu.so"
    if not library.exists():
        why = say("torch_npu has no {library}: its installation is incomplete", library=library)
        yield failure(LIBRARIES, why, remedy=say("pip install --force-reinstall --no-deps torch-npu"))
        return
    told = outside.run(["ldd", str(library)])
    if told.exit_code != 0:
        yield unknown(
            LIBRARIES,
            say("ldd cannot read {library}: {error}", library=library, error=(told.error or told.output).strip()[:200]),
        )
        return
    missing = re.findall(r"^\s*(\S+) => not found", told.output, re.MULTILINE)
    missing = [name for name in dict.fromkeys(missing) if not _is_torchs(name, outside)]
    if missing:
        yield failure(
            LIBRARIES,
            say("torch_npu cannot be loaded: {names} not found", names=", ".join(missing)),
            expected=say("every library is found"),
            remedy=_where_from(missing, outside),
            evidence=tuple(f"{name} => not found" for name in missing),
        )
    else:
        yield ok(LIBRARIES, say("every library that torch_npu needs is found"))


def _is_torchs(name: str, outside: Outside) -> bool:
    """torch loads its own libraries before torch_npu needs them."""
    torch = outside.package_directory("torch")
    return torch is not None and (torch / "lib" / name).exists()


def _where_from(missing: list[str], outside: Outside) -> str:
    """How to add the directory of CANN or the driver that contains the first of them."""
    for pattern in ("ascend-toolkit/*/lib64", "ascend-toolkit/*/*-linux/lib64", "cann*/lib64", "driver/lib64/*"):
        for directory in sorted(outside.path("/usr/local/Ascend").glob(pattern), reverse=True):
            if (directory / missing[0]).exists():
                return _how(directory)
    return say("source CANN's set_env.sh; in a container also mount /usr/local/Ascend/driver/lib64")


def _how(directory: Path) -> str:
    if "driver" in directory.parts:
        return f"export LD_LIBRARY_PATH={directory}:$LD_LIBRARY_PATH"
    return say("source the set_env.sh of the CANN that has it, in {directory}", directory=directory)


LIBRARIES_CHECK = Check(
    LIBRARIES,
    what="Runs `ldd` on torch_npu to find missing libraries, and checks LD_LIBRARY_PATH for stub directories and for "
    "two CANN releases.",
    why="`ImportError: libhccl.so: cannot open shared object file` is the most common first error on Ascend. Stub "
    "libraries (devlib) load and then fail with 100039; a mix of two CANN releases fails with misleading errors.",
    fix="Start from a new shell and source one set_env.sh; add /usr/local/Ascend/driver/lib64/driver and .../common "
    "when libascend_hal.so or libdrvdsmi_host.so is missing; remove stub directories.",
    look=_look_at_libraries,
    vital=True,
)
