"""Checks the libraries that torch_npu needs, and those that LD_LIBRARY_PATH leads to."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from ascendtune.check.doctor.cann import loaded_toolkit
from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.required_versions import advice_for
from ascendtune.check.doctor.system import System
from ascendtune.check.finding import Finding, failure, ok, unknown, warning
from ascendtune.machine.compatibility import release_key
from ascendtune.machine.npu.versions import Toolkit, set_env_script

LIBRARIES = "libraries"

_STUBS = re.compile(r"(^|/)(devlib|stub|stubs)(/|$)")
_RELEASE = re.compile(r"/(?:ascend-toolkit|cann)[-/](\d[\w.]*)")


def _look_at_libraries(system: System) -> Iterator[Finding]:
    if not system.has_npus and not system.package("torch-npu"):
        return
    path = system.env.get("LD_LIBRARY_PATH", "")
    parts = [part for part in path.split(":") if part]
    yield from _stubs(parts)
    yield from _several(parts, loaded_toolkit(system))
    yield from _unresolved(system)


def _stubs(parts: list[str]) -> Iterator[Finding]:
    if stubs := [part for part in parts if _STUBS.search(part)]:
        yield failure(
            LIBRARIES,
            say("LD_LIBRARY_PATH contains stub libraries, which can be linked against but do not compute"),
            expected=say("no devlib or stub directory"),
            remedy=say("remove them from LD_LIBRARY_PATH"),
            evidence=tuple(stubs),
        )


def _several(parts: list[str], loaded: Toolkit | None) -> Iterator[Finding]:
    releases = dict.fromkeys(found[1] for part in parts if (found := _RELEASE.search(part)))
    version = loaded.version if loaded else None
    # Of one release several names are in use: 8.2.RC1 and 8.2.RC1.alpha002, 9.1.0 and 9.1.0-beta.3.
    is_other = version is not None and any(release_key(each)[:2] != release_key(version)[:2] for each in releases)
    if len(releases) > 1:
        what = say("LD_LIBRARY_PATH mixes CANN {names}; the first one is used, file by file", names=", ".join(releases))
    elif is_other:
        names = ", ".join(releases)
        what = say("LD_LIBRARY_PATH has CANN {names}, ASCEND_HOME_PATH CANN {version}", names=names, version=version)
    else:
        return
    yield warning(
        LIBRARIES,
        what,
        expected=say("one release"),
        remedy=say("open a new shell and source only one set_env.sh"),
        evidence=tuple(part for part in parts if _RELEASE.search(part)),
    )


def _unresolved(system: System) -> Iterator[Finding]:
    directory = system.package_directory("torch_npu")
    if directory is None:
        return
    library = directory / "lib" / "libtorch_npu.so"
    if not library.exists():
        why = say("torch_npu has no {library}: its installation is incomplete", library=library)
        yield failure(LIBRARIES, why, remedy=_installed_again(system))
        return
    ldd = system.run(["ldd", str(library)])
    if ldd.exit_code != 0:
        yield unknown(
            LIBRARIES,
            say("ldd cannot read {library}: {error}", library=library, error=(ldd.error or ldd.output).strip()[:200]),
        )
        return
    missing = re.findall(r"^\s*(\S+) => not found", ldd.output, re.MULTILINE)
    missing = [name for name in dict.fromkeys(missing) if not _is_torchs(name, system)]
    if missing:
        yield failure(
            LIBRARIES,
            say("torch_npu cannot be loaded: {names} not found", names=", ".join(missing)),
            expected=say("every library is found"),
            remedy=_path_remedy(missing, system),
            evidence=tuple(f"{name} => not found" for name in missing),
        )
    else:
        yield ok(LIBRARIES, say("every library that torch_npu needs is found"))


def _installed_again(system: System) -> str:
    """The advice if it replaces torch_npu; otherwise the command is extended, because pip would skip the release."""
    advice, version = advice_for(system), system.package("torch-npu")
    if not advice.is_possible or "torch-npu" in advice.packages:
        return advice.text
    return f"pip install --force-reinstall --no-deps torch-npu{f'=={version}' if version else ''}"


def _is_torchs(name: str, system: System) -> bool:
    """torch loads its own libraries before torch_npu needs them."""
    torch = system.package_directory("torch")
    return torch is not None and (torch / "lib" / name).exists()


def _path_remedy(missing: list[str], system: System) -> str:
    """The remedy that adds the directory, of CANN or of the driver, that contains the first missing library."""
    kits = system.versions.toolkits
    for kit in sorted(kits, key=lambda kit: release_key(kit.version or ""), reverse=True):
        directories = (Path(kit.path) / "lib64", *Path(kit.path).glob("*-linux/lib64"))
        if any((directory / missing[0]).exists() for directory in directories):
            return say("source {script}", script=set_env_script(kit, kits) or f"{kit.path}/set_env.sh")
    for directory in sorted(system.path("/usr/local/Ascend").glob("driver/lib64/*"), reverse=True):
        if (directory / missing[0]).exists():
            return f"export LD_LIBRARY_PATH={shlex.quote(str(directory))}:$LD_LIBRARY_PATH"
    return say("source CANN's set_env.sh; in a container also mount /usr/local/Ascend/driver/lib64")


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
