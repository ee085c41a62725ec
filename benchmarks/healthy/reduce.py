"""Some of the logs that `healthy_logs.py` made, cut and without a machine's names, for the tests.

python benchmarks/healthy/reduce.py DIR
"""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_INTO = _ROOT / "tests" / "fixtures" / "explain" / "healthy"
_KEPT = (
    "accelerate-two-states",
    "command-launch",
    "deepspeed-1",
    "download-limited",
    "ours-bad-rows",
    "ours-debug",
    "ours-dpo-lora",
    "ours-early-stop",
    "ours-npu-two",
    "ours-python-warnings",
    "ours-stopped",
    "ours-stopped-resumed",
    "ours-terminal",
    "ours-two-debug-detail",
    "ours-two-fsdp-offload",
    "ours-two-stopped",
    "ours-two-stopped.log-launcher",
    "stopped-torchrun-term",
    "tool-pytest",
    "tool-torch-extension",
    "torchrun-cpp",
    "torchrun-left",
    "torchrun-tee",
    "trainer-stopped-early",
    "trl-grpo",
    "warned-caught",
    "warned-of-asyncio",
    "warned-of-pool",
    "warned-probes-of-transformers-of-datasets-of-th",
)
_FIRST, _LAST = 60, 60


def main() -> None:
    directory = Path(sys.argv[1]).resolve()
    _INTO.mkdir(parents=True, exist_ok=True)
    for name in _KEPT:
        # newline="": progress bars end their lines with \r.
        with (directory / "log" / f"{name}.log").open(encoding="utf-8", newline="") as file:
            lines = _masked(file.read(), directory).split("\n")
        short = lines if len(lines) <= _FIRST + _LAST else [*lines[:_FIRST], *lines[-_LAST:]]
        with (_INTO / f"{name}.log").open("w", encoding="utf-8", newline="") as file:
            file.write("\n".join(short))


def _masked(text: str, directory: Path) -> str:
    names = {str(directory): "/data", sys.prefix: "/venv", str(_ROOT): "/src", sys.base_prefix: "/python"}
    for name, mask in {**names, str(Path.home()): "/home/me", socket.gethostname(): "node-1"}.items():
        text = text.replace(name, mask)
    text = re.sub(r"\b(?!127\.|0\.0\.)(?:\d{1,3}\.){3}\d{1,3}\b", "10.0.0.1", text)
    return re.sub(r"/tmp/[\w.-]+", "/tmp/x", text)


if __name__ == "__main__":
    main()
