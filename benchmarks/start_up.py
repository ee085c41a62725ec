"""How long commands take that only say something: help, version, a recipe with a mistake.

    python benchmarks/start_up.py [--rounds 5]

Whole processes, in turn. `torch` tells whether the process imported it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import inputs
from measure import ASCENDTUNE, in_turn, run, spread, table, write_result
from peers import llamafactory, trl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        wrong = Path(scratch) / "wrong.yaml"
        data = inputs.make("toy")
        wrong.write_text(
            f"model: {{path: {data.model}}}\ndata: {{train: {data.alpaca}}}\noptim: {{learning_rte: 1.0e-4}}\n"
        )
        commands = {
            "ascendtune --version": [ASCENDTUNE, "--version"],
            "ascendtune --help": [ASCENDTUNE, "--help"],
            "ascendtune train --help": [ASCENDTUNE, "train", "--help"],
            "ascendtune train, misspelt key": [ASCENDTUNE, "train", wrong],
            "trl sft --help": [trl.install() / "trl", "sft", "--help"],
            "llamafactory-cli version": [llamafactory.install() / "llamafactory-cli", "version"],
            "llamafactory-cli train -h": [llamafactory.install() / "llamafactory-cli", "train", "-h"],
            "python -c 'import torch'": [sys.executable, "-c", "import torch"],
        }

        def measure(command: list[str | Path]) -> dict[str, Any]:
            done = run(command, directory=Path(scratch), env={"BENCHMARK_NOTES": ""})
            return {
                "seconds": done.seconds,
                "cpu_seconds": done.cpu_seconds,
                "exit_code": done.exit_code,
            }

        figures = in_turn({name: lambda c=command: measure(c) for name, command in commands.items()}, given.rounds)
        for name, command in commands.items():
            imports = run(command, directory=Path(scratch), env={"PYTHONPROFILEIMPORTTIME": "1"}).output
            figures[name][0]["torch"] = any(line.endswith("| torch") for line in imports.splitlines())
    rows = [
        [
            f"`{name}`",
            spread(runs, "cpu_seconds", 3),
            spread(runs, "seconds", 3),
            "yes" if runs[0]["torch"] else "no",
            str(runs[0]["exit_code"]),
        ]
        for name, runs in figures.items()
    ]
    header = ["command", "CPU-seconds", "seconds", "torch imported", "exit code"]
    write_result(
        "start-up", table(header, rows), figures, {"TRL": trl.VERSIONS, "LLaMA-Factory": llamafactory.VERSIONS}
    )


if __name__ == "__main__":
    main()
