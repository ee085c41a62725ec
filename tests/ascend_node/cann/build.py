"""Builds the simulated CANN libraries with g++, once per content of their sources, beside the torch_npu they serve.

torch_npu itself is the vendor's wheel (`make npu-env` puts it into .venv-npu); only what it expects below is ours.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from ascendtune.core.locks import file_lock

SOURCES = Path(__file__).parent / "source"
PLACE = Path(__file__).resolve().parents[3] / ".venv-npu"
PACKAGES = PLACE / "packages"
"""What `make npu-env` fills."""
_EMPTY = ("libge_runner", "libgraph", "libacl_tdt_channel")
"""Linked by torch_npu, used for graphs and queues only."""


def why_not() -> str | None:
    """What is missing for a simulated node, if anything."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return "torch_npu has wheels for Linux on x86_64 and aarch64 only"
    if shutil.which("g++") is None:
        return "g++ is not installed: it builds the simulated CANN libraries"
    if not (PACKAGES / "torch_npu").is_dir():
        return "torch_npu is not installed in .venv-npu: run make npu-env"
    torch_npu = next(PACKAGES.glob("torch_npu-*.dist-info")).name.split("-")[1].split(".")
    if version("torch").split("+")[0].split(".")[:2] != torch_npu[:2]:
        return f"the torch_npu in .venv-npu is not for torch {version('torch')}: run make npu-env"
    return None


def build() -> Path:
    """Build what is not built yet; returns a directory like CANN's, with the libraries in `lib64`.

    Takes 15 s of CPU the first time.
    """
    home = PLACE / f"SIMULATED-cann-{_fingerprint()}"
    PLACE.mkdir(parents=True, exist_ok=True)
    with file_lock(PLACE / ".build.lock", wait=True):
        if not home.exists():
            for old in PLACE.glob("SIMULATED-cann-*"):
                shutil.rmtree(old)
            unfinished = PLACE / ".SIMULATED-cann.building"
            shutil.rmtree(unfinished, ignore_errors=True)
            _compile(unfinished / "lib64")
            # torch_npu asks that these exist.
            for name in ("runtime", "compiler", "opp"):
                (unfinished / name).mkdir()
            unfinished.rename(home)
    return home


def _fingerprint() -> str:
    digest = hashlib.sha256(f"{version('torch')} {os.environ.get('CXX')}".encode())
    for path in sorted([Path(__file__), *SOURCES.rglob("*.h"), *SOURCES.rglob("*.cpp"), *PACKAGES.glob("*.dist-info")]):
        digest.update(path.name.encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()[:12]


def _compile(directory: Path) -> None:
    directory.mkdir(parents=True)
    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None
    torch = Path(spec.origin).parent
    vendor = PACKAGES / "torch_npu/include"
    acl = [f"-I{vendor}/third_party/acl/inc", f"-I{vendor}/third_party/hccl/inc", f"-I{vendor}"]
    aten = [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include"]

    def link(name: str, *arguments: str) -> None:
        soname = f"-Wl,-soname,{name}.so"
        argv = [os.environ.get("CXX", "g++"), "-shared", "-fPIC", soname, "-o", f"{directory}/{name}.so", *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, input="")
        assert done.returncode == 0, f"{' '.join(argv)}\n{done.stderr}"

    link("libascendcl", "-std=c++17", "-O1", *acl, f"{SOURCES}/runtime.cpp", f"{SOURCES}/legacy.cpp")
    # Whoever loads the compiler of operators expects to find the runtime with it.
    needed = (f"-L{directory}", "-Wl,--no-as-needed", "-lascendcl")
    link("libacl_op_compiler", "-x", "c++", "-", *needed)
    for name in _EMPTY:
        link(name, "-x", "c++", "-")
    link("libhccl", "-std=c++17", "-O1", *acl, f"{SOURCES}/collectives.cpp")
    # ATen does the work, so optimising here would only cost time. Its headers need -w.
    torch_libraries = (f"-L{torch}/lib", "-ltorch_cpu", "-lc10")
    link("libopapi", "-std=c++20", "-O0", "-w", *acl, *aten, f"{SOURCES}/opapi.cpp", *needed, *torch_libraries)
