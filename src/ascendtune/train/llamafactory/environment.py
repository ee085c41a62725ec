"""LLaMA-Factory's environment variables, for a recipe of theirs.

FORCE_TORCHRUN needs nothing: torchrun starts wherever there are several devices. NNODES, NODE_RANK, MASTER_ADDR and
MASTER_PORT are understood for every recipe, by whoever starts the processes.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Literal


def wants_modelscope(environment: Mapping[str, str]) -> bool:
    """Whether what is no local path should come from ModelScope."""
    return environment.get("USE_MODELSCOPE_HUB", "0").strip().lower() in ("true", "y", "1")


def from_modelscope(kind: Literal["model", "dataset"], name: str, revision: str = "main") -> tuple[str, str]:
    """The commands that download `name` with ModelScope's own package, and the directory where it will be."""
    directory = f"{kind}s/{name.rstrip('/').rpartition('/')[2]}"
    # What is called main on the other hub is called master there, and taken by default.
    chosen = [] if revision == "main" else ["--revision", revision]
    words = ["modelscope", "download", f"--{kind}", name, *chosen, "--local_dir", directory]
    return f"pip install modelscope && {shlex.join(words)}", directory
