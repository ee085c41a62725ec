"""`ascendtune align` beside `msprobe compare` on the same dump of statistics, by processor time, in turns.

    OMP_NUM_THREADS=1 python benchmarks/align_msprobe.py MSPROBE_ENVIRONMENT [--layers 32] [--rounds 5]

MSPROBE_ENVIRONMENT is a virtual environment with mindstudio-probe, its dependencies and transformers. msprobe makes the
dump: one step of a Llama with random weights, hidden size 64, level L0. Both commands compare it with itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from measure import ASCENDTUNE, in_turn, median, run, spread, table, write_result

DUMP = """
import json, sys
import torch
from msprobe.pytorch import PrecisionDebugger
from transformers import LlamaConfig, LlamaForCausalLM

layers, place = int(sys.argv[1]), sys.argv[2]
asked = {"task": "statistics", "dump_path": place, "rank": [], "step": [], "level": "L0",
         "statistics": {"scope": [], "list": [], "data_mode": ["all"]}}
with open(place + ".json", "w") as file:
    json.dump(asked, file)
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=layers,
                                     num_attention_heads=4))
debugger = PrecisionDebugger(config_path=place + ".json")
ids = torch.randint(0, 512, (2, 16))
debugger.start(model=model)
model(input_ids=ids, labels=ids).loss.backward()
debugger.stop()
debugger.step()
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("environment", type=Path)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    programs = asked.environment.absolute() / "bin"
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        place = directory / "dumped"
        subprocess.run([programs / "python", "-c", DUMP, str(asked.layers), str(place)], cwd=directory, check=True)
        (dump,) = place.rglob("dump.json")
        listed = len(json.loads(dump.read_text())["data"])
        commands: dict[str, list[str | Path]] = {
            "msprobe compare": [
                *(programs / "msprobe", "compare", "--target_path", dump, "--golden_path", dump),
                *("--output_path", directory / "compared"),
            ],
            "ascendtune align": [ASCENDTUNE, "align", dump, dump],
        }
        figures = in_turn({name: partial(_cost, words, directory) for name, words in commands.items()}, asked.rounds)
    ratio = median(figures["msprobe compare"], "cpu_seconds") / median(figures["ascendtune align"], "cpu_seconds")
    rows = [[name, spread(runs, "cpu_seconds"), spread(runs, "seconds")] for name, runs in figures.items()]
    text = "\n\n".join(
        [
            table(["command", "CPU-seconds", "seconds"], rows),
            f"One dump of {asked.layers} layers ({listed:,} entries in dump.json), compared with itself; both with "
            f"their start. msprobe compare takes {ratio:.1f} times the CPU-seconds of ascendtune align.",
        ]
    )
    write_result("align-msprobe", text, figures, {"msprobe": _versions(programs / "python")})


def _cost(command: list[str | Path], directory: Path) -> dict[str, Any]:
    measured = run(command, directory=directory, env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")})
    if measured.exit_code:
        raise SystemExit(f"exit code {measured.exit_code}:\n{measured.output[-3000:]}")
    return {"cpu_seconds": measured.cpu_seconds, "seconds": measured.seconds}


def _versions(python: Path) -> dict[str, str]:
    said = subprocess.run(
        [python, "-c", "import importlib.metadata as m; print(m.version('mindstudio-probe'))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {"mindstudio-probe": said.stdout.strip()}


if __name__ == "__main__":
    main()
