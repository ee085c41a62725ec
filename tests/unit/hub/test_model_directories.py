"""The base model that an adapter names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
