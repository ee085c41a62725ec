"""`ascendtune plan` against what training takes, on CPU: real models of 15 to 500 million parameters.

    python benchmarks/memory_plan.py WORK [--only NAME …] [--estimate-only]

Each case trains a few steps in a process of its own under `memory_worker.py`, and is estimated from its recipe. Results
are kept in WORK/results.json: a second start goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import memory_worker

from ascendtune.core.units import format_bytes
from ascendtune.data.store import TokenDataset
from ascendtune.job.command import command
from ascendtune.job.spec import JobSpec
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.prepare import prepare_run

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from tiny_model import write_tiny_model

MODELS: dict[str, dict[str, Any]] = {
    "qwen15m": {
        "model_type": "qwen2", "vocab_size": 8192, "hidden_size": 320, "intermediate_size": 880, "num_hidden_layers": 8,
        "num_attention_heads": 5, "num_key_value_heads": 5, "tie_word_embeddings": True,
    },
    "llama60m": {
        "model_type": "llama", "vocab_size": 16384, "hidden_size": 512, "intermediate_size": 1408,
        "num_hidden_layers": 14, "num_attention_heads": 8, "num_key_value_heads": 4, "tie_word_embeddings": False,
    },
    "qwen160m": {
        "model_type": "qwen3", "vocab_size": 32768, "hidden_size": 768, "intermediate_size": 2304,
        "num_hidden_layers": 18, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "gemma100m": {
        "model_type": "gemma2", "vocab_size": 32768, "hidden_size": 640, "intermediate_size": 1792,
        "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 80,
        "sliding_window": 256,
    },
    "llama500m": {
        "model_type": "llama", "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 26, "num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": False,
    },
}  # fmt: skip
_WRITE_WEIGHTS = """
import sys
from transformers import AutoConfig, AutoModelForCausalLM
config = AutoConfig.from_pretrained(sys.argv[1])
AutoModelForCausalLM.from_config(config).bfloat16().save_pretrained(sys.argv[1])
"""
SFT = {"method.stage": "sft"}
LORA = {"method.tuner": "lora"}
OFT = {"method.tuner": "oft"}
CHECKPOINTING = {"memory.gradient_checkpointing": True}
BF16 = {"precision": "bf16"}
FP32 = {"precision": "fp32"}
PADDED = {"data.packing": False}
DPO = {"method.stage": "preference"}
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {}
"""Name -> model, ranks, keys."""


def _case(model: str, ranks: int = 1, **parts: Any) -> None:
    keys: dict[str, Any] = {}
    for part in parts.pop("of", ()):
        keys |= part
    keys |= {key.replace("__", "."): value for key, value in parts.items()}
    name = "-".join([model, f"r{ranks}", *(f"{key.rpartition('.')[2]}={value}" for key, value in keys.items())])
    CASES[name] = model, ranks, keys


def _cases() -> None:
    for model in ("qwen15m", "llama60m"):
        for precision in (FP32, BF16):
            for extra in ({}, CHECKPOINTING):
                _case(model, of=(SFT, precision, extra), data__max_length=512, batch__per_device=2)
                _case(model, of=(SFT, LORA, precision, extra), data__max_length=512, batch__per_device=2)
                _case(model, of=(SFT, OFT, precision, extra), data__max_length=512, batch__per_device=2)
    for length in (128, 1024, 2048):
        _case("llama60m", of=(SFT, FP32), data__max_length=length)
        _case("llama60m", of=({"method.stage": "pretrain"}, BF16, CHECKPOINTING), data__max_length=length)
    for tuner in ("full", "lora"):
        for stage in ("reward", "preference"):
            _case("llama60m", of=({"method.stage": stage, "method.tuner": tuner}, FP32), data__max_length=256)
    _case("llama60m", of=(DPO, {"method.preference.loss": "orpo"}, BF16), data__max_length=256)
    _case("llama60m", of=(DPO, {"method.preference.loss": "kto"}, FP32), data__max_length=256, batch__per_device=2)
    _case("llama60m", of=(SFT, {"method.tuner": "freeze"}, FP32), data__max_length=512)
    _case("llama60m", of=(SFT, FP32, PADDED), data__max_length=512, batch__per_device=4)
    _case("llama60m", of=(SFT, LORA, FP32, PADDED, CHECKPOINTING), data__max_length=512, batch__per_device=4)
    _case("llama60m", of=(SFT, FP32), data__max_length=512, batch__accumulate=3)
    _case("llama60m", of=(SFT, FP32), data__max_length=256, optim__optimizer="sgd")
    _case("qwen160m", of=(SFT, FP32), data__max_length=512)
    _case("qwen160m", of=(SFT, BF16, CHECKPOINTING), data__max_length=1024, batch__per_device=2)
    _case("qwen160m", of=(SFT, LORA, BF16), data__max_length=1024, batch__per_device=2)
    _case("gemma100m", of=(SFT, FP32), data__max_length=512)
    _case("gemma100m", of=(SFT, LORA, FP32, CHECKPOINTING), data__max_length=512)
    _case("llama500m", of=(SFT, LORA, BF16), data__max_length=512)
    _case("llama500m", of=(SFT, FP32, CHECKPOINTING), data__max_length=256)
    for strategy in ("ddp", "fsdp"):
        chosen = {"parallel.strategy": strategy}
        _case("llama60m", 2, of=(SFT, FP32, chosen), data__max_length=512)
        _case("llama60m", 2, of=(SFT, FP32, chosen), data__max_length=256, batch__accumulate=2)
        _case("llama60m", 2, of=(SFT, BF16, CHECKPOINTING, chosen), data__max_length=512)
        _case("llama60m", 2, of=(SFT, LORA, FP32, chosen), data__max_length=512)
        _case("llama60m", 2, of=(SFT, OFT, FP32, chosen), data__max_length=512)
        _case("qwen15m", 2, of=(DPO, FP32, chosen), data__max_length=256)
        _case("qwen15m", 2, of=(DPO, LORA, BF16, chosen), data__max_length=256)
        _case("llama60m", 2, of=({"method.stage": "reward"}, FP32, chosen), data__max_length=256)
        _case("llama60m", 2, of=(SFT, FP32, PADDED, chosen), data__max_length=512, batch__per_device=2)
        _case("llama60m", 2, of=(SFT, LORA, BF16, CHECKPOINTING, chosen), data__max_length=1024)
    _case("llama60m", of=(SFT, LORA, FP32, {"method.lora.dora": True}), data__max_length=512)
    _case("llama60m", of=(SFT, LORA, FP32, CHECKPOINTING), data__max_length=2048)
    _case("llama60m", 2, of=(SFT, {"method.tuner": "freeze"}, FP32, {"parallel.strategy": "ddp"}), data__max_length=512)
    _case("qwen15m", 2, of=(DPO, {"method.preference.loss": "orpo"}, FP32, {"parallel.strategy": "fsdp"}),
          data__max_length=256)  # fmt: skip
    _case("llama60m", 2, of=(SFT, FP32, {"parallel.strategy": "fsdp", "parallel.fsdp.sync_each_batch": False}),
          data__max_length=256, batch__accumulate=2)  # fmt: skip
    _case("qwen160m", 2, of=(SFT, FP32, {"parallel.strategy": "fsdp"}), data__max_length=256)
    _case("llama60m", 2, of=(SFT, FP32, {"parallel.strategy": "fsdp", "parallel.fsdp.reshard": False}),
          data__max_length=256)  # fmt: skip


def make_model(work: Path, name: str) -> Path:
    """A model of `MODELS` with random weights in bf16."""
    directory = work / "models" / name
    if (directory / "model.safetensors").exists():
        return directory
    write_tiny_model(directory)
    values = {"max_position_embeddings": 4096, "eos_token_id": 2, "pad_token_id": 0, "bos_token_id": None}
    (directory / "config.json").write_text(json.dumps({**values, **MODELS[name]}))
    # A process of its own: `measure` forks this one, and threads that torch has started do not live on in the copy.
    subprocess.run([sys.executable, "-c", _WRITE_WEIGHTS, str(directory)], check=True)
    return directory


def make_data(work: Path, stage: str, loss: str) -> Path:
    """Rows of many lengths, some longer than every `max_length`."""
    path = work / f"{stage}-{loss}.jsonl"
    words = [
        "the",
        "quick",
        "brown",
        "fox",
        "jumps",
        "over",
        "a",
        "lazy",
        "dog",
        "and",
        "then",
        "it",
        "sleeps",
        "for",
        "some",
        "time",
    ]
    rows: list[dict[str, Any]] = []
    for number in range(40):
        text = " ".join(words[(number + each) % len(words)] for each in range(20 + 37 * number))
        prompt = {"prompt": [{"role": "user", "content": "Say something long."}]}
        if stage == "pretrain":
            rows.append({"text": text})
        elif stage == "sft":
            rows.append({"messages": [*prompt["prompt"], {"role": "assistant", "content": text}]})
        elif loss == "kto":
            rows.append({**prompt, "completion": [{"role": "assistant", "content": text}], "label": number % 2 == 0})
        else:
            rows.append({
                **prompt,
                "chosen": [{"role": "assistant", "content": text}],
                "rejected": [{"role": "assistant", "content": text[::-1]}],
            })  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def recipe_of(work: Path, name: str) -> Recipe:
    model, _, keys = CASES[name]
    stage = keys.get("method.stage", "sft")
    values: dict[str, Any] = {
        "name": name.replace("=", "_"), "run_dir": str(work / "runs" / "{name}"),
        "model": {"path": str(make_model(work, model))},
        "data": {"train": [{"path": str(make_data(work, stage, keys.get("method.preference.loss", "")))}]},
        "optim": {"max_steps": 2}, "track": {"tensorboard": False},
    }  # fmt: skip
    for key, value in keys.items():
        *sections, last = key.split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return Recipe.check(values)


def measure(work: Path, name: str, *, fork: bool = True) -> dict[str, Any]:
    """Train; the peaks of the rank that held most.

    Args:
        fork: train on one device in a copy of this process, which must not have computed anything: importing takes
            longest.
    """
    recipe, ranks = recipe_of(work, name), CASES[name][1]
    shutil.rmtree(recipe.run_directory(), ignore_errors=True)
    start = prepare_run(recipe, {})
    assert start.run is not None and start.claim is not None
    out = work / "measured" / name
    out.parent.mkdir(exist_ok=True)
    start.claim.release()
    script = str(Path(__file__).with_name("memory_worker.py"))
    spec = JobSpec((sys.executable, script, str(out), str(start.run)), start.run.path, ranks, "cpu")
    (start.run.path / "log").mkdir(exist_ok=True)
    if ranks > 1 or not fork:
        ended = subprocess.run(command(spec, os.environ), capture_output=True, text=True, check=False)
        code, said = ended.returncode, f"{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
    else:
        if (child := os.fork()) == 0:
            memory_worker.main(str(out), [str(start.run)])
        code, said = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ""
    found = [json.loads(each.read_text()) for each in out.parent.glob(f"{name}.[0-9].json")]
    if code or len(found) != ranks:
        raise RuntimeError(f"{name}: exit code {code}\n{said}")
    return max(found, key=lambda each: max(each["peaks"].values()))


def estimate(work: Path, name: str) -> dict[str, Any]:
    from ascendtune.machine.torch_backend.cpu import CpuDevice
    from ascendtune.train.plan.rows import largest_micro_batch
    from ascendtune.train.plan.traced_step import TrainingChoices, trace_step
    from ascendtune.train.prepare import prepare_data

    recipe, ranks = recipe_of(work, name), CASES[name][1]
    directory = Path(recipe.model.path)
    dataset = TokenDataset.open(prepare_data(recipe, directory).train)
    setting = TrainingChoices.of(recipe, directory, CpuDevice(), ranks=ranks, vocabulary=0, pad_id=0)
    traced = trace_step(setting, largest_micro_batch(dataset, recipe, padding_free=setting.padding_free, ranks=ranks))
    moment = max(traced.moments, key=lambda each: traced.moments[each].total())
    return {
        "expected": traced.moments[moment].total(), "moment": moment,
        "moments": {key: value.total() for key, value in traced.moments.items()},
        "at_peak": dict(traced.moments[moment]),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--measure-only", action="store_true")
    parser.add_argument("--estimate-only", action="store_true", help="with the measurements that are there")
    given = parser.parse_args()
    given.work.mkdir(exist_ok=True)
    _cases()
    file = given.work / "results.json"
    kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    errors = []
    for name in CASES:
        if given.only and not any(each in name for each in given.only):
            continue
        if name not in kept:
            if given.estimate_only:
                continue
            try:
                kept[name] = measure(given.work, name)
            except RuntimeError as error:
                print(error)
                continue
            file.write_text(json.dumps(kept))
        if given.measure_only:
            continue
        begun = time.monotonic()
        found = estimate(given.work, name)
        peaks = {phase: size for phase, size in kept[name]["peaks"].items() if phase != "before"}
        measured = max(peaks.values())
        phase = max(peaks, key=lambda each: peaks[each])
        errors.append(found["expected"] / measured - 1)
        print(
            f"{errors[-1]:+7.1%}  {format_bytes(found['expected']):>9} for {format_bytes(measured):>9}  {name}  "
            f"{found['moment']} / {phase}  {time.monotonic() - begun:.1f} s",
            flush=True,
        )
    if not errors:
        return
    absolute = [abs(each) for each in errors]
    print(
        f"{len(errors)} recipes: |error| median {statistics.median(absolute):.1%}, worst {max(absolute):.1%}, "
        f"lowest {min(errors):+.1%}"
    )


if __name__ == "__main__":
    main()
