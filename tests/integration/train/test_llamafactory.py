"""LLaMA-Factory's recipes train: their data, their words, the closed form of their loss."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import Tokenizer

from ascendtune.data.store import TokenDataset
from ascendtune.recipe.recipe import Recipe
from ascendtune.train import attempt
from ascendtune.train.prepare import prepare_run

TAGS = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
INFO = {
    "questions": {"file_name": "questions.json", "columns": {"prompt": "ask", "query": "given", "response": "say"}},
    "pairs": {
        "file_name": "pairs.json", "formatting": "sharegpt", "ranking": True,
        "columns": {"messages": "talk", "chosen": "good", "rejected": "bad"},
    },
    "marked": {
        "file_name": "marked.json", "formatting": "sharegpt", "columns": {"messages": "messages", "kto_tag": "label"},
        "tags": TAGS,
    },
    "texts": {"file_name": "texts.json", "columns": {"prompt": "words"}},
}  # fmt: skip
ROWS: dict[str, list[dict[str, Any]]] = {
    "questions": [{"ask": "Add.", "given": f"{n} and {n}", "say": str(2 * n), "system": "Unread."} for n in range(12)],
    "pairs": [
        {
            "talk": [{"from": "human", "value": f"{n}+{n}?"}], "prompt": "Unread.",
            "good": {"from": "gpt", "value": str(2 * n)}, "bad": {"from": "gpt", "value": "I do not know."},
        }
        for n in range(12)
    ],
    "marked": [
        {
            "messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": "Yes."}],
            "label": n % 2 == 0,
        }
        for n in range(12)
    ],
    "texts": [{"words": f"Two and {n} make {n + 2}. " * 4} for n in range(12)],
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "first_loss"),
    [
        ({"dataset": "questions", "stage": "sft"}, None),
        ({"dataset": "texts", "stage": "pt", "cutoff_len": 64}, None),
        ({"dataset": "pairs", "stage": "rm"}, None),
        ({"dataset": "pairs", "stage": "dpo"}, math.log(2)),
        ({"dataset": "pairs", "stage": "dpo", "pref_loss": "hinge"}, 1.0),
        ({"dataset": "pairs", "stage": "dpo", "pref_loss": "ipo"}, 25.0),
        ({"dataset": "marked", "stage": "kto"}, 0.5),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else None,
)
def test_llamafactory_recipe_trains(
    changes: dict[str, Any], first_loss: float | None, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name, rows in ROWS.items():
        (tmp_path / "data" / f"{name}.json").write_text(json.dumps(rows))
    (tmp_path / "data" / "dataset_info.json").write_text(json.dumps(INFO))
    theirs = {
        "model_name_or_path": str(tiny_model), "do_train": True, "finetuning_type": "lora", "template": "chatml",
        "output_dir": "saves/it", "per_device_train_batch_size": 4, "max_steps": 2, "logging_steps": 1,
        "learning_rate": 1e-3, "cutoff_len": 256, **changes,
    }  # fmt: skip
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(theirs))
    start = prepare_run(*Recipe.load_with_origins("theirs.yaml"))
    assert start.run is not None and start.prepared.report.rows_kept == 12
    rows, tokenizer = TokenDataset.open(start.prepared.train), Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    assert not any("Unread" in tokenizer.decode(rows.row(number)[0].tolist()) for number in range(len(rows)))
    attempt.train(start.run, start.run.read())
    losses = [line["loss"] for line in start.run.read_metrics()]
    assert len(losses) == 2 and all(map(math.isfinite, losses))
    if first_loss is not None:
        assert losses[0] == pytest.approx(first_loss, abs=1e-4)
    assert (Path("saves/it") / "model" / "adapter_config.json").is_file()
