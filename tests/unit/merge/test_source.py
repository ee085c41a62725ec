from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from ascendtune.merge.source import find_sources


def _model(path: Path, **config: int) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "qwen2", "hidden_size": 8, **config}))
    save_file({"lm_head.weight": torch.zeros(1)}, path / "model.safetensors")
    (path / "tokenizer.json").write_text("{}")
    return path


def _adapter(path: Path, **config: str) -> Path:
    path.mkdir()
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4, **config}))
    weights = {f"base_model.model.lm_head.lora_{side}.weight": torch.zeros(2, 2) for side in "AB"}
    save_file(weights, path / "adapter_model.safetensors")
    return path


def test_adapters_of_two_revisions_of_a_base_are_noted(tmp_path: Path) -> None:
    base, onto = {"base_model_name_or_path": "owner/base"}, str(_model(tmp_path / "base"))
    one, two = (str(_adapter(tmp_path / each, revision=each, **base)) for each in ("one", "two"))
    (apart, moved) = find_sources([one, two], onto).notes
    assert apart == f"{two} was trained on owner/base@two, the first adapter on owner/base@one"
    assert moved == f"{one} was trained on owner/base@one, and is merged onto {onto}"
    (moved,) = find_sources([one, one], onto).notes


def test_merge_onto_another_base_notes_config_differences(tmp_path: Path) -> None:
    trained_on, onto = _model(tmp_path / "a", num_hidden_layers=4), _model(tmp_path / "b", num_hidden_layers=6)
    adapter = _adapter(tmp_path / "adapter", base_model_name_or_path=str(trained_on))
    (note,) = find_sources([str(adapter)], str(onto)).notes
    assert note.endswith(f"merged onto {onto}, which is another model: num_hidden_layers 4 -> 6")
    alike = _model(tmp_path / "c", num_hidden_layers=4)
    (note,) = find_sources([str(adapter)], str(alike)).notes
    assert note.endswith(f"merged onto {alike}")
