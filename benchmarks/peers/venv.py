"""A virtual environment per peer, made once and kept outside the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TORCH = "torch==2.13.0"


def cache_directory() -> Path:
    """Where environments, models and data of the benchmarks are kept between runs."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "ascendtune-benchmarks"


def make(name: str, requirements: list[str]) -> Path:
    """The `bin` folder of the environment `name`, with one torch for all peers; installed when it is not there yet."""
    where = cache_directory() / "venv" / name
    done = where / "installed"
    wanted = "\n".join([TORCH, *requirements]) + "\n"
    if done.exists() and done.read_text() == wanted:
        return where / "bin"
    print(f"installing {name} into its own environment", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", where], check=True)
    pip = [where / "bin" / "pip", "install", "--quiet"]
    subprocess.run([*pip, TORCH], check=True)
    constraint = where / "torch.txt"
    constraint.write_text(TORCH + "\n")
    subprocess.run([*pip, "--constraint", constraint, *requirements], check=True)
    done.write_text(wanted)
    return where / "bin"


def site_packages(binaries: Path) -> Path:
    return next((binaries.parent / "lib").glob("python3*/site-packages"))
