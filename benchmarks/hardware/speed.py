"""The speed of one tool in one cell of the table: a piece of `make hardware`.

    python -m hardware.speed 8b-lora-4k ascendtune OUT.json

All tools get the same rows, text of this repository's pages in conversations of very different length, and a model with
random weights. `bare` is a transformers model behind `torch.compile`, with fused AdamW, on rows that ascendtune packed;
it neither separates the documents of a row nor records, checks or saves anything. TRL and LLaMA-Factory pack by
themselves, with SDPA, and with Liger's operators where these are installed.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import math
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from hardware.cells import SHAPES, Cell, cell_of
from hardware.machine import ROOT, versions

from ascendtune.core.errors import AscendtuneError
from ascendtune.machine.torch_backend.device import Device
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.train.precision import DTYPES
from tiny_model import write_tiny_model

if TYPE_CHECKING:
    from ascendtune.recipe.recipe import Recipe

_LORA = {"rank": 8, "alpha": 16}
_PEERS = ("trl", "llamafactory")
_OPERATORS = 25
"""Of a profile, which are kept with the results."""


def main() -> None:
    cell, tool, out = cell_of(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    if tool in _PEERS and importlib.util.find_spec(tool) is None:
        out.write_text(json.dumps({"state": "skipped", "summary": f"{tool} is not installed"}))
        return
    model, rows = write_inputs(out.parent, cell)
    measure = {"ascendtune": of_ours, "bare": of_bare_loop, "trl": of_trl, "llamafactory": of_llamafactory}[tool]
    figures = measure(cell, model, rows, find_device())
    figures["mfu_6n"] = mfu_6n(cell, figures["tokens_per_second"], find_device().peak_flops)
    if tool in _PEERS:
        figures["versions"] = versions((tool, "transformers", "peft", "flash-attn"))
    summary = f"{figures['tokens_per_second']:,.0f} tokens/s"
    out.write_text(json.dumps({"summary": summary, "speed": {"cell": cell.name, "tool": tool, **figures}}))


def write_inputs(directory: Path, cell: Cell) -> tuple[Path, Path]:
    """A model directory without weights, and prompt/completion rows as JSON Lines, enough for every step."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    model = write_tiny_model(directory / "model")
    (model / "model.safetensors").unlink()
    ids = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[SHAPES[cell.shape]["model_type"]]
    config = {"architectures": [architecture], "dtype": "bfloat16", **ids, **SHAPES[cell.shape]}
    (model / "config.json").write_text(json.dumps(config))
    pages = sorted((ROOT / "docs").rglob("*.md"))
    words = " ".join(page.read_text(encoding="utf-8") for page in pages).split()
    draw = random.Random(0)
    # A word of these pages is about three tokens of this tokenizer; rows of the last, unmeasured steps may repeat.
    wanted, written = cell.rows * cell.length * (cell.warm_steps + cell.steps + 2), 0
    rows = directory / "rows.jsonl"
    with rows.open("w", encoding="utf-8") as file:
        while written < wanted:
            count = min(cell.length // 4, max(8, round(draw.lognormvariate(math.log(cell.length / 40), 0.75))))
            start = draw.randrange(len(words) - count)
            asked = max(2, round(count * draw.uniform(0.1, 0.5)))
            texts = [" ".join(words[start : start + asked]), " ".join(words[start + asked : start + count])]
            file.write(json.dumps({"prompt": texts[0], "completion": texts[1]}) + "\n")
            written += 3 * count
    return model, rows


def recipe_of(cell: Cell, model: Path, rows: Path) -> dict[str, Any]:
    last = cell.warm_steps + cell.steps + 2
    return {
        "name": "run", "run_dir": str(rows.parent / "{name}"),
        "model": {"path": str(model), **({"dtype": cell.weights} if cell.tuner == "full" else {})},
        "data": {"train": [{"path": str(rows)}], "max_length": cell.length, "packing": True},
        "method": {"tuner": cell.tuner, **({"lora": _LORA} if cell.tuner == "lora" else {})},
        "optim": {"learning_rate": 1e-4, "max_steps": last},
        "batch": {"per_device": cell.rows},
        "precision": "bf16",
        "track": {"tensorboard": False},
        # Ends without a checkpoint and without 16 GB of exported weights; the profiled steps are not measured.
        "checkpoint": {"every_steps": 1_000_000},
        "profile": {"steps": str(last), "only": True},
    }  # fmt: skip


def of_ours(cell: Cell, model: Path, rows: Path, device: Device) -> dict[str, Any]:
    """As a user trains, with all that a run records; and what `ascendtune plan` expects of it."""
    from ascendtune.recipe.recipe import Recipe
    from ascendtune.train.fit import fit

    recipe = Recipe.check(recipe_of(cell, model, rows))
    save_random_model(model, device, cell.shape)
    run = fit(recipe).run
    records = list(run.read_metrics())[cell.warm_steps : cell.warm_steps + cell.steps]
    seconds = sum(each["seconds"]["step"] for each in records)
    tokens = sum(each["tokens"] for each in records)
    useful = [each["mfu"] for each in records]
    if traces := os.environ.get("ASCENDTUNE_HARDWARE_TRACES"):
        shutil.copy(run.profile / "rank_0.trace.json.gz", Path(traces) / f"{cell.name}.trace.json.gz")
    return {
        "tokens_per_second": tokens / seconds,
        "seconds_per_step": seconds / cell.steps,
        "mfu": sum(useful) / len(useful) if None not in useful else None,
        "memory_peak_bytes": records[-1]["memory_peak_bytes"],
        **planned(recipe),
        "plan": run.read().get("plan"),
        "profile": profile_of(run.path),
        "loss": records[-1]["loss"],
        "resolved": run.read()["resolved"],
    }


def planned(recipe: Recipe) -> dict[str, Any]:
    """What `ascendtune plan` expects. What has been measured is kept where the plan fails."""
    from ascendtune.machine.visible import visible_devices
    from ascendtune.train.plan.estimator import cached_dataset, run_estimator, target_here

    try:
        estimate = run_estimator(
            recipe, target_here(visible_devices(), 1), dataset=cached_dataset(recipe), search=False
        ).estimate
    except AscendtuneError as error:
        return {"plan_error": str(error)}
    return {"planned_bytes": estimate.expected, "planned_at_peak": estimate.at_peak}


def profile_of(run: Path) -> dict[str, Any]:
    """What `ascendtune profile RUN` says of the step that was recorded, with the operators that take most time."""
    argv = [sys.executable, "-m", "ascendtune", "profile", str(run), "--json"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    if ended.returncode:
        return {"error": ended.stderr[-500:]}
    [rank] = json.loads(ended.stdout)["ranks"]
    times = ("mean_step", "compute", "copies", "idle", "aside")
    names = (*(f"{each}_seconds" for each in times), "host_syncs", "modules")
    return {**{name: rank[name] for name in names}, "operators": rank["operators"][:_OPERATORS]}


def of_bare_loop(cell: Cell, model: Path, rows: Path, device: Device) -> dict[str, Any]:
    """The reference loop; rows are padded to their full length, so that the model is compiled once."""
    import bare

    from ascendtune.recipe.recipe import Recipe
    from ascendtune.train.prepare import prepare_data

    tokens = prepare_data(Recipe.check(recipe_of(cell, model, rows)), model).directory
    feed = bare.batches(tokens, cell.rows, cell.length, packing=True)
    net = random_model(model, device, cell.weights)
    if cell.tuner == "lora":
        from peft import LoraConfig, get_peft_model

        net = get_peft_model(net, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
    net.train()
    trained = [each for each in net.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0, fused=True)
    compiled = torch.compile(net, backend="inductor" if device.kind == "cuda" else "eager")
    clock, loss = Clock(cell, device), torch.zeros(())
    for _ in range(cell.warm_steps + cell.steps):
        batch = next(feed)
        clock.count(int((batch["input_ids"] != 0).sum()))
        inputs = {key: padded(batch[key], cell.length, fill).to(device.torch_device, non_blocking=True)
                  for key, fill in (("input_ids", 0), ("labels", -100))}  # fmt: skip
        with torch.autocast(device.kind, torch.bfloat16):
            loss = compiled(**inputs, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        clock.step()
    return clock.figures() | {"loss": loss.item()}


def padded(tensor: torch.Tensor, length: int, fill: int) -> torch.Tensor:
    """(rows, longest) int64 as (rows, length), with `fill` on the right."""
    return torch.nn.functional.pad(tensor, (0, length - tensor.shape[1]), value=fill)


def random_model(directory: Path, device: Device, dtype: str = "bf16") -> Any:
    """A model whose weights are drawn on the device; with SDPA, or eager attention where it has sinks."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(directory)
    attention = "eager" if config.model_type == "gpt_oss" else "sdpa"
    with device.torch_device:
        return AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype], attn_implementation=attention)


def save_random_model(directory: Path, device: Device, shape: str) -> None:
    """Put the weights of `random_model` into `directory`; other pieces that need them find them in the same folder.

    `init: random` would draw them on the host, so that they are alike on every device: minutes for 8 billion. In the
    end the device's memory is free, and its peak 0.
    """
    kept = Path(os.environ.get("ASCENDTUNE_HARDWARE_MODELS", directory.parent)) / f"weights-{shape}"
    if not kept.exists():
        part = kept.with_suffix(".part")
        random_model(directory, device).save_pretrained(part)
        part.rename(kept)
    for file in kept.glob("model*"):
        os.link(file, directory / file.name)
    gc.collect()
    if device.kind == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


class Clock:
    """Real tokens and seconds of the measured steps of a loop that is not ours."""

    def __init__(self, cell: Cell, device: Device) -> None:
        self.cell = cell
        self.device = device
        self.tokens: list[Any] = []
        """Of each step: a number, or a tensor () on the device, which is read at the end."""
        self.ends: list[float] = []

    def count(self, tokens: Any) -> None:
        self.tokens.append(tokens)

    def step(self) -> None:
        """Note the end of a step; waits for the device at both ends of what is measured only."""
        if len(self.ends) + 1 in (self.cell.warm_steps, self.cell.warm_steps + self.cell.steps):
            self.device.synchronize()
        self.ends.append(time.perf_counter())

    def figures(self) -> dict[str, Any]:
        first, last = self.cell.warm_steps, self.cell.warm_steps + self.cell.steps
        seconds = self.ends[last - 1] - self.ends[first - 1]
        return {
            "tokens_per_second": sum(int(each) for each in self.tokens[first:last]) / seconds,
            "seconds_per_step": seconds / self.cell.steps,
            "memory_peak_bytes": self.device.memory_peak_bytes(),
        }


def in_trainer(cell: Cell, device: Device, start: Callable[[Any], object]) -> dict[str, Any]:
    """`start` runs transformers' Trainer with the callback that it is given."""
    from transformers import Trainer, TrainerCallback

    clock, inner = Clock(cell, device), Trainer.training_step

    def training_step(self: Any, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        # No token of the rows is the padding's.
        clock.count((inputs["input_ids"] != 0).sum())
        return inner(self, model, inputs, *rest, **named)

    class Steps(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.step()

    Trainer.training_step = training_step
    try:
        start(Steps())
    finally:
        Trainer.training_step = inner
    return clock.figures()


def of_trl(cell: Cell, model: Path, rows: Path, device: Device) -> dict[str, Any]:
    from datasets import load_dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    settings = SFTConfig(
        output_dir=str(rows.parent / "trl"), max_steps=cell.warm_steps + cell.steps, packing=True,
        max_length=cell.length, per_device_train_batch_size=cell.rows, learning_rate=1e-4, bf16=True,
        gradient_checkpointing=False, report_to="none", save_strategy="no", logging_steps=1000, disable_tqdm=True,
        use_cpu=device.kind == "cpu", optim="adamw_torch_fused", use_liger_kernel=has_liger(device),
    )  # fmt: skip
    lora = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear") if cell.tuner == "lora" else None

    def start(callback: Any) -> None:
        # Text rows: prompt and completion that are one string each, which TRL joins.
        SFTTrainer(
            random_model(model, device, cell.weights),
            args=settings,
            train_dataset=load_dataset("json", data_files=str(rows), split="train"),
            processing_class=AutoTokenizer.from_pretrained(model),
            peft_config=lora,
            callbacks=[callback],
        ).train()

    return in_trainer(cell, device, start)


def of_llamafactory(cell: Cell, model: Path, rows: Path, device: Device) -> dict[str, Any]:
    from llamafactory.train.tuner import run_exp

    # It loads weights from files only.
    save_random_model(model, device, cell.shape)
    columns = {"prompt": "prompt", "response": "completion"}
    info = {"rows": {"file_name": rows.name, "columns": columns}}
    (rows.parent / "dataset_info.json").write_text(json.dumps(info))
    values: dict[str, Any] = {
        "stage": "sft", "do_train": True, "model_name_or_path": str(model), "dataset_dir": str(rows.parent),
        "dataset": "rows", "template": "chatml", "cutoff_len": cell.length, "packing": True, "neat_packing": True,
        "finetuning_type": cell.tuner, "output_dir": str(rows.parent / "llamafactory"), "bf16": True,
        "pure_bf16": cell.tuner == "full" and cell.weights == "bf16" and device.kind == "cuda",
        "disable_gradient_checkpointing": True, "flash_attn": "sdpa",
        "per_device_train_batch_size": cell.rows, "max_steps": cell.warm_steps + cell.steps, "learning_rate": 1e-4,
        "logging_steps": 1000, "report_to": "none", "save_strategy": "no", "use_cpu": device.kind == "cpu",
        "enable_liger_kernel": has_liger(device), "overwrite_cache": True,
    }  # fmt: skip
    if cell.tuner == "lora":
        values |= {"lora_rank": 8, "lora_alpha": 16, "lora_target": "all"}
    return in_trainer(cell, device, lambda callback: run_exp(values, [callback]))


def has_liger(device: Device) -> bool:
    return device.kind == "cuda" and importlib.util.find_spec("liger_kernel") is not None


def mfu_6n(cell: Cell, tokens_per_second: float, peak_flops: float | None) -> float | None:
    """MFU by the convention of PaLM (arXiv 2204.02311, appendix B): (6 N + 12 L H Q T) FLOPs for each token.

    N: parameters without the table of embeddings that are looked up; L layers, H heads of width Q, rows of T tokens.
    It counts attention over whole rows, the head at each position, and for LoRA gradients that are not computed.

    Returns:
        None where the peak of the device is not known, and for mixtures of experts.
    """
    shape = SHAPES[cell.shape]
    if peak_flops is None or "num_experts_per_tok" in shape:
        return None
    hidden, heads, width = shape["hidden_size"], shape["num_attention_heads"], shape["head_dim"]
    attention = hidden * width * (2 * heads + 2 * shape["num_key_value_heads"])
    block = attention + 3 * hidden * shape["intermediate_size"]
    parameters = shape["num_hidden_layers"] * block + hidden * shape["vocab_size"]
    per_token = 6 * parameters + 12 * shape["num_hidden_layers"] * heads * width * cell.length
    return tokens_per_second * per_token / peak_flops


if __name__ == "__main__":
    main()
