"""Draws of recipes: what decides the numbers, and what must not change them."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from families.measure import write_model
from matrix.cells import WAYS, asked, write_rows

MODELS = (
    *("llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "gemma4_text", "phi3", "glm4", "gpt2", "gpt_neox", "olmo2"),
    *("qwen3_moe", "mixtral", "deepseek_v3", "gpt_oss", "cohere2", "granite", "falcon_h1", "qwen3_next", "smollm3"),
)
"""In three draws of four; in the others it is any type that transformers has."""
_ROWS = (12, 12, 12, 7, 5, 3, 1)
"""Of a file."""
_MOST_OF_A_STEP = 8


@dataclass(frozen=True)
class Restart:
    """A start that goes on from a checkpoint of the recipe's first start."""

    ranks: int
    changes: dict[str, Any]
    """Of the recipe. Without any, and on as many ranks, it goes on bit by bit, otherwise as nearly as two strategies
    agree."""
    after: float
    """Share of the checkpoints that are there, or of the time of the first start."""
    ended_by: str
    """`cut`: it loses the checkpoints behind; `SIGKILL` to all ranks; `SIGTERM` to the last one."""


@dataclass(frozen=True)
class Drawn:
    number: int
    plain: dict[str, Any]
    changed: dict[str, Any]
    ranks: int
    is_random: bool
    """Whether some numbers are drawn anew for each micro-batch."""
    restart: Restart | None
    words: str
    """What was drawn, for the reader."""


def draw(seed: int, count: int, directory: Path) -> Iterator[Drawn]:
    """`count` recipes; the models and rows that they name are written below `directory` when they are needed."""
    from families.configs import takes_other_input, types
    from tiny_model import write_tiny_model

    os.environ |= {"XDG_CACHE_HOME": str(directory / "cache"), "XDG_STATE_HOME": str(directory / "state")}
    tokenizer, files = write_tiny_model(directory / "tokenizer"), _row_files(directory)
    every_type = [name for name, kind in types().items() if not takes_other_input(kind)]
    for number in range(count):
        # Each number has a draw of its own, whatever came before it.
        one = random.Random(f"{seed} {number}")
        while True:
            drawn = _draw(one, number, every_type, files, directory)
            if _is_allowed(drawn) and _is_written(Path(drawn.plain["model"]["path"]), tokenizer):
                break
        yield drawn


def _row_files(directory: Path) -> dict[int, dict[str, Path]]:
    """The files of each number of rows."""
    whole = write_rows(directory)
    files = {}
    for rows in sorted(set(_ROWS)):
        (directory / f"rows-{rows}").mkdir()
        files[rows] = {kind: directory / f"rows-{rows}" / file.name for kind, file in whole.items()}
        for kind, file in files[rows].items():
            file.write_text("".join(whole[kind].read_text().splitlines(keepends=True)[:rows]))
    return files


def _is_written(model: Path, tokenizer: Path) -> bool:
    """Whether the model is there; of some types transformers makes none that computes."""
    if not (model / "config.json").is_file():
        try:
            write_model(model.name, model, tokenizer)
        except Exception:  # noqa: BLE001  # whatever a model class says
            return False
    return True


