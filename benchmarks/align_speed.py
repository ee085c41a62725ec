"""How long `ascendtune align` takes: losses of 100,000 steps, and dumps of statistics of 32 layers, 3 steps, 8 ranks.

    python benchmarks/align_speed.py [--records 100000] [--layers 32] [--steps 3] [--ranks 8] [--rounds 5]

Both sides are made up: a falling loss, the modules of a Llama, and numbers that differ by rounding in bf16. Times are
of the whole command, with its start.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from measure import ASCENDTUNE, in_turn, run, spread, table, write_result

from ascendtune.check.align.dump import FORMAT

HIDDEN, INNER, TOKENS = 4096, 11008, 2048
_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj")


def modules(layers: int) -> Iterator[tuple[str, str, int, int, bool]]:
    """Name, class, width of input and output, and whether it has parameters, in the order of execution."""
    yield "model.embed_tokens", "Embedding", HIDDEN, HIDDEN, True
    for number in range(layers):
        at = f"model.layers.{number}"
        yield f"{at}.input_layernorm", "LlamaRMSNorm", HIDDEN, HIDDEN, True
        for name in _LINEARS:
            yield f"{at}.self_attn.{name}", "Linear", HIDDEN, HIDDEN, True
        yield f"{at}.self_attn", "LlamaAttention", HIDDEN, HIDDEN, False
        yield f"{at}.post_attention_layernorm", "LlamaRMSNorm", HIDDEN, HIDDEN, True
        yield f"{at}.mlp.gate_proj", "Linear", HIDDEN, INNER, True
        yield f"{at}.mlp.act_fn", "SiLU", INNER, INNER, False
        yield f"{at}.mlp.up_proj", "Linear", HIDDEN, INNER, True
        yield f"{at}.mlp.down_proj", "Linear", INNER, HIDDEN, True
        yield f"{at}.mlp", "LlamaMLP", HIDDEN, HIDDEN, False
        yield at, "LlamaDecoderLayer", HIDDEN, HIDDEN, False
    yield "model.norm", "LlamaRMSNorm", HIDDEN, HIDDEN, True


def write_side(directory: Path, layers: int, steps: int, ranks: int, noise: int) -> int:
    """One side; returns the bytes of its dump."""
    directory.mkdir()
    total = 0
    for step in range(1, steps + 1):
        for rank in range(ranks):
            place = directory / "dump" / f"step-{step:07d}"
            place.mkdir(parents=True, exist_ok=True)
            lines = list(_lines(layers, step, rank, noise))
            header = {"format": FORMAT, "writer": "benchmark", "step": step, "rank": rank, "world_size": ranks}
            file = place / f"rank_{rank}.jsonl"
            file.write_text("\n".join(map(json.dumps, [{**header, "content": "statistics"}, *lines])) + "\n")
            total += file.stat().st_size
    (directory / "recorded.json").write_text(json.dumps({"format": FORMAT, "world_size": ranks}))
    return total


def _lines(layers: int, step: int, rank: int, noise: int) -> Iterator[dict[str, object]]:
    seen = list(modules(layers))
    draw = random.Random(f"{step} {rank}")
    rounding = random.Random(f"{step} {rank} {noise}")
    order = 0

    def line(phase: str, name: str, slot: str, kind: str, shape: list[int], replica: bool = False) -> dict[str, object]:
        nonlocal order
        order += 1
        source = random.Random(f"{step} {name} {phase}") if replica else draw
        numel = 1
        for size in shape:
            numel *= size
        values = [source.gauss(0, 1) for _ in range(16)]
        near = [each * (1 + rounding.gauss(0, 1e-3)) if noise and not replica else each for each in values]
        numbers = {"min": -4.0, "max": 4.0, "mean": near[0] * 1e-3, "l2": numel**0.5}
        batch = {"micro_batch": None if replica else 0}
        digest = "0" * 16 if replica else f"{rounding.getrandbits(64):016x}"
        where = {"order": order, "phase": phase, **batch, "name": name, "slot": slot, "kind": kind, "shape": shape}
        return {**where, "dtype": "bfloat16", **numbers, "nan": 0, "inf": 0, "hash": digest, "samples": near}

    for name, kind, wide, out, is_leaf in seen:
        if is_leaf:
            yield line("forward", name, "input.0", kind, [1, TOKENS, wide])
        yield line("forward", name, "output", kind, [1, TOKENS, out])
    for name, kind, _, out, _ in reversed(seen):
        yield line("backward", name, "output", kind, [1, TOKENS, out])
    for phase in ("gradient", "parameter_before", "parameter_after"):
        for name, _, wide, out, has_parameters in seen:
            if has_parameters:
                yield line(phase, f"{name}.weight", phase.partition("_")[0], "", [out, wide], replica=True)


def write_curve(directory: Path, records: int, noise: int) -> int:
    """metrics.jsonl as `align record` writes it; returns its bytes."""
    directory.mkdir()
    draw = random.Random(noise)
    lines = []
    for step in range(1, records + 1):
        loss = 2 + 8 * math.exp(-step / 20_000) + draw.gauss(0, 1e-6)
        lines.append(json.dumps({"step": step, "loss": loss, "grad_norm": 1 + 1 / step, "learning_rate": 1e-4}))
    (directory / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (directory / "recorded.json").write_text(json.dumps({"format": FORMAT, "world_size": 1}))
    return (directory / "metrics.jsonl").stat().st_size


def _cost(sides: list[Path], directory: Path) -> dict[str, Any]:
    measured = run([ASCENDTUNE, "align", *sides], directory=directory)
    if measured.exit_code:
        raise SystemExit(f"exit code {measured.exit_code}:\n{measured.output[-3000:]}")
    return {"cpu_seconds": measured.cpu_seconds, "seconds": measured.seconds, "peak_rss_bytes": measured.peak_rss_bytes}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in (("records", 100_000), ("layers", 32), ("steps", 3), ("ranks", 8), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    curves = f"losses of {asked.records:,} steps"
    dumps = f"dumps of {asked.layers} layers, {asked.steps} steps, {asked.ranks} ranks"
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        sides = {
            curves: [directory / f"curve-{number}" for number in range(2)],
            dumps: [directory / f"dump-{number}" for number in range(2)],
        }
        sizes = {
            curves: sum(write_curve(side, asked.records, at) for at, side in enumerate(sides[curves])),
            dumps: sum(
                write_side(side, asked.layers, asked.steps, asked.ranks, at) for at, side in enumerate(sides[dumps])
            ),
        }
        figures = in_turn({name: partial(_cost, each, directory) for name, each in sides.items()}, asked.rounds)
    rows = [
        [
            name,
            f"{sizes[name] / 1e6:,.0f} MB",
            spread(runs, "cpu_seconds"),
            spread(runs, "seconds"),
            f"{max(each['peak_rss_bytes'] for each in runs) / 1e6:,.0f} MB",
        ]
        for name, runs in figures.items()
    ]
    write_result("align-speed", table(["both sides", "files", "CPU-seconds", "seconds", "peak memory"], rows), figures)


if __name__ == "__main__":
    main()
