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


def test_merge_onto_another_base_notes_config_differences(tmp_path: Path) -> None:
    trained_on, onto = _model(tmp_path / "a", num_hidden_layers=4), _model(tmp_path / "b", num_hidden_layers=6)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": str(trained_on)}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    weights = {f"base_model.model.lm_head.lora_{side}.weight": torch.zeros(2, 2) for side in "AB"}
    save_file(weights, adapter / "adapter_model.safetensors")
    (note,) = find_sources([str(adapter)], str(onto)).notes
    assert note.endswith(f"merged onto {onto}, which is another model: num_hidden_layers 4 -> 6")
    alike = _model(tmp_path / "c", num_hidden_layers=4)
    (note,) = find_sources([str(adapter)], str(alike)).notes
    assert note.endswith(f"merged onto {alike}")
