"""Real tokens per CPU-second and peak memory of whole training runs, ours beside peers and a plain loop.

    python benchmarks/throughput.py [--rounds 5] [--tokens 24000] [--only NAME …]

Full fine-tuning of a 15M-parameter model with random weights on 2,000 generated rows, bf16, one thread, every variant
in turn. The first tenth of the steps is left out. Peers are installed on first use, each in an environment of its own.
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
from peers import ascendtune, llamafactory, ms_swift, trl
from peers.venv import cache_directory
from peers.work import Work

OURS = cache_directory() / "ours"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=24_000, help="real tokens per run, about")
    parser.add_argument("--only", nargs="*", default=[], help="variants whose name holds one of these words")
    given = parser.parse_args()
    chosen = {
        name: variant
        for name, variant in variants(given.tokens).items()
        if not given.only or any(word in name for word in given.only)
    }
    figures = in_turn({name: partial(measure, variant) for name, variant in chosen.items()}, given.rounds)
    write_result(
        "throughput-of-some" if given.only else "throughput",
        report(figures),
        figures,
        {"TRL": trl.VERSIONS, "LLaMA-Factory": llamafactory.VERSIONS, "ms-swift": ms_swift.VERSIONS},
    )


def variants(tokens: int) -> dict[str, Callable[[Path], Measured]]:
    """Name -> what runs it in a scratch directory. As many steps as `tokens` need."""
    data = inputs.make("m15")
    # A padded step of four rows holds about 305 real tokens, a packed one 2,048.
    padded = Work(data, steps=round(tokens / 305))
    packed = Work(data, steps=round(tokens / 2048), packing=True)
    # transformers sorts 50 batches at a time, the longest first: whole groups of 50, after the tenth that is left out.
    by_length = padded.changed(steps=56)
    ours = partial(ascendtune.train, cache=OURS)
    return {
        "ascendtune, defaults (packing, max_length 2048)": lambda at: ours(
            packed.changed(max_length=2048, batch=1), at
        ),
        "ascendtune, packing, 4 × 512": lambda at: ours(packed, at),
        "ascendtune, padded": lambda at: ours(padded, at),
        "plain loop, packing, 4 × 512": lambda at: plain(packed, at),
        "plain loop, padded": lambda at: plain(padded, at),
        "TRL, padded": lambda at: trl.train(padded, at),
        "TRL, packing, 4 × 512": lambda at: trl.train(packed, at),
        "LLaMA-Factory, padded": lambda at: llamafactory.train(padded, at),
        "LLaMA-Factory, neat_packing, 4 × 512": lambda at: llamafactory.train(packed, at),
        "ms-swift, padded, grouped by length": lambda at: ms_swift.train(by_length, at, by_length=True),
    }


def plain(work: Work, scratch: Path, *, trainer: bool = False) -> Measured:
    """bare.py on the tokens that ours prepared; it counts no tokens itself."""
    tokens = prepared(work, scratch)
    script = Path(__file__).with_name("bare.py")
    words = ["--steps", str(work.steps), "--batch", str(work.batch), "--max-length", str(work.max_length)]
    switches = ["--packing"] * work.packing + ["--fp32"] * (work.precision == "fp32") + ["--trainer"] * trainer
    measured = run(
        [sys.executable, script, work.inputs.model, tokens, *words, *switches],
        directory=scratch,
        env={"XDG_CACHE_HOME": str(OURS)},
    )
    import bare

    feed, seen, steps = bare.batches(tokens, work.batch, work.max_length, packing=work.packing), 0, []
    for step in measured.steps:
        seen += int((next(feed)["input_ids"] != work.inputs.pad_id).sum())
        steps.append(Step(step.cpu_seconds, step.seconds, seen))
    return Measured(**{**measured.__dict__, "steps": steps})


def prepared(work: Work, scratch: Path) -> Path:
    """Where our tokens lie."""
    done = ascendtune.train(work, scratch, cache=OURS, prepare=True)
    return Path(done.output.strip().splitlines()[-1].rpartition(" ")[2])


def measure(variant: Callable[[Path], Measured]) -> dict[str, Any]:
    measured = trained(variant)
    first, last = measured.steps[max(0, len(measured.steps) // 10)], measured.steps[-1]
    return {
        "tokens_per_cpu_second": (last.tokens - first.tokens) / (last.cpu_seconds - first.cpu_seconds),
        "tokens_per_second": (last.tokens - first.tokens) / (last.seconds - first.seconds),
        "peak_rss_bytes": measured.peak_rss_bytes,
        "command_cpu_seconds": measured.cpu_seconds,
        "steps": len(measured.steps),
        "tokens": last.tokens,
    }


def report(figures: dict[str, list[dict[str, Any]]]) -> str:
    ours = next(iter(figures))
    best = median(figures[ours], "tokens_per_cpu_second")
    rows = [
        [
            name,
            spread(runs, "tokens_per_cpu_second", 0),
            f"{best / median(runs, 'tokens_per_cpu_second'):.2f}",
            f"{median(runs, 'peak_rss_bytes') / 2**20:,.0f}",
            f"{median(runs, 'steps'):.0f}",
        ]
        for name, runs in figures.items()
    ]
    return table(["variant", "real tokens per CPU-second", "first row / this", "peak RSS MiB", "steps"], rows)


if __name__ == "__main__":
    main()
