"""Memory while 8 ranks load a model that FSDP divides: 70 billion parameters at a scale of 1 to 100.

    python benchmarks/divided_loading.py [--ranks 8]

Llama 3 70B with a tenth of its widths and all of its 80 layers, in bf16 files of 200 MB. Each rank notes the memory of
its own (RssAnon) before its model exists, the most while it is loaded and divided, and what is left; training ends
before the first step. On the CPU a rank's share of the weights lies in that memory, too. Full and LoRA.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from measure import table, write_result
from memory_plan import command
from peers.venv import cache_directory

from ascendtune.job.spec import JobSpec
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.prepare import prepare_run

_SHAPE = {
    "vocab_size": 12832, "hidden_size": 832, "intermediate_size": 2880, "num_hidden_layers": 80,
    "num_attention_heads": 13, "num_key_value_heads": 1, "head_dim": 64, "tie_word_embeddings": False,
}  # fmt: skip
_MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        load_as_rank(Path(given.worker[0]), given.worker[1])
        return
    where = cache_directory() / "divided-loading"
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    try:
        # In a process of its own, so that nothing of the whole model is in this one.
        subprocess.run([sys.executable, "-c", f"import divided_loading as d; d.make({str(where)!r})"],
                       cwd=Path(__file__).parent, check=True)  # fmt: skip
        measured = {tuner: measure(where, tuner, given.ranks) for tuner in ("full", "lora")}
    finally:
        shutil.rmtree(where)
    write_result("divided-loading", report(measured), measured)


def make(directory: str) -> None:
    """The model and a few rows."""
    from data_preparation import make_tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    model = Path(directory) / "model"
    make_tokenizer(model, ["a few words are enough for a tokenizer"], 300)
    torch.set_default_dtype(torch.bfloat16)
    LlamaForCausalLM(LlamaConfig(**_SHAPE)).save_pretrained(model, max_shard_size="200MB")
    row = json.dumps({"prompt": "few words", "completion": "are enough"})
    (Path(directory) / "rows.jsonl").write_text(64 * (row + "\n"))


def measure(where: Path, tuner: str, ranks: int) -> list[dict[str, Any]]:
    recipe = Recipe.check({
        "name": tuner, "run_dir": str(where / "runs" / "{name}"), "model": {"path": str(where / "model")},
        "data": {"train": [{"path": str(where / "rows.jsonl")}], "max_length": 64, "template": "plain"},
        "method": {"tuner": tuner}, "parallel": {"strategy": "fsdp"}, "precision": "bf16",
        "optim": {"max_steps": 1, "learning_rate": 1e-5}, "track": {"tensorboard": False},
    })  # fmt: skip
    start = prepare_run(recipe, {})
    assert start.run is not None and start.claim is not None
    start.claim.release()
    (start.run.path / "log").mkdir(exist_ok=True)
    out = where / tuner
    argv = (sys.executable, __file__, "--worker", str(out), str(start.run.path))
    spec = JobSpec(argv, start.run.path, ranks, "cpu")
    ended = subprocess.run(command(spec, os.environ), capture_output=True, text=True, check=False)
    found = [json.loads(each.read_text()) for each in sorted(where.glob(f"{tuner}.*.json"))]
    logs = "".join(each.read_text()[-1500:] for each in sorted((start.run.path / "log").glob("*.log")))
    assert len(found) == ranks, ended.stdout[-2000:] + ended.stderr[-4000:] + logs
    return [each | {"load": os.getloadavg()[0]} for each in found]


def load_as_rank(out: Path, run: str) -> None:
    """Runs the worker up to its first step, and writes OUT.RANK.json; ends the process."""
    from ascendtune.train import setup
    from ascendtune.train.worker import main as worker

    original = setup.set_up_model

    def watched(*given: Any, **named: Any) -> Any:
        before, done = own_bytes(), threading.Event()
        most = [before]

        def watch() -> None:
            while not done.is_set():
                most[0] = max(most[0], own_bytes())
                time.sleep(0.002)

        thread = threading.Thread(target=watch)
        thread.start()
        built = original(*given, **named)
        done.set()
        thread.join()
        model = built.root
        share = sum(each.to_local().nbytes for each in model.parameters())
        blocks = [each for each in model.modules() if type(each).__name__.endswith("LlamaDecoderLayer")]
        block = max(sum(map(whole_bytes, part.parameters())) for part in blocks)
        whole = sum(map(whole_bytes, model.parameters()))
        figures = {"before": before, "most": most[0], "after": own_bytes(), "share": share, "block": block,
                   "whole": whole}  # fmt: skip
        Path(f"{out}.{os.environ.get('RANK', '0')}.json").write_text(json.dumps(figures))
        os._exit(0)

    setup.set_up_model = watched
    worker([run])


def whole_bytes(parameter: torch.Tensor) -> int:
    """Of a parameter (*shape), all ranks together."""
    return parameter.numel() * parameter.element_size()


def own_bytes() -> int:
    """Memory of this process that is not pages of files."""
    line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("RssAnon"))
    return int(line.split()[1]) << 10


def report(measured: dict[str, list[dict[str, Any]]]) -> str:
    rows = []
    for tuner, ranks in measured.items():
        added = [each["most"] - each["before"] for each in ranks]
        of_sum = max(each / (rank["share"] + rank["block"]) for each, rank in zip(added, ranks, strict=True))
        sizes = [f"{max(each[name] for each in ranks) / _MIB:,.0f}" for name in ("whole", "share", "block")]
        between = f"{min(added) / _MIB:,.0f} to {max(added) / _MIB:,.0f}"
        rows.append([tuner, str(len(ranks)), *sizes, between, f"{of_sum:.2f}", f"{sum(added) / _MIB:,.0f}"])
    most = "most of a rank above its start"
    return table(["tuner", "ranks", "model, MiB", "share", "a block", most, "of share and block", "all ranks"], rows)


if __name__ == "__main__":
    main()
