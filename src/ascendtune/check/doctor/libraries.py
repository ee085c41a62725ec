"""Whether the libraries below torch_npu can be loaded, and are the right ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok, unknown

CODE = "libraries"

_STUBS = re.compile(r"(^|/)(devlib|stub|stubs)(/|$)")
_RELEASE = re.compile(r"/(?:ascend-toolkit|cann)[-/](\d[\w.]*)")


def _look(outside: Outside) -> Iterator[Finding]:
    if not outside.has_npus and not outside.package("torch-npu"):
        return
    path = outside.env.get("LD_LIBRARY_PATH", "")
    parts = [part for part in path.split(":") if part]
    yield from _stubs(parts)
    yield from _several(parts)
    yield from _unresolved(outside)


def _stubs(parts: list[str]) -> Iterator[Finding]:
    if stubs := [part for part in parts if _STUBS.search(part)]:
        yield Finding(
            CODE,
            "failure",
            "stub libraries are on LD_LIBRARY_PATH: they can be linked against, but compute nothing",
            expected="no devlib or stub directory",
            remedy="take these out of LD_LIBRARY_PATH",
            evidence=tuple(stubs),
        )


def _several(parts: list[str]) -> Iterator[Finding]:
    releases = dict.fromkeys(found[1] for part in parts if (found := _RELEASE.search(part)))
    if len(releases) > 1:
        yield Finding(
            CODE,
            "warning",
            f"LD_LIBRARY_PATH mixes CANN {', '.join(releases)}; the first one wins, file by file",
            expected="one release",
            remedy="open a new shell and source only one set_env.sh",
            evidence=tuple(part for part in parts if _RELEASE.search(part)),
        )


def _unresolved(outside: Outside) -> Iterator[Finding]:
    directory = outside.package_directory("torch_npu")
    if directory is None:
        return
    library = directory / "lib" / "libtorch_npu.so"
    if not library.exists():
        why = f"torch_npu has no {library}: its installation is incomplete"
        yield Finding(CODE, "failure", why, remedy="pip install --force-reinstall --no-deps torch-npu")
        return
    told = outside.run(["ldd", str(library)])
    if told.exit_code != 0:
        yield unknown(CODE, f"ldd cannot read {library}: {(told.error or told.output).strip()[:200]}")
        return
    missing = re.findall(r"^\s*(\S+) => not found", told.output, re.MULTILINE)
    missing = [name for name in dict.fromkeys(missing) if not _is_torchs(name, outside)]
    if missing:
        yield Finding(
            CODE,
            "failure",
            f"torch_npu cannot be loaded: {', '.join(missing)} not found",
            expected="every library resolves",
            remedy=_where_from(missing, outside),
            evidence=tuple(f"{name} => not found" for name in missing),
        )
    else:
        yield ok(CODE, "every library that torch_npu needs is found")


def _is_torchs(name: str, outside: Outside) -> bool:
    """torch has loaded its own libraries before torch_npu asks for them."""
    torch = outside.package_directory("torch")
    return torch is not None and (torch / "lib" / name).exists()


def _where_from(missing: list[str], outside: Outside) -> str:
    """The directory that has the first of them, in CANN or the driver."""
    for pattern in ("ascend-toolkit/*/lib64", "ascend-toolkit/*/*-linux/lib64", "cann*/lib64", "driver/lib64/*"):
        for directory in sorted(outside.path("/usr/local/Ascend").glob(pattern), reverse=True):
            if (directory / missing[0]).exists():
                return _how(directory)
    return "source CANN's set_env.sh; in a container also mount /usr/local/Ascend/driver/lib64"


def _how(directory: Path) -> str:
    if "driver" in directory.parts:
        return f"export LD_LIBRARY_PATH={directory}:$LD_LIBRARY_PATH"
    return f"source the set_env.sh of the CANN that has it, in {directory}"


CHECK = Check(
    CODE,
    what="Asks the loader (`ldd`) which libraries of torch_npu it does not find, and looks for stub directories and "
    "for two CANN releases on LD_LIBRARY_PATH.",
    why="`ImportError: libhccl.so: cannot open shared object file` is the commonest first error on Ascend. Stub "
    "libraries (devlib) load and then fail with 100039; two CANN releases mixed fail in ways that nothing "
    "explains.",
    fix="Start from a new shell and source one set_env.sh; add /usr/local/Ascend/driver/lib64/driver and .../common "
    "when libascend_hal.so or libdrvdsmi_host.so is missing; take stub directories out.",
    look=_look,
    vital=True,
)
