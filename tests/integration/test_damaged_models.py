"""Damaged files of a model or adapter give success or a message, never a traceback or a hang."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ascendtune.cli.main import main
from ascendtune.core import process
from ascendtune.train import worker
from damage import damage
from time_limit import time_limit

pytestmark = pytest.mark.usefixtures("preloaded")

_SECONDS = 60
_FILES = [
    *("config.json", "tokenizer_config.json", "tokenizer.json", "generation_config.json", "special_tokens_map.json"),
    *("model.safetensors", "adapter_config.json", "adapter_model.safetensors"),
]
Say = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def sound(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model, an adapter for it, rows and recipes."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    directory = tmp_path_factory.mktemp("sound")
    shutil.copytree(tiny_model, directory / "model")
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (directory / "model/special_tokens_map.json").write_text(json.dumps(names))
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    tuned = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "down_proj"]))
    for name, weight in tuned.named_parameters():
        if "lora_B" in name:
            weight.data += 0.1
    tuned.save_pretrained(directory / "adapter")
    rows = [{"instruction": f"Say {n}.", "output": f"It is {n}."} for n in range(4)]
    (directory / "rows.json").write_text(json.dumps(rows))
    return directory


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Say:
    """A command in this process, one that trains included: exit code, and what it said."""

    def become_worker(argv: Any, env: Any) -> None:
        os.environ.update({name: env[name] for name in env if name.startswith("ASCENDTUNE")})
        # The starter lives on and keeps the claim.
        del os.environ["ASCENDTUNE_CLAIM"]
        module = argv.index("ascendtune.train.worker")
        raise SystemExit(worker.main(list(argv[module + 1 :])))

    monkeypatch.setattr(process, "replace", become_worker)

    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(words)
        return int(ended.value.code or 0), capfd.readouterr().err

    return run


def _commands(directory: Path) -> list[list[str]]:
    values = {
        "model": {"path": str(directory / "model")},
        "data": {"train": str(directory / "rows.json"), "max_length": 32},
        "method": {"tuner": "lora", "lora": {"start_from": [str(directory / "adapter")]}},
        "optim": {"max_steps": 1},
        "batch": {"per_device": 1},
        "track": {"tensorboard": False},
        "run_dir": str(directory / "runs/{name}"),
    }
    (directory / "r.yaml").write_text(yaml.safe_dump(values))
    recipe = str(directory / "r.yaml")
    return [
        ["recipe", "check", recipe],
        ["train", recipe, "--devices", "1"],
        ["generate", str(directory / "model"), "Say 1.", "--max-new-tokens", "2"],
        ["generate", str(directory / "adapter"), "Say 1.", "--max-new-tokens", "2"],
        ["merge", str(directory / "adapter"), "--to", str(directory / "merged")],
        ["init", "--model", str(directory / "model"), "--data", str(directory / "rows.json"), "-o", f"{recipe}.new"],
    ]


def _furnish(sound: Path, directory: Path) -> None:
    shutil.copytree(sound, directory)
    path = directory / "adapter/adapter_config.json"
    config = {**json.loads(path.read_text()), "base_model_name_or_path": str(directory / "model")}
    path.write_text(json.dumps(config))


def _require_answers(say: Say, directory: Path, what: str) -> list[int]:
    codes = []
    for words in _commands(directory):
        with time_limit(_SECONDS, f"{what}: {words}"):
            code, err = say(*words)
        codes.append(code)
        assert "bug in ascendtune" not in err and "Traceback" not in err, f"{what}: {words[0]}: {err}"
        assert code == 0 or (code in (1, 2, 3) and "error: " in err), f"{what}: {words[0]}: {code}: {err}"
    return codes


def test_sound_files_are_accepted_by_every_command(sound: Path, say: Say, tmp_path: Path) -> None:
    _furnish(sound, tmp_path / "case")
    assert _require_answers(say, tmp_path / "case", "nothing") == [0] * 6


def attack(sound: Path, say: Say, place: Path, name: str, numbers: range) -> None:
    faults = []
    for number in numbers:
        draw = random.Random(f"{name}-{number}")
        directory = place / str(number)
        _furnish(sound, directory)
        what = damage(next(directory.glob(f"*/{name}")), draw)
        try:
            _require_answers(say, directory, f"{name}-{number}: {what}")
        except AssertionError as fault:
            faults.append(str(fault))
        shutil.rmtree(directory)
    assert not faults, "\n\n".join(faults)


@pytest.mark.parametrize("name", _FILES)
def test_damaged_files_are_answered_with_a_message(name: str, sound: Path, say: Say, tmp_path: Path) -> None:
    attack(sound, say, tmp_path, name, range(12))


@pytest.mark.soak
@pytest.mark.parametrize("begin", range(12, 400, 24))
@pytest.mark.parametrize("name", _FILES)
def test_many_damaged_files_are_answered_with_a_message(
    name: str, begin: int, sound: Path, say: Say, tmp_path: Path
) -> None:
    attack(sound, say, tmp_path, name, range(begin, begin + 24))