def _draw(
    one: random.Random, number: int, every_type: list[str], files: dict[int, dict[str, Path]], directory: Path
) -> Drawn:
    name = one.choice(MODELS if one.random() < 0.75 else every_type)
    rows = one.choice(_ROWS)
    numbers, is_random = _numbers(one, rows)
    neutral, ranks = _neutral(one)
    per_device, accumulate = one.choice(
        [(each, times) for each in (1, 2, 4) for times in (1, 2, 3) if each * times * ranks <= _MOST_OF_A_STEP]
    )
    at_once, model = per_device * accumulate * ranks, directory / "models" / name
    plain = _recipe(numbers, files[rows], model, directory / f"plain-{number}", at_once, 1)
    changed = _recipe(numbers, files[rows], model, directory / f"changed-{number}", per_device, accumulate)
    if numbers["precision"] == "bf16" and neutral["parallel"].get("strategy") == "deepspeed":
        # DeepSpeed computes with weights that are rounded altogether: its own numbers are those to be kept.
        plain["parallel"] = {"strategy": "deepspeed", "deepspeed": {"stage": 1}}
    restart = _restart(one, ranks, neutral["parallel"], changed["batch"]) if one.random() < 0.5 else None
    if restart is None or restart.ended_by != "SIGTERM":
        # A run that is stopped has a record of its last step.
        every = {"track": {"every_steps": one.choice((1, 1, 2, 3))}, "checkpoint": {"every_steps": one.choice((1, 2))}}
        plain, changed = merged(plain, every), merged(changed, every)
    shape = f"{name}, {rows} rows × {ranks} ranks, {per_device} a batch × {accumulate}"
    words = f"{shape}, {json.dumps(merged(numbers, neutral))}, {restart}"
    return Drawn(number, plain, merged(changed, neutral), ranks, is_random, restart, words)


def _is_allowed(drawn: Drawn) -> bool:
    """Whether the recipe's own check lets it pass: what it refuses is tested elsewhere."""
    from ascendtune.core.errors import RecipeError
    from ascendtune.recipe.recipe import Recipe

    try:
        recipe = Recipe.check(drawn.changed)
        recipe.parallel.fsdp.shards(ranks=drawn.ranks, nodes=1)
        if drawn.restart:
            again = Recipe.check(merged(drawn.changed, drawn.restart.changes))
            again.parallel.fsdp.shards(ranks=drawn.restart.ranks, nodes=1)
    except RecipeError:
        return False
    return True


def _restart(one: random.Random, ranks: int, parallel: dict[str, Any], batch: dict[str, int]) -> Restart:
    after, ended_by = one.random(), one.choice(("cut", "SIGKILL", "SIGTERM"))
    # DeepSpeed's checkpoints are those of a number of ranks.
    if parallel.get("strategy") == "deepspeed" or one.random() < 0.5:
        return Restart(ranks, {}, after, ended_by)
    strategy = {"strategy": one.choice(("ddp", "fsdp"))}
    if "reduce_dtype" in parallel:
        strategy["reduce_dtype"] = parallel["reduce_dtype"]
    wanted, at_once = one.choice((1, 2, 3, 4)), ranks * batch["per_device"] * batch["accumulate"]
    # Of a step as large as before the ranks may get unequal parts.
    changes = {"parallel": strategy, "batch": {"per_device": one.randint(1, at_once), "accumulate": 1}}
    return Restart(wanted, changes if one.random() < 0.7 else {}, after, ended_by)


