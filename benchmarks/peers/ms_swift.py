"""ms-swift: `swift sft`. Its packing needs flash attention, so on CPU its best setting is to group rows by length.

Offline it asks for a network listing for some seconds before it trains: read its CPU-seconds, not its seconds.
"""

from __future__ import annotations

from pathlib import Path

from measure import Measured, run
from peers import venv
from peers.work import Work

VERSIONS = {"ms-swift": "4.6.0"}


def install() -> Path:
    return venv.make("ms-swift", [f"{name}=={version}" for name, version in VERSIONS.items()])


def train(work: Work, scratch: Path, *, by_length: bool = False) -> Measured:
    options: dict[str, object] = {
        "model": work.inputs.model,
        "model_type": "qwen2",
        "template": "chatml",
        "dataset": work.inputs.alpaca,
        "max_length": work.max_length,
        "tuner_type": work.tuner,
        "torch_dtype": "float32",
        "output_dir": scratch / "out",
        "use_cpu": "true",
        "bf16": str(work.precision == "bf16").lower(),
        # It switches fp16 on by itself for fp32 weights.
        "fp16": "false",
        "gradient_checkpointing": "false",
        "group_by_length": str(by_length).lower(),
        "load_from_cache_file": "true",
        "per_device_train_batch_size": work.batch,
        "gradient_accumulation_steps": 1,
        "max_steps": work.steps,
        "learning_rate": 1e-4,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "eval_strategy": "no",
    }
    if work.tuner == "lora":
        options |= {"lora_rank": 8, "lora_alpha": 16, "target_modules": "all-linear"}
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    kept = venv.cache_directory() / "hf-ms-swift"
    return run(
        [install() / "swift", "sft", *words],
        directory=scratch,
        env={"HF_HOME": str(kept), "MODELSCOPE_CACHE": str(kept)},
        pad_id=work.inputs.pad_id,
    )
