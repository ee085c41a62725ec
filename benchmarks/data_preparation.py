"""Data preparation: rows per CPU-second from file opened to Arrow written, labels included, beside a bare tokenizer.

    OMP_NUM_THREADS=1 RAYON_NUM_THREADS=1 python benchmarks/data_preparation.py [--rows 50000] [--text alpaca.json]

Rows are drawn with a seed from the sentences of an alpaca file (of invented words, when there is none) and are about 80
tokens long in ChatML. The tokenizer is an 8,192-token byte-level BPE trained on the same text. Imports are not counted;
CPU-seconds are those of this process and of the processes it starts. Variants take turns; the median is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from ascendtune.data import build  # noqa: F401  # so that no variant pays for imports
from ascendtune.data.prepare import PreparedData, prepare
from ascendtune.data.spec import DataSection
from ascendtune.data.tokenizer import Tokenizer

_DEFAULT_TEXT = Path(__file__).resolve().parents[2] / "shared" / "data" / "alpaca_en_demo.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--text", type=Path, default=_DEFAULT_TEXT, help="alpaca JSON whose sentences are used")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        figures = measure(Path(scratch), arguments.rows, arguments.rounds, arguments.text)
    report(figures, arguments.rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(scratch: Path, rows: int, rounds: int, text: Path) -> dict[str, list[dict[str, float]]]:
    """Per variant and round: CPU-seconds and seconds."""
    data, model = scratch / "rows.json", scratch / "model"
    written = make_rows(rows, sentences(text))
    data.write_text(json.dumps(written, ensure_ascii=False, indent=1), encoding="utf-8")
    make_tokenizer(model, [row["instruction"] + row["input"] + row["output"] for row in written[:2000]])
    tokenizer = Tokenizer.load(model).backend
    texts = [
        f"<|im_start|>user\n{row['instruction']}\n{row['input']}<|im_end|>\n"
        f"<|im_start|>assistant\n{row['output']}<|im_end|>\n"
        for row in written
    ]

    def bare() -> None:
        for begin in range(0, rows, 1000):
            tokenizer.encode_batch_fast(texts[begin : begin + 1000], add_special_tokens=False)

    def ours(processes: int, cache: Path) -> PreparedData:
        section = DataSection.model_validate({"train": str(data), "template": "chatml", "processes": processes})
        return prepare(section, model, seed=0, cache=cache)

    variants: dict[str, Callable[[Path], object]] = {
        "bare encode_batch_fast": lambda fresh: bare(),
        "ours, 1 process": lambda fresh: ours(1, fresh),
        "ours, 2 processes": lambda fresh: ours(2, fresh),
        "ours, cached": lambda fresh: ours(1, scratch / "kept"),
    }
    prepared = ours(1, scratch / "kept")
    print(f"{rows:,} rows, {data.stat().st_size / 1e6:.1f} MB, {prepared.report.tokens / rows:.1f} tokens a row")
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            fresh = Path(tempfile.mkdtemp(dir=scratch))
            cpu, wall = cpu_seconds(), time.perf_counter()
            run(fresh)
            figures[name].append({"cpu_seconds": cpu_seconds() - cpu, "seconds": time.perf_counter() - wall})
            shutil.rmtree(fresh)
    return figures


def report(figures: dict[str, list[dict[str, float]]], rows: int) -> None:
    rate = {name: rows / statistics.median(each["cpu_seconds"] for each in runs) for name, runs in figures.items()}
    for name, runs in figures.items():
        rates = sorted(rows / each["cpu_seconds"] for each in runs)
        wall = statistics.median(each["seconds"] for each in runs)
        share = rate[name] / rate["bare encode_batch_fast"]
        print(
            f"{name:24} {rate[name]:>9,.0f} rows/CPU-s (from {rates[0]:,.0f} to {rates[-1]:,.0f})"
            f" {wall:6.2f} s  {share:.0%} of bare"
        )
    print(f"two processes cost {rate['ours, 1 process'] / rate['ours, 2 processes']:.2f}x the CPU-seconds of one")
    print(f"cached is {rate['ours, cached'] / rate['ours, 1 process']:.0f}x faster")


def cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def sentences(text: Path) -> list[str]:
    if text.is_file():
        whole = " ".join(
            row["instruction"] + " " + row["output"] for row in json.loads(text.read_text(encoding="utf-8"))
        )
        return [part.strip() + "." for part in whole.split(". ") if 20 < len(part) < 160]
    drawn = random.Random(0)
    words = ["".join(drawn.choices("etaoinshrdlucmfwypvbgk", k=drawn.randint(2, 9))) for _ in range(6000)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    return [" ".join(drawn.choices(words, weights, k=drawn.randint(5, 20))).capitalize() + "." for _ in range(3000)]


def make_rows(count: int, parts: list[str]) -> list[dict[str, str]]:
    drawn = random.Random(0)
    return [
        {
            "instruction": drawn.choice(parts),
            "input": drawn.choice(parts)[:60].strip() if drawn.random() < 0.4 else "",
            "output": " ".join(drawn.choices(parts, k=drawn.randint(1, 2))),
        }
        for _ in range(count)
    ]


def make_tokenizer(directory: Path, corpus: list[str], vocabulary: int = 8192) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    )
    backend.train_from_iterator(corpus, trainer)
    directory.mkdir()
    backend.save(str(directory / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main()
