"""A number that is not finite is traced to the module that made it, and to the rows of its batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.train.conftest import write_rows

from ascendtune.check.align.nan import first_non_finite
from ascendtune.core.errors import CheckFailed
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.prepare import places_of_rows

pytestmark = pytest.mark.usefixtures("preloaded")

ODD = "Zebra"


def with_odd_row(path: Path, at: int) -> Path:
    """Rows of which row `at`, from 1, holds a letter that no other has."""
    lines = write_rows(path, 24, seed=3).read_text().splitlines()
    lines[at - 1] = json.dumps(
        {"messages": [{"role": "user", "content": ODD}, {"role": "assistant", "content": "tips"}]}
    )
    path.write_text("".join(line + "\n" for line in lines))
    return path


def token_of(model: Path) -> int:
    from tokenizers import Tokenizer

    return int(Tokenizer.from_file(str(model / "tokenizer.json")).encode("Z").ids[0])


def test_module_that_makes_a_nan_is_named_with_its_rows(
    train: Any, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.qwen2 import modeling_qwen2 as qwen2

    rows, odd = with_odd_row(tmp_path / "rows.jsonl", 17), token_of(tiny_model)
    seen: list[bool] = []
    model_forward, mlp_forward = qwen2.Qwen2Model.forward, qwen2.Qwen2MLP.forward

    def model(self: Any, input_ids: torch.Tensor, **named: Any) -> Any:
        seen[:] = [bool((input_ids == odd).any()), False]
        return model_forward(self, input_ids=input_ids, **named)

    def mlp(self: Any, x: torch.Tensor) -> torch.Tensor:
        is_second, seen[1] = seen[1], True
        result = mlp_forward(self, x)
        return result * torch.nan if seen[0] and is_second else result

    monkeypatch.setattr(qwen2.Qwen2Model, "forward", model)
    monkeypatch.setattr(qwen2.Qwen2MLP, "forward", mlp)
    lora = {"tuner": "lora", "lora": {"rank": 4, "dropout": 0.2}}
    changes = {"data": {"train": str(rows)}, "on_nan": "dump", "method": lora, "kernel": "off"}
    with pytest.raises(CheckFailed) as caught:
        train(**changes, run_dir=str(tmp_path / "found"))
    assert caught.value.code == "loss-not-finite"
    assert caught.value.remedy is not None and "precision: fp32" not in caught.value.remedy, "it is fp32 already"
    run = RunDir(tmp_path / "found")
    found = first_non_finite(run)
    assert found is not None and (found.row["phase"], found.row["name"]) == ("forward", "model.layers.1.mlp")
    assert found.step == (run.last_step() or 0) + 1 and len(found.rows) == 4
    assert f"{rows}:17" in places_of_rows(Recipe.load(run.recipe), run, found.rows)


def test_failed_run_is_repeated_from_its_checkpoint(variant: Any, tiny_model: Path, tmp_path: Path) -> None:
    from transformers import Qwen2Config

    odd = token_of(tiny_model)

    def spoil(model: Any) -> None:
        model.get_input_embeddings().weight[odd, 3] = torch.inf

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen2Config(vocab_size=512, num_key_value_heads=2, tie_word_embeddings=False, eos_token_id=2, **sizes)
    model, rows = variant(config, spoil), with_odd_row(tmp_path / "rows.jsonl", 20)
    (tmp_path / "recipe.yaml").write_text(
        f"model: {{path: {model}}}\ndata: {{train: {rows.name}, max_length: 64, packing: false}}\nprecision: fp32\n"
        "method: {tuner: lora}\nbatch: {per_device: 2}\noptim: {max_steps: 30}\ncheckpoint: {every_steps: 2}\n"
        "track: {tensorboard: false}\n"
    )
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_STATE_HOME": str(tmp_path / "state"), "OMP_NUM_THREADS": "1"}

    def ascendtune(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "ascendtune", *words]
        return subprocess.run(
            argv, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **own}, timeout=400
        )

    assert ascendtune("train", "recipe.yaml").returncode == 1
    run = RunDir(tmp_path / "runs" / "run")
    steps = run.last_step()
    ended = ascendtune("align", "nan", "runs/run")
    assert ended.returncode == 1, ended.stderr
    assert "model.embed_tokens (Embedding)" in ended.stdout and "rows.jsonl:20" in ended.stdout
    assert (run.path / "replay" / "dump").is_dir() and run.last_step() == steps
    told = ascendtune("align", "nan", "runs/run/replay", "--json")
    (finding,) = json.loads(told.stdout)["findings"]
    assert told.returncode == 1 and "model.embed_tokens (Embedding)" in finding["measured"]
    assert any(row.endswith("rows.jsonl:20") for row in json.loads(told.stdout)["rows"])
