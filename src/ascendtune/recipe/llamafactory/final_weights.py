"""Where the weights lie that an earlier recipe left in its output_dir."""

from __future__ import annotations

from ascendtune.core.files import expanded


def final_weights(path: str) -> str:
    """`path`, or the directory `model` in it where `path` is one of our run directories."""
    run = expanded(path)
    return str(run / "model") if (run / "run.json").is_file() and (run / "model").is_dir() else path