def _numbers(one: random.Random, rows: int) -> tuple[dict[str, Any], bool]:
    """Keys that decide the numbers, and whether some of these are drawn anew for each micro-batch."""
    loss = one.choice(("pretrain", "sft", "sft", "reward", "sigmoid", "hinge", "ipo", "kto", "orpo", "simpo"))
    tuner = one.choice(("full", "full", "freeze", "lora", "lora", "oft"))
    method: dict[str, Any] = {"tuner": tuner}
    if tuner == "lora":
        method["lora"] = _some(one, {
            "rank": [1, 3, 8], "alpha": [4.0], "rslora": [True], "dora": [True], "init": ["pissa"], "dropout": [0.2],
            "modules_to_save": ["all-embeddings"], "plus_ratio": [8.0],
            "target": [["all-linear", "all-experts"]],
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
    model = _some(one, {"new_tokens": [["<moon>"]], "new_layers": [1]}, most=1)
    if tuner in ("lora", "oft") and one.random() < 0.3:
        model |= {"quantization": "nf4", "double_quantization": one.choice((True, False))}
    data = _some(one, {
        "max_length": [24, 30], "on_long_row": ["drop"], "packing": [True, False],
        "loss_on": ["all"] if loss == "sft" else ["assistant"],
    })  # fmt: skip
    data.setdefault("packing", "auto")
    is_evaluated = rows > 3 and one.random() < 0.4
    evaluation: dict[str, Any] = {"eval": {}, "checkpoint": {}}
    if is_evaluated:
        data["eval_rows"] = one.choice((1, 3))
        early = _some(one, {"patience": [1, 2], "min_improvement": [0.001]}) if one.random() < 0.3 else None
        evaluation = {
            "eval": {"every_steps": one.choice((None, 1, 2)), "early_stop": early},
            "checkpoint": {"best": one.random() < 0.5},
        }
    keys: dict[str, Any] = {
        "loss": loss,
        "method": method,
        "model": model,
        "data": data,
        "optim": _some(one, {
            "optimizer": ["adafactor", "muon", "sgd", "sgd"], "scheduler": ["linear", "constant"], "warmup_steps": [2],
            "min_learning_rate_ratio": [0.1],
            "weight_decay": [0.1], "max_grad_norm": [None, 0.01], "beta2": [0.95],
        }) | (one.choice(({}, {}, {"max_steps": None, "epochs": one.choice((0.7, 1, 2, 2.5))}))),
        "precision": one.choice(("fp32", "fp32", "fp32", "fp32", "bf16")),
        "seed": one.choice((0, 42)),
        **evaluation,
    }  # fmt: skip
    tuned = method.get(tuner, {})
    is_random = "dropout" in tuned or "module_dropout" in tuned or "neftune_alpha" in method.get("sft", {})
    return keys, is_random


def _neutral(one: random.Random) -> tuple[dict[str, Any], int]:
    """Keys that must not change the numbers, and the number of ranks."""
    strategy = one.choice(("none", "ddp", "ddp", "fsdp", "fsdp", "fsdp", "deepspeed"))
    ranks = 1 if strategy == "none" else one.choice((1, 2, 2, 3, 4))
    parallel: dict[str, Any] = {} if strategy == "none" else {"strategy": strategy}
    if strategy == "fsdp":
        parallel["fsdp"] = _some(one, {
            "reshard": [False], "offload": [True], "sync_each_batch": [True, False], "replicas": [1, 2],
        })  # fmt: skip
    elif strategy == "deepspeed":
        parallel["deepspeed"] = {"stage": one.randrange(4)} | _some(one, {
            "offload_optimizer": ["cpu"], "offload_param": ["cpu"],
        })  # fmt: skip
    if strategy in ("ddp", "fsdp") and one.random() < 0.1:
        parallel["reduce_dtype"] = "bf16"
    keys = {
        "parallel": parallel,
        "memory": _some(one, {"gradient_checkpointing": [True], "offload_activations": [True]}),
        "model": _some(one, {"attention": ["eager", "sdpa"]}),
        "kernel": _some(one, {name: [False] for name in ("rms_norm", "rotary", "swiglu", "experts")}),
        "deterministic": one.random() < 0.3,
    }
    return keys, ranks


def _some(one: random.Random, choices: dict[str, list[Any]], most: int = 3) -> dict[str, Any]:
    names = one.sample(sorted(choices), one.randint(0, min(most, len(choices))))
    return {name: copy.deepcopy(one.choice(choices[name])) for name in names}


def _recipe(
    numbers: dict[str, Any], files: dict[str, Path], model: Path, directory: Path, per_device: int, accumulate: int
) -> dict[str, Any]:
    base = asked(numbers["loss"], "full", WAYS[0], files, model, directory)
    changes = {key: value for key, value in numbers.items() if key != "loss"}
    return merged(merged(base, changes), {
        "batch": {"per_device": per_device, "accumulate": accumulate},
        "checkpoint": {"resume": "auto", "every_steps": 1, "keep": 99},
    })  # fmt: skip


def merged(recipe: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    result = dict(recipe)
    for key, value in changes.items():
        result[key] = merged(result.get(key) or {}, value) if isinstance(value, dict) else value
    return result
