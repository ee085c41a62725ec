"""Builds the C++ part with g++, once per content and version of torch."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from ascendtune.core.locks import file_lock

SOURCE = Path(__file__).with_name("device.cpp")
PLACE = Path(__file__).resolve().parents[2] / "build" / "simulated-cuda"


def why_not() -> str | None:
    """What is missing for the simulation, if anything."""
    if sys.platform != "linux":
        return "the simulated CUDA device is for Linux"
    if shutil.which("g++") is None:
        return "g++ is not installed: it builds the simulated CUDA device"
    if "+cpu" not in version("torch"):
        return f"the simulated CUDA device is for a CPU build of torch, this is {version('torch')}"
    return None


def load() -> None:
    """Give torch the device. Before torch is imported: it asks once whether there is CUDA, and keeps the answer."""
    assert "torch" not in sys.modules
    libraries = _torch() / "lib"
    for path in (libraries / "libc10.so", libraries / "libtorch_cpu.so", build()):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def build() -> Path:
    """The library; building takes some seconds the first time."""
    digest = hashlib.sha256(f"{version('torch')} {os.environ.get('CXX')}".encode() + SOURCE.read_bytes())
    library = PLACE / f"device-{digest.hexdigest()[:12]}.so"
    PLACE.mkdir(parents=True, exist_ok=True)
    with file_lock(PLACE / ".build.lock", wait=True):
        if not library.exists():
            for old in PLACE.glob("*.so"):
                old.unlink()
            part = library.with_suffix(".part")
            include = _torch() / "include"
            argv = [
                os.environ.get("CXX", "g++"), "-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-o", str(part),
                f"-I{include}", f"-I{include}/torch/csrc/api/include", str(SOURCE),
                f"-L{_torch() / 'lib'}", "-lc10", "-ltorch_cpu",
            ]  # fmt: skip
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{' '.join(argv)}\n{done.stderr}"
            part.rename(library)
    return library


def _torch() -> Path:
    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent
