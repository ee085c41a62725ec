from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ascendtune.recipe.recipe import Recipe

THEIRS = {
    "model_name_or_path": "Qwen/Qwen3-4B",
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "lora",
    "dataset": "rows",
    "template": "qwen3_nothink",
    "output_dir": "saves/sft",
}
INFO: dict[str, Any] = {
    "rows": {"file_name": "rows.json"},
    "text": {"file_name": "text.jsonl", "columns": {"prompt": "content"}},
    "pairs": {
        "file_name": "pairs.json", "ranking": True, "formatting": "sharegpt",
        "columns": {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"},
    },
    "calls": {
        "file_name": "calls.json", "formatting": "sharegpt",
        "columns": {"messages": "conversations", "tools": "tools"},
    },
    "marked": {
        "file_name": "marked.json", "formatting": "sharegpt", "columns": {"messages": "messages", "kto_tag": "label"},
        "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"},
    },
}  # fmt: skip


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`write({"stage": "pt"}, info={…})`: their recipe with these keys (None removes one) and a dataset_info.json."""
    monkeypatch.chdir(tmp_path)

    def make(changes: dict[str, Any] | None = None, info: dict[str, Any] | None = None) -> Path:
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / "dataset_info.json").write_text(json.dumps({**INFO, **(info or {})}, indent=2))
        values = {key: value for key, value in {**THEIRS, **(changes or {})}.items() if value is not None}
        (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
        return Path("theirs.yaml")

    return make


@pytest.fixture
def read(write: Callable[..., Path]) -> Callable[..., dict[str, Any]]:
    """The values of ours that their keys become."""

    def make(changes: dict[str, Any] | None = None, info: dict[str, Any] | None = None) -> dict[str, Any]:
        return Recipe.read(write(changes, info)).values

    return make
