"""From the command to the end of the first optimizer step, with the data prepared already.

    python benchmarks/first_step.py [--rounds 5]

Full fine-tuning and LoRA of a 15M-parameter model, bf16, four padded rows; and ours with its default, a packed sequence
of 2,048 tokens. CPU-seconds are of the command and all that it starts. The floor is a Python that imports torch and one
model class of transformers, and trains nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import inputs
from measure import Measured, Step, in_turn, median, run, spread, table, trained, write_result
from peers import ascendtune, llamafactory, trl
from peers.work import Work
from throughput import OURS, plain

_FLOOR = "import torch; from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM; import os; os._exit(0)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], help="variants whose name holds one of these words")
    given = parser.parse_args()
    chosen = {
        name: variant
        for name, variant in variants().items()
        if not given.only or any(word in name for word in given.only)
    }
    for variant in chosen.values():  # fills the caches of data
        measure(variant)
    figures = in_turn({name: partial(measure, variant) for name, variant in chosen.items()}, given.rounds)
    write_result(
        "first-step-of-some" if given.only else "first-step",
        report(figures),
        figures,
        {"TRL": trl.VERSIONS, "LLaMA-Factory": llamafactory.VERSIONS},
    )


def variants() -> dict[str, Callable[[Path], Measured]]:
    full = Work(inputs.make("m15"), steps=1)
    lora = full.changed(tuner="lora")
    packed = full.changed(packing=True, max_length=2048, batch=1)
    ours = partial(ascendtune.train, cache=OURS)
    return {
        "ascendtune, full": lambda at: ours(full, at),
        "ascendtune, full, packed 2048": lambda at: ours(packed, at),
        "ascendtune, LoRA": lambda at: ours(lora, at),
        "floor: imports alone": lambda at: imports("", at),
        "floor, garbage not collected": lambda at: imports("import gc; gc.disable(); ", at),
        "plain loop, full": lambda at: plain(full, at),
        "TRL (script), full": lambda at: trl.train(full, at),
        "TRL (`trl sft`), full": lambda at: trl.train(full, at, launcher=True),
        "TRL (script), LoRA": lambda at: trl.train(lora, at),
        "LLaMA-Factory, full": lambda at: llamafactory.train(full, at),
        "LLaMA-Factory, LoRA": lambda at: llamafactory.train(lora, at),
    }


def imports(before: str, scratch: Path) -> Measured:
    done = run([sys.executable, "-c", before + _FLOOR], directory=scratch)
    return Measured(**{**done.__dict__, "steps": [Step(done.cpu_seconds, done.seconds, 0)]})


def measure(variant: Callable[[Path], Measured]) -> dict[str, Any]:
    measured = trained(variant)
    return {
        "cpu_seconds": measured.steps[0].cpu_seconds,
        "seconds": measured.steps[0].seconds,
        "whole_command_cpu_seconds": measured.cpu_seconds,
        "peak_rss_bytes": measured.peak_rss_bytes,
    }


def report(figures: dict[str, list[dict[str, Any]]]) -> str:
    ours = median(next(iter(figures.values())), "cpu_seconds")
    rows = [
        [
            name,
            spread(runs, "cpu_seconds"),
            f"{ours / median(runs, 'cpu_seconds'):.2f}",
            spread(runs, "seconds"),
            f"{median(runs, 'whole_command_cpu_seconds'):.2f}",
            f"{median(runs, 'peak_rss_bytes') / 2**20:,.0f}",
        ]
        for name, runs in figures.items()
    ]
    header = [
        "variant",
        "CPU-seconds to first step",
        "first row / this",
        "seconds",
        "CPU-seconds in all",
        "peak RSS MiB",
    ]
    return table(header, rows)


if __name__ == "__main__":
    main()
