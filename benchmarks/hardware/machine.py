"""What the machine has: its device, its versions, and the packages that are missing or come from a folder of wheels."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_MOST_WHEEL_BYTES = 64 << 20
# Module -> the distribution that brings it.
_NEEDED = {
    "torch": "torch", "transformers": "transformers", "tokenizers": "tokenizers", "safetensors": "safetensors",
    "peft": "peft", "huggingface_hub": "huggingface_hub", "jinja2": "jinja2", "numpy": "numpy",
    "pydantic": "pydantic", "yaml": "pyyaml", "typer": "typer", "rich": "rich", "psutil": "psutil",
    "pytest": "pytest", "hypothesis": "hypothesis",
}  # fmt: skip
_NOTED = ("torch", "triton", "transformers", "peft", "tokenizers", "liger-kernel", "flash-attn", "trl", "llamafactory")


def install_wheels(folder: Path, target: Path, *, every: bool = False) -> list[str]:
    """Put the wheels of `folder` into `target`; returns their file names.

    A package that is installed stays as it is, whatever its version: torch fits the driver, and pins do not know that.

    Args:
        every: Also wheels of packages that are installed: a peer that needs other versions gets them for itself.
    """
    wheels = sorted(folder.glob("*.whl"))
    if (size := sum(each.stat().st_size for each in wheels)) > _MOST_WHEEL_BYTES:
        raise SystemExit(f"error: the wheels in {folder} have {size >> 20} MiB; at most {_MOST_WHEEL_BYTES >> 20} MiB")
    chosen = [each for each in wheels if every or not _is_installed(each.name.partition("-")[0])]
    if chosen:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--upgrade"]
        subprocess.run([*pip, "--target", str(target), *map(str, chosen)], check=True)
    return [each.name for each in chosen]


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(re.sub(r"[-_.]+", "-", distribution))
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def missing_packages() -> list[str]:
    """Distributions whose module this Python does not find."""
    return [name for module, name in _NEEDED.items() if importlib.util.find_spec(module) is None]


def facts() -> dict[str, Any]:
    """The device and the versions: imports torch, which may create a context on the device."""
    import torch

    has_gpu = torch.cuda.is_available()
    return {
        "kind": "cuda" if has_gpu else "cpu",
        "name": torch.cuda.get_device_name(0) if has_gpu else f"CPU, {platform.machine()}",
        "memory_bytes": torch.cuda.get_device_properties(0).total_memory if has_gpu else None,
        "versions": {"python": platform.python_version(), **versions(_NOTED), "cuda": torch.version.cuda},
    }


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """Of those that this process finds."""
    return {name: importlib.metadata.version(name) for name in distributions if _is_installed(name)}


def main() -> None:
    if missing := missing_packages():
        raise SystemExit(
            f"error: this Python lacks {', '.join(missing)}; put their wheels into a folder and give WHEELS=FOLDER"
        )
    found = facts()
    if tuple(map(int, found["versions"]["torch"].split(".")[:2])) < (2, 6):
        raise SystemExit(f"error: torch {found['versions']['torch']} is too old; 2.6 is needed")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
