"""`ascendtune plan`'s time of a step against training on CPU: processor time, so that other processes do not count.

    python benchmarks/time_plan.py WORK

Each case trains with one thread in a process of its own, whose clock is its processor time, and adds its speed to the
past runs in WORK. It is predicted from the runs before it: the first one from none.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import memory_plan

from ascendtune.train.plan.history import read_history
from ascendtune.train.prepare import prepare_run

_BASE = {
    "precision": "fp32",
    "method.stage": "sft",
    "data.max_length": 256,
    "batch.per_device": 2,
    "optim.max_steps": 6,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "first-run": ("qwen15m", {}),
    "the-same-again": ("qwen15m", {}),
    "longer-rows": ("qwen15m", {"data.max_length": 512, "batch.per_device": 1}),
    "twice-the-batch": ("qwen15m", {"batch.per_device": 4, "optim.max_steps": 4}),
    "accumulating": ("qwen15m", {"batch.accumulate": 2, "optim.max_steps": 4}),
    "checkpointing": ("qwen15m", {"memory.gradient_checkpointing": True}),
    "lora": ("qwen15m", {"method.tuner": "lora"}),
    "four-times-the-size": ("llama60m", {"optim.max_steps": 4}),
    "lora-again": ("qwen15m", {"method.tuner": "lora"}),
    "lora-again-larger": ("llama60m", {"method.tuner": "lora", "optim.max_steps": 4}),
    "dora": ("qwen15m", {"method.tuner": "lora", "method.lora.dora": True}),
    "dora-again": ("qwen15m", {"method.tuner": "lora", "method.lora.dora": True}),
    "oft": ("qwen15m", {"method.tuner": "oft"}),
    "freeze": ("qwen15m", {"method.tuner": "freeze"}),
    "padded": ("qwen15m", {"data.packing": False}),
    "short-rows": ("qwen15m", {"data.max_length": 64, "batch.per_device": 8}),
    "long-rows": ("qwen15m", {"data.max_length": 1024, "batch.per_device": 1}),
    "dpo": ("qwen15m", {"method.stage": "preference", "batch.per_device": 1}),
    "dpo-lora": ("qwen15m", {"method.stage": "preference", "method.tuner": "lora", "batch.per_device": 1}),
    "reward": ("qwen15m", {"method.stage": "reward", "batch.per_device": 1}),
    "pretrain": ("qwen15m", {"method.stage": "pretrain"}),
    "sgd": ("qwen15m", {"optim.optimizer": "sgd"}),
    "another-class": ("gemma100m", {"optim.max_steps": 3}),
}
_WORKER = """
import sys, time
time.perf_counter = time.process_time
from ascendtune.train.worker import main
sys.exit(main(sys.argv[1:]))
"""


def main() -> None:
    work = Path(sys.argv[1])
    work.mkdir(exist_ok=True)
    os.environ |= {
        "XDG_STATE_HOME": str(work / "state"), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive",
        "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    state = work / "state" / "ascendtune"
    for name, (model, keys) in CASES.items():
        memory_plan.CASES[name] = model, 1, {**_BASE, **keys}
        recipe = memory_plan.recipe_of(work, name)
        before = len(read_history(state))
        start = prepare_run(recipe, {})
        assert start.run is not None and start.claim is not None
        start.claim.release()
        (start.run.path / "log").mkdir(exist_ok=True)
        begun = time.monotonic()
        subprocess.run([sys.executable, "-c", _WORKER, str(start.run.path)], check=True, capture_output=True)
        runs = read_history(state)
        assert len(runs) == before + 1
        run = runs[-1]
        error = f"{run.predicted_seconds / run.step_seconds - 1:+.1%}" if run.predicted_seconds else "-"
        print(
            f"{name:20} {run.step_seconds:7.3f} s of processor time a step, {run.flops_per_second / 1e9:5.1f} GFLOP/s, "
            f"predicted {run.predicted_seconds or 0:7.3f} s, {error:>7}  ({time.monotonic() - begun:.0f} s)",
            flush=True,
        )


if __name__ == "__main__":
    main()
