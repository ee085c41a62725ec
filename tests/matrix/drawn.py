"""Draw recipes and hold each against its plain form: `make drawn-recipes`.

A recipe is drawn in two parts: what decides the numbers (model, data, method, optimizer), and what must not change them
(strategy, ranks, how a step is cut into micro-batches, recomputing, kernels, attention, evaluations, a resumed start).
Both parts together are trained, and the first part alone on one device. Each drawn recipe is refused before anything
starts, or gives the same losses and gradient norms: within the matrix's tolerance, or within what cutting the plain
form into other micro-batches does to them, which is rounding. Where a run is cut off after a checkpoint and started
again, the steps behind it are the same bit by bit.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from families.measure import write_model
from matrix.cells import Outcome, asked, attempt, write_rows
from matrix.page import same
from matrix.simulated import DEEPSPEED

MODELS = (
    *("llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "gemma4_text", "phi3", "glm4", "gpt2", "gpt_neox", "olmo2"),
    *("qwen3_moe", "mixtral", "deepseek_v3", "gpt_oss", "cohere2", "granite", "falcon_h1", "qwen3_next", "smollm3"),
)
_ROWS_OF_A_STEP = 4
_OF_NOISE = 4.0
"""How often a difference may be that of rounding."""
_OF_MUON = 2e-4
"""Of muon, which orthogonalises in bf16: eager attention alone moves a gradient norm by 6e-5 in two steps of it."""


@dataclass(frozen=True)
class Drawn:
    number: int
    plain: dict[str, Any]
    changed: dict[str, Any]
    ranks: int
    is_random: bool
    resumes: bool
    words: str
    """What was drawn, for the reader."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, action="append", help="this number of the draw alone")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    sys.path.append(str(DEEPSPEED))
    import deepspeed  # noqa: F401  # imported once, before processes are forked
    import peft  # noqa: F401
    import transformers  # noqa: F401

    wrong = refused = 0
    with tempfile.TemporaryDirectory() as directory:
        for drawn in draw(arguments.seed, arguments.count, Path(directory)):
            if arguments.only and drawn.number not in arguments.only:
                continue
            problem, reason = _try(drawn)
            wrong, refused = wrong + bool(problem), refused + bool(reason)
            state = f"WRONG {problem}" if problem else f"refused ({reason})" if reason else "same"
            print(f"{drawn.number} {state}: {drawn.words}", flush=True)
    print(f"{arguments.count} recipes, {refused} refused, {wrong} wrong")
    return 1 if wrong else 0


def draw(seed: int, count: int, directory: Path) -> Iterator[Drawn]:
    """`count` recipes; the models and rows that they name are written below `directory` when they are needed."""
    from tiny_model import write_tiny_model

    os.environ |= {"XDG_CACHE_HOME": str(directory / "cache"), "XDG_STATE_HOME": str(directory / "state")}
    tokenizer, files = write_tiny_model(directory / "tokenizer"), write_rows(directory)
    for number in range(count):
        # Each number has a draw of its own, whatever came before it.
        one = random.Random(f"{seed} {number}")
        while not _is_allowed(drawn := _draw(one, number, files, directory)):
            pass
        model = Path(drawn.plain["model"]["path"])
        if not (model / "config.json").is_file():
            write_model(model.name, model, tokenizer)
        yield drawn


def _draw(one: random.Random, number: int, files: dict[str, Path], directory: Path) -> Drawn:
    name = one.choice(MODELS)
    numbers, is_random = _numbers(one)
    neutral, ranks = _neutral(one)
    per_device = one.choice([each for each in (1, 2, 4) if each * ranks <= _ROWS_OF_A_STEP])
    model, accumulate = directory / "models" / name, _ROWS_OF_A_STEP // (per_device * ranks)
    plain = _recipe(numbers, files, model, directory / f"plain-{number}", _ROWS_OF_A_STEP, 1)
    changed = _recipe(numbers, files, model, directory / f"changed-{number}", per_device, accumulate)
    words = f"{name} × {ranks}, {per_device} a batch, {json.dumps(_merged(numbers, neutral))}"
    return Drawn(number, plain, _merged(changed, neutral), ranks, is_random, one.random() < 0.4, words)


