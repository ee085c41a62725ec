"""Where the weights lie that an earlier recipe left in its output_dir."""

from __future__ import annotations

from pathlib import Path


def final_weights(path: str) -> str:
    """`path`, or the directory `model` in it where `path` is one of our run directories."""
    run = Path(path).expanduser()
    return str(run / "model") if (run / "run.json").is_file() and (run / "model").is_dir() else path
