"""Data sets of public schemas: `init` writes a recipe without a question, and it trains without an edit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascendtune.cli.main import main
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe
from ascendtune.train import worker
from ascendtune.train.prepare import prepare_run
from first_hour_files import FILES
from tiny_model import write_tiny_model

EXPECTED = {
    "alpaca": ("conversations", {}),
    "sharegpt_with_tools": ("conversations", {}),
    "openai": ("conversations", {}),
    "ultrafeedback": ("pairs", {}),
    "ultrafeedback_scored": ("pairs", {}),
    "hh_rlhf": ("pairs", {}),
    "kto": ("singles", {}),
    "gsm8k": ("conversations", {"prompt": "question", "completion": "answer"}),
    "german_csv": ("conversations", {"prompt": "Frage", "completion": "Antwort"}),
    "semicolon_csv": ("conversations", {"prompt": "Anfrage des Kunden", "completion": "Antwort (Support)"}),
    "windows_1252_csv": ("conversations", {"prompt": "Anfrage", "completion": "Antwort"}),
    "gbk_csv": ("conversations", {"prompt": "问题", "completion": "答案"}),
    "csv_without_header": ("conversations", {"prompt": "column_2", "completion": "column_3"}),
    "excel_tsv": ("conversations", {"prompt": "Customer message", "completion": "Agent reply"}),
    "parquet_of_messages": ("conversations", {}),
    "markdown_folder": ("text", {}),
    "openai_preferences": ("pairs", {}),
    "gemini": ("conversations", {"messages": "contents", "system": "systemInstruction"}),
    "bedrock": ("conversations", {}),
    "lima": ("conversations", {}),
}


OPTIONS = {"csv_without_header": ("--yes",)}
"""The columns of a table without names are a guess, which --yes accepts, like an answer on a terminal."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with room for 2048 tokens, as real models have: its tokens are short."""
    directory = write_tiny_model(tmp_path_factory.mktemp("model"))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 2048}))
    return directory


@pytest.mark.parametrize("name", FILES)
def test_init_and_train_need_no_edit(
    name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = FILES[name](tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["init", "--model", str(model), "--data", str(path.relative_to(tmp_path)), *OPTIONS.get(name, ())])
    shown = capsys.readouterr()
    assert ended.value.code == 0, shown.err
    assert "TODO" not in Path("recipe.yaml").read_text()
    recipe, origins = Recipe.load_with_origins("recipe.yaml", ["optim.max_steps=1", "batch.accumulate=1"])
    task, columns = EXPECTED[name]
    assert (recipe.method.task, recipe.data.train[0].columns) == (task, columns)
    run = prepare_run(recipe, origins).run
    assert run is not None and worker.main([str(run)]) == 0
    assert RunDir(run.path).read()["state"] == "finished"
    assert "separated by semicolons" in shown.out or name != "semicolon_csv"
