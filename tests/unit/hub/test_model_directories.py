"""The base model that an adapter names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascendtune.core.errors import InputError
from ascendtune.hub import model_directories
from ascendtune.hub.model_directories import base_of_adapter


@pytest.mark.parametrize("revision", [None, "step3000"])
def test_the_base_of_an_adapter_is_that_of_its_revision(
    revision: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in PEFT's AutoPeftModelForCausalLM; the newest revision has other weights."""
    config = {"peft_type": "LORA", "base_model_name_or_path": "EleutherAI/pythia-70m", "revision": revision}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    asked = []

    def fetch_model(name: str, revision: str | None = None) -> Path:
        asked.append((name, revision))
        return tmp_path

    monkeypatch.setattr(model_directories, "fetch_model", fetch_model)
    assert base_of_adapter(tmp_path) == tmp_path
    assert asked == [("EleutherAI/pythia-70m", revision)]


def test_damaged_file_of_the_base_is_named_and_the_adapter_is_not_blamed(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text('{"model_type": "qwen2"}')
    (base / "tokenizer.json").write_text("{}")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (base / "model.safetensors.index.json").write_text(json.dumps(index))
    (base / "model-1.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    (base / "model-2.safetensors").write_bytes(b"cut")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": str(base)})
    )
    with pytest.raises(InputError) as caught:
        base_of_adapter(adapter, instead="name it with --onto; or ")
    assert caught.value.where == str(base / "model-2.safetensors")
    assert str(base) in caught.value.what
    assert "--onto" not in caught.value.remedy and "base_model_name_or_path" not in caught.value.remedy


def test_base_that_is_gone_is_corrected_in_the_config_of_the_adapter(tmp_path: Path) -> None:
    config = tmp_path / "adapter_config.json"
    config.write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "/gone"}))
    with pytest.raises(InputError) as caught:
        base_of_adapter(tmp_path, instead="name it with --onto; or ")
    assert caught.value.where == str(config)
    assert caught.value.remedy.startswith("name it with --onto; or ")
    assert "correct base_model_name_or_path" in caught.value.remedy
