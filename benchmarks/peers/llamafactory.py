"""LLaMA-Factory: `llamafactory-cli train`.

Its package requires torchvision and torchaudio, of which the index has CUDA builds only; with a CPU torch every command
ends in an ImportError. For text neither is needed: torchvision goes, and an empty torchaudio takes the place of the one
that a module imports without asking.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from measure import Measured, run
from peers import venv
from peers.work import Work, write_yaml

VERSIONS = {"llamafactory": "0.9.5"}


def install() -> Path:
    binaries = venv.make("llamafactory", [f"{name}=={version}" for name, version in VERSIONS.items()])
    packages = venv.site_packages(binaries)
    stub = packages / "torchaudio.py"
    if not stub.exists():
        subprocess.run([binaries / "pip", "uninstall", "--quiet", "--yes", "torchvision", "torchaudio"], check=True)
        shutil.rmtree(packages / "torchaudio", ignore_errors=True)
        stub.write_text('"""Empty: text needs no audio."""\n')
    return binaries


def train(work: Work, scratch: Path, *, cache: Path | None = None) -> Measured:
    """One run. `cache` is where datasets keeps what it made; by default it is kept between runs."""
    binaries = install()
    data = work.inputs.alpaca.parent
    (data / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": work.inputs.alpaca.name}}))
    config: dict[str, object] = {
        "stage": "sft",
        "do_train": True,
        "model_name_or_path": str(work.inputs.model),
        "dataset_dir": str(data),
        "dataset": "rows",
        "template": "chatml",
        "cutoff_len": work.max_length,
        "packing": work.packing,
        "neat_packing": work.packing,
        "finetuning_type": work.tuner,
        "output_dir": str(scratch / "out"),
        "use_cpu": True,
        "bf16": work.precision == "bf16",
        "disable_gradient_checkpointing": True,
        "per_device_train_batch_size": work.batch,
        "max_steps": work.steps,
        "learning_rate": 1e-4,
        "lr_scheduler_type": "cosine",
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
    }
    if work.tuner == "lora":
        config |= {"lora_rank": 8, "lora_alpha": 16, "lora_target": "all"}
    path = write_yaml(scratch / "llamafactory.yaml", config)
    return run(
        [binaries / "llamafactory-cli", "train", path],
        directory=scratch,
        env={"HF_HOME": str(cache or venv.cache_directory() / "hf-llamafactory")},
        pad_id=work.inputs.pad_id,
    )
