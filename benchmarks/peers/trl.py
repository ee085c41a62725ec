"""TRL: `trl sft`, and the script below it without accelerate's launcher."""

from __future__ import annotations

from pathlib import Path

from measure import Measured, run
from peers import venv
from peers.work import Work, write_yaml

VERSIONS = {"trl": "1.16.0", "transformers": "5.23.0", "peft": "0.21.2", "accelerate": "1.15.0", "datasets": "5.2.0"}


def install() -> Path:
    return venv.make("trl", [f"{name}=={version}" for name, version in VERSIONS.items()])


def train(work: Work, scratch: Path, *, launcher: bool = False, cache: Path | None = None) -> Measured:
    """One run. `launcher` goes through the `trl` command, which starts accelerate, which starts the script.

    Args:
        cache: where datasets keeps what it made; by default it is kept between runs.
    """
    binaries = install()
    config = {
        "model_name_or_path": str(work.inputs.model),
        "dataset_name": str(work.inputs.messages),
        "output_dir": str(scratch / "out"),
        "use_cpu": True,
        "bf16": work.precision == "bf16",
        "gradient_checkpointing": False,
        "packing": work.packing,
        "max_length": work.max_length,
        "per_device_train_batch_size": work.batch,
        "max_steps": work.steps,
        "learning_rate": 1e-4,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
    }
    if work.tuner == "lora":
        config |= {"use_peft": True, "lora_r": 8, "lora_alpha": 16, "lora_target_modules": "all-linear"}
    path = write_yaml(scratch / "trl.yaml", config)
    command = [binaries / "trl", "sft"] if launcher else [binaries / "python", "-m", "trl.scripts.sft"]
    environment = {"HF_HOME": str(cache or venv.cache_directory() / "hf-trl"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    return run([*command, "--config", path], directory=scratch, env=environment, pad_id=work.inputs.pad_id)
