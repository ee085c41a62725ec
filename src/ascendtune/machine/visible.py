"""Which devices a new process could use, told without importing torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

Kind = Literal["cpu", "cuda", "npu"]

VARIABLES: dict[Kind, str] = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "cuda": "CUDA_VISIBLE_DEVICES"}
"""What limits the devices that a process sees."""


@dataclass(frozen=True)
class Visible:
    """The devices of one kind, by the names that the kind's visibility variable takes: "0", "1", "GPU-8f1…"."""

    kind: Kind
    ids: tuple[str, ...]
    note: str | None = None
    """Why devices that are in the machine are not among them."""

    def label(self, index: int) -> str:
        """How messages call one of them: "NPU 3"."""
        return "the CPU" if self.kind == "cpu" else f"{'NPU' if self.kind == 'npu' else 'GPU'} {self.ids[index]}"


def visible_devices(env: Mapping[str, str] | None = None, dev: Path = Path("/dev")) -> Visible:
    """NPUs, else GPUs, else the CPU; only those that the installed torch can compute on.

    Args:
        env: the environment to look at (default: this process's).
        dev: where device files are.
    """
    npus, gpus = attached("npu", env, dev), attached("cuda", env, dev)
    if npus and find_spec("torch_npu"):
        return Visible("npu", npus)
    if gpus and _torch_is_built_for_cuda():
        return Visible("cuda", gpus)
    note = None
    if npus:
        note = f"{len(npus)} NPU here are not used: torch_npu is not installed (pip install 'ascendtune[npu]')"
    elif gpus:
        note = f"{len(gpus)} GPU here are not used: the installed torch is built without CUDA"
    return Visible("cpu", ("0",), note)


def attached(kind: Kind, env: Mapping[str, str] | None = None, dev: Path = Path("/dev")) -> tuple[str, ...]:
    """The accelerators of `kind` that are here and visible, whether or not the installed torch can compute on them."""
    if kind == "cpu":
        return ()
    env = os.environ if env is None else env
    return _limited(_npus(dev) if kind == "npu" else _gpus(dev), env.get(VARIABLES[kind]))


def cpu_count() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def cuda_of_torch(directory: Path) -> str | None:
    """The CUDA that the torch in `directory` is built for, or None; not imported, because that takes a second."""
    try:
        text = (directory / "version.py").read_text()
    except OSError:
        return None
    found = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)", text, re.MULTILINE)
    return found[1] if found else None


def _torch_is_built_for_cuda() -> bool:
    spec = find_spec("torch")
    return bool(spec and spec.origin and cuda_of_torch(Path(spec.origin).parent))


def _npus(dev: Path) -> tuple[str, ...]:
    # Logical ids count from 0 whatever the numbers of the device files are (containers map a part of them).
    return tuple(map(str, range(_files(dev, r"davinci\d+"))))


def _gpus(dev: Path) -> tuple[str, ...]:
    try:
        import pynvml
    except ImportError:
        return tuple(map(str, range(_files(dev, r"nvidia\d+"))))
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(map(str, range(pynvml.nvmlDeviceGetCount())))
    finally:
        pynvml.nvmlShutdown()


def _files(directory: Path, pattern: str) -> int:
    if not directory.is_dir():
        return 0
    return sum(1 for entry in directory.iterdir() if re.fullmatch(pattern, entry.name))


def _limited(ids: tuple[str, ...], variable: str | None) -> tuple[str, ...]:
    """What both runtimes make of the variable: reading stops at the first name that does not exist."""
    if variable is None or not ids:
        return ids
    kept: list[str] = []
    for name in variable.split(","):
        is_unique_name = name.startswith(("GPU-", "MIG-"))
        if (name not in ids and not is_unique_name) or name in kept:
            break
        kept.append(name)
    return tuple(kept)