def _is_allowed(drawn: Drawn) -> bool:
    """Whether the recipe's own check lets it pass: what it refuses is tested elsewhere."""
    from ascendtune.core.errors import RecipeError
    from ascendtune.recipe.recipe import Recipe

    try:
        Recipe.check(drawn.changed)
    except RecipeError:
        return False
    return drawn.changed["parallel"].get("fsdp", {}).get("replicas") in (None, 1, drawn.ranks // 2)


def _numbers(one: random.Random) -> tuple[dict[str, Any], bool]:
    """Keys that decide the numbers, and whether some of these are drawn anew for each micro-batch."""
    loss = one.choice(("pretrain", "sft", "sft", "reward", "sigmoid", "hinge", "ipo", "kto", "orpo", "simpo"))
    tuner = one.choice(("full", "full", "freeze", "lora", "lora", "oft"))
    method: dict[str, Any] = {"tuner": tuner}
    if tuner == "lora":
        method["lora"] = _some(one, {
            "rank": [1, 3, 8], "alpha": [4.0], "rslora": [True], "dora": [True], "init": ["pissa"], "dropout": [0.2],
            "modules_to_save": ["all-embeddings"], "plus_ratio": [8.0],
        })  # fmt: skip
    elif tuner == "oft":
        method["oft"] = _some(one, {
            "block_size": [4, 8], "module_dropout": [0.3], "coft": [True], "block_share": [True],
            "cayley_neumann": [False], "modules_to_save": ["all-embeddings"],
        })  # fmt: skip
    elif tuner == "freeze":
        method["freeze"] = _some(one, {"first_layers": [1], "last_layers": [1], "extra": [["embed_tokens"]]})
    if loss == "sft":
        method["sft"] = _some(one, {"loss": ["dft", "eaft", "asft"], "neftune_alpha": [5.0]})
    elif loss not in ("pretrain", "reward"):
        method["preference"] = _some(one, {
            "beta": [0.3], "label_smoothing": [0.1], "sft_weight": [0.5], "desirable_weight": [2.0],
        })  # fmt: skip
    keys: dict[str, Any] = {
        "loss": loss,
        "method": method,
        "model": _some(one, {"new_tokens": [["<moon>"]], "new_layers": [1]}, most=1),
        "data": _some(one, {
            "max_length": [24, 30], "on_long_row": ["drop"], "packing": [True, False], "eval_rows": [3],
            "loss_on": ["all"] if loss == "sft" else ["assistant"],
        }),
        "optim": _some(one, {
            "optimizer": ["adafactor", "muon", "sgd"], "scheduler": ["linear", "constant"], "warmup_steps": [2],
            "weight_decay": [0.1], "max_grad_norm": [None, 0.01], "beta2": [0.95],
        }),
        "seed": one.choice((0, 42)),
    }  # fmt: skip
    tuned = method.get(tuner, {})
    is_random = "dropout" in tuned or "module_dropout" in tuned or "neftune_alpha" in method.get("sft", {})
    return keys, is_random


def _neutral(one: random.Random) -> tuple[dict[str, Any], int]:
    """Keys that must not change the numbers, and the number of ranks."""
    strategy = one.choice(("none", "ddp", "fsdp", "fsdp", "deepspeed", "deepspeed"))
    ranks = 1 if strategy == "none" else one.choice((1, 2, 2, 4))
    parallel: dict[str, Any] = {} if strategy == "none" else {"strategy": strategy}
    if strategy == "fsdp":
        parallel["fsdp"] = _some(one, {
            "reshard": [False], "offload": [True], "sync_each_batch": [True, False], "replicas": [1, 2],
        })  # fmt: skip
    elif strategy == "deepspeed":
        parallel["deepspeed"] = {"stage": one.randrange(4)} | _some(one, {
            "offload_optimizer": ["cpu"], "offload_param": ["cpu"],
        })  # fmt: skip
    keys = {
        "parallel": parallel,
        "memory": _some(one, {"gradient_checkpointing": [True], "offload_activations": [True]}),
        "model": _some(one, {"attention": ["eager", "sdpa"]}),
        "kernel": _some(one, {name: [False] for name in ("rms_norm", "rotary", "swiglu", "experts")}),
        "deterministic": one.random() < 0.3,
        "eval": {"every_steps": 1} if one.random() < 0.3 else {},
    }
    return keys, ranks


def _some(one: random.Random, choices: dict[str, list[Any]], most: int = 3) -> dict[str, Any]:
    names = one.sample(sorted(choices), one.randint(0, min(most, len(choices))))
    return {name: copy.deepcopy(one.choice(choices[name])) for name in names}


def _recipe(
    numbers: dict[str, Any], files: dict[str, Path], model: Path, directory: Path, per_device: int, accumulate: int
) -> dict[str, Any]:
    from matrix.cells import WAYS

    base = asked(numbers["loss"], "full", WAYS[0], files, model, directory)
    changes = {key: value for key, value in numbers.items() if key != "loss"}
    return _merged(_merged(base, changes), {
        "batch": {"per_device": per_device, "accumulate": accumulate},
        "checkpoint": {"resume": "auto", "every_steps": 1, "keep": 9},
    })  # fmt: skip


def _merged(recipe: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(recipe)
    for key, value in changes.items():
        merged[key] = _merged(merged.get(key) or {}, value) if isinstance(value, dict) else value
    return merged


def _try(drawn: Drawn) -> tuple[str, str]:
    """What is wrong with it, and why it was refused."""
    plain, changed = attempt(drawn.plain, 1), attempt(drawn.changed, drawn.ranks)
    for name, outcome in (("the plain form ", plain), ("", changed)):
        if outcome.failed and not _is_refusal(outcome):
            return f"{name}failed: {outcome.failed[-1500:]}", ""
    for outcome in (plain, changed):
        if outcome.refused or outcome.failed:
            return "", outcome.refused or outcome.failed.rpartition("RecipeError: ")[2].split("\n")[0]
    if not drawn.is_random and not same(changed, plain) and not _is_rounding(drawn, changed, plain):
        return f"differs: {_short(changed)} | plain {_short(plain)}", ""
    return _resumed(drawn, changed) if drawn.resumes else "", ""


def _is_rounding(drawn: Drawn, changed: Outcome, plain: Outcome) -> bool:
    """Whether the two differ by no more than the plain form does from itself in single rows."""
    cut = {"per_device": 1, "accumulate": _ROWS_OF_A_STEP}
    runs = drawn.plain["run_dir"].replace("plain-", "cut-")
    other = attempt({**drawn.plain, "run_dir": runs, "batch": cut}, 1)
    if not plain.curve or not changed.curve or not other.curve:
        return False
    noise = [abs(one - two) / abs(one) for one, two in zip(plain.curve, other.curve, strict=True)]
    found = [abs(one - two) / abs(one) for one, two in zip(plain.curve, changed.curve, strict=True)]
    least = _OF_MUON if drawn.plain["optim"].get("optimizer") == "muon" else 0.0
    return max(found) <= max(_OF_NOISE * max(noise), least)


def _resumed(drawn: Drawn, whole: Outcome) -> str:
    """What is wrong with a start from the checkpoint of the first step."""
    from ascendtune.core.rundir import RunDir

    run = RunDir(Path(drawn.changed["run_dir"].replace("{name}", drawn.changed["name"])))
    if 1 not in (steps := run.checkpoint_steps()):
        return f"no checkpoint of step 1, but of {steps}"
    for step in steps[1:]:
        shutil.rmtree(run.checkpoint(step))
    shutil.rmtree(run.model)
    run.update(state="running")
    again = attempt(drawn.changed, drawn.ranks)
    if again.refused or again.failed:
        return f"does not go on: {again.refused or again.failed[-1500:]}"
    return "" if again.curve == whole.curve else f"goes on otherwise: {_short(again)} | whole {_short(whole)}"


def _is_refusal(outcome: Outcome) -> bool:
    """Whether ranks refused the recipe: some things only the loaded model tells. Other errors of ours are faults."""
    return "\nascendtune.core.errors.RecipeError: " in outcome.failed


def _short(outcome: Outcome) -> str:
    return " ".join(f"{value:.7g}" for value in outcome.curve or [])


if __name__ == "__main__":
    sys.exit(main())
