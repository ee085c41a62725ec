"""What merging an adapter costs: a random Llama of 1.1 billion parameters in four bf16 files, a LoRA on every matrix.

    python benchmarks/merge.py [--rounds 3] [--one-file]

Whole processes, in turn: ours without and with the comparison at the end, and the same by PEFT (load, merge_and_unload,
save_pretrained). Model and results take 7 GB in the benchmarks' cache while it runs, and are removed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from measure import ASCENDTUNE, in_turn, median, run, spread, table, write_result
from peers.venv import cache_directory

_MIB = 2**20
# `arithmetic` brings torch, which merging imports only when it begins to write.
_BASELINE = "import ascendtune.cli.merge, ascendtune.merge.merge, ascendtune.merge.write, ascendtune.merge.arithmetic"
_PEFT = """
import sys
from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer
model = AutoPeftModelForCausalLM.from_pretrained(sys.argv[1], dtype="auto").merge_and_unload()
model.save_pretrained(sys.argv[2], max_shard_size=sys.argv[3])
AutoTokenizer.from_pretrained(sys.argv[4]).save_pretrained(sys.argv[2])
"""
_COMPARE = """
import sys
from pathlib import Path
from safetensors import safe_open
from torch import equal
ours, theirs = ({
    name: file for path in Path(each).glob("*.safetensors") for file in [safe_open(path, "pt")] for name in file.keys()
} for each in sys.argv[1:])
assert ours and ours.keys() == theirs.keys()
different = [name for name in ours if not equal(ours[name].get_tensor(name), theirs[name].get_tensor(name))]
assert not different, different
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one-file", action="store_true", help="the base in one file of 2.2 GB instead of four")
    parser.add_argument("--make", help=argparse.SUPPRESS)
    given = parser.parse_args()
    shard = "3GB" if given.one_file else "600MB"
    if given.make:
        _make(Path(given.make), shard)
        return
    where = cache_directory() / "merge"
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    try:
        # In a process of its own: a child's peak begins with what its parent had.
        made = run([sys.executable, __file__, "--make", where, *["--one-file"][: given.one_file]], directory=where)
        assert made.exit_code == 0, made.output
        _measure(where, shard, given.rounds, "merge-one-file" if given.one_file else "merge")
    finally:
        shutil.rmtree(where)


def _measure(where: Path, shard: str, rounds: int, name: str) -> None:
    base, adapter, target, theirs = (where / each for each in ("base", "adapter", "merged", "theirs"))
    ours: list[str | Path] = [ASCENDTUNE, "merge", adapter, "--to", target]
    commands: dict[str, list[str | Path]] = {
        "ascendtune merge --no-verify": [*ours, "--no-verify"],
        "ascendtune merge": ours,
        "PEFT": [sys.executable, "-c", _PEFT, adapter, theirs, shard, base],
        "imports alone": [sys.executable, "-c", _BASELINE],
    }

    def measure(command: list[str | Path]) -> dict[str, Any]:
        for each in (target, theirs):
            if each in command:
                shutil.rmtree(each, ignore_errors=True)
        done = run(command, directory=where)
        assert done.exit_code == 0, done.output
        return {"cpu_seconds": done.cpu_seconds, "seconds": done.seconds, "peak_mib": done.peak_rss_bytes / _MIB}

    figures = in_turn({each: lambda c=command: measure(c) for each, command in commands.items()}, rounds)
    compared = run([sys.executable, "-c", _COMPARE, target, theirs], directory=where)
    assert compared.exit_code == 0, compared.output
    rows = [
        [each, spread(runs, "cpu_seconds"), spread(runs, "seconds"), spread(runs, "peak_mib", 0)]
        for each, runs in figures.items()
    ]
    sizes = [path.stat().st_size / _MIB for path in base.glob("*.safetensors")]
    streamed, verified, peft, idle = (
        figures[each] for each in ("ascendtune merge --no-verify", "ascendtune merge", "PEFT", "imports alone")
    )
    above = median(streamed, "peak_mib") - median(idle, "peak_mib")
    text = "\n\n".join(
        [
            table(["variant", "CPU-seconds", "seconds", "peak RSS, MiB"], rows),
            f"Base: {len(sizes)} file(s), the largest {max(sizes):,.0f} MiB, {sum(sizes):,.0f} MiB in all. Above the "
            f"imports merging peaks at {above:,.0f} MiB, {above / max(sizes):.2f} x the largest file; with them at "
            f"{median(streamed, 'peak_mib'):,.0f} MiB, {median(streamed, 'peak_mib') / max(sizes):.2f} x. It takes "
            f"{median(streamed, 'cpu_seconds') / median(peft, 'cpu_seconds'):.2f} x the CPU-seconds of PEFT; every "
            "tensor is the same, bit for bit. With verification, as by default: "
            f"{median(verified, 'cpu_seconds') / median(peft, 'cpu_seconds'):.2f} x, and a peak of "
            f"{median(verified, 'peak_mib') / max(sizes):.2f} x the largest file.",
        ]
    )
    write_result(name, text, figures)


def _make(where: Path, shard: str) -> None:
    import torch
    from data_preparation import make_tokenizer
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    make_tokenizer(where / "base", ["a few words are enough for a tokenizer"], 300)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
        tie_word_embeddings=False,
    )
    torch.set_default_dtype(torch.bfloat16)
    model = LlamaForCausalLM(config)
    model.save_pretrained(where / "base", max_shard_size=shard)
    model.config._name_or_path = model.name_or_path = str(where / "base")
    tuned = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=16, target_modules="all-linear"))
    for name, parameter in tuned.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.01 * torch.randn_like(parameter)
    tuned.save_pretrained(where / "adapter")


if __name__ == "__main__":
    main()
