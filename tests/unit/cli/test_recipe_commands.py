from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

GOLDEN = Path(__file__).parents[2] / "golden"
# Names that no format has; `init` recognises them by its list of words.
ROW = {"Frage": "2 + 2?", "Antwort": "4"}


@pytest.fixture
def ascendtune(in_process: Any) -> Any:
    return in_process


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(ROW) + "\n" for _ in range(60)))
    return path


def test_the_schema_is_as_recorded(ascendtune: Any) -> None:
    schema = ascendtune("recipe", "schema").stdout
    recorded = (GOLDEN / "recipe.schema.json").read_text()
    assert schema == recorded, "when this is meant: make golden && python docs/generate.py"
    assert json.loads(schema)["properties"]["optim"]


def test_recipe_of_init_passes_recipe_check(ascendtune: Any, tiny_model: Path, data: Path, tmp_path: Path) -> None:
    made = ascendtune("init", "--model", tiny_model, "--data", data)
    assert made.returncode == 0, made.stderr
    text = (tmp_path / "recipe.yaml").read_text()
    assert "columns: {prompt: Frage, completion: Antwort}" in text
    assert "tuner: full" in text and "template: auto" in text
    checked = ascendtune("recipe", "check", "recipe.yaml")
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.startswith("recipe.yaml: valid, ")


def test_init_never_overwrites_unasked(ascendtune: Any, tiny_model: Path, data: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("mine")
    words = ("init", "--model", tiny_model, "--data", data)
    refused = ascendtune(*words)
    assert refused.returncode == 2 and "code: path-exists" in refused.stderr
    assert (tmp_path / "recipe.yaml").read_text() == "mine"
    assert ascendtune(*words, "--yes", "--tuner", "lora").returncode == 0
    assert "tuner: lora" in (tmp_path / "recipe.yaml").read_text()


@pytest.mark.parametrize(
    ("row", "rows", "said"),
    [
        ({"prompt": "2+3?", "chosen": "5", "rejected": "6"}, 8, ["stage: preference", "loss: sigmoid", "rate: 1.0e-6"]),
        ({"prompt": "2+3?", "completion": "5", "label": True}, 100, ["loss: kto", "eval_fraction: 0.02"]),
        ({"prompt": "2+3?", "completion": "5", "label": True}, 8, ["loss: kto", "eval_fraction: 0 "]),
        ({"text": "two and three are five"}, 8, ["stage: pretrain", "max_length: 512 "]),
        ({"prompt": "2+3?", "completion": "5"}, 25, ["stage: sft", "eval_fraction: 0  # too few rows"]),
        ({"prompt": "2+3?", "completion": "5"}, 50, ["stage: sft", "eval_fraction: 0.02"]),
    ],
    ids=["pairs", "singles", "few-singles", "texts", "few", "enough"],
)
def test_the_rows_decide_the_stage(
    ascendtune: Any, tiny_model: Path, tmp_path: Path, row: dict[str, Any], rows: int, said: list[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text((json.dumps(row) + "\n") * rows)
    made = ascendtune("init", "--model", tiny_model, "--data", "rows.jsonl")
    assert made.returncode == 0, made.stderr
    text = (tmp_path / "recipe.yaml").read_text()
    assert all(words in text for words in said), text
    prepared = ascendtune("train", "recipe.yaml", "--prepare")
    assert prepared.returncode == 0 and "no effect" not in prepared.stderr, prepared.stderr


def test_one_recipe_has_one_stage(ascendtune: Any, tiny_model: Path, data: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("once upon a time\n")
    refused = ascendtune("init", "--model", tiny_model, "--data", data, "--data", "texts.txt")
    assert refused.returncode == 2 and "code: mixed-data-stages" in refused.stderr
    assert not (tmp_path / "recipe.yaml").exists()


def test_texts_need_no_template(ascendtune: Any, tiny_model: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    config = json.loads((model / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "texts.txt").write_text("once upon a time\n" * 9)
    ascendtune("init", "--model", model, "--data", "texts.txt")
    checked = ascendtune("recipe", "check", "recipe.yaml")
    assert checked.returncode == 0, checked.stderr


def test_init_never_writes_over_what_the_recipe_is_about(
    ascendtune: Any, tiny_model: Path, data: Path, tmp_path: Path
) -> None:
    before = data.read_bytes()
    (tmp_path / "model").mkdir()
    for file in tiny_model.iterdir():
        (tmp_path / "model" / file.name).symlink_to(file)
    for output in (data, "model/config.json"):
        made = ascendtune("init", "--model", "model", "--data", data, "-o", output, "-y")
        assert made.returncode == 2 and "code: output-overwrites-input" in made.stderr
    assert data.read_bytes() == before and (tmp_path / "model" / "config.json").is_symlink()
    assert ascendtune("init", "--model", "model", "--data", data, "-o", "model/recipe.yaml", "-y").returncode == 0


def test_init_without_a_terminal_names_what_is_missing(ascendtune: Any) -> None:
    result = ascendtune("init")
    assert result.returncode == 2 and "--model is missing" in result.stderr


def test_recipe_check_warns_of_a_key_without_effect(ascendtune: Any, tiny_model: Path, data: Path) -> None:
    ascendtune("init", "--model", tiny_model, "--data", data)
    checked = ascendtune("recipe", "check", "recipe.yaml", "method.lora.rank=4")
    assert checked.returncode == 0
    assert "warning: method.lora.rank has no effect: tuner is full" in checked.stderr


def test_quiet_init_prints_where_the_recipe_is_and_no_rows(ascendtune: Any, tiny_model: Path, data: Path) -> None:
    loud = ascendtune("init", "--model", tiny_model, "--data", data, "-o", "loud.yaml").stdout
    quiet = ascendtune("init", "--model", tiny_model, "--data", data, "-q").stdout
    assert "row 1" in loud and quiet == "wrote recipe.yaml; next: ascendtune train recipe.yaml\n"


BAD = {
    "optim.learnin_rate=1": "did you mean 'optim.learning_rate'?",
    "batch.per_device=0": "batch.per_device",
    "model.path=./nowhere": "no such model path",
    "data.train=./nowhere.json": "no such data",
    "data.template=qwem": "data.template",
    "data.eval=other.json": "contradict",
    "checkpoint.resume=nope": "checkpoint.resume: no such checkpoint",
    "data.train=/dev/zero": "code: not-a-regular-file",
}
_TIMED = """
import json, sys, time
from ascendtune.cli.main import main
began = 0.0
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit:
        now = time.process_time()
        print(now - began)
        began = now
"""
"""Prints the processor time of each command; the first one's includes the start of the interpreter."""


@pytest.mark.parametrize(("override", "said"), BAD.items())
def test_a_bad_recipe_is_refused_with_a_remedy(
    ascendtune: Any, tiny_model: Path, data: Path, override: str, said: str
) -> None:
    ascendtune("init", "--model", tiny_model, "--data", data)
    result = ascendtune("recipe", "check", "recipe.yaml", override)
    assert result.returncode == 2 and said in result.stderr
    assert "\n   do: " in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["recipe check", "train", "data show"])
def test_paths_that_do_not_exist_are_all_named_at_once(ascendtune: Any, tmp_path: Path, command: str) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "model: {path: ./m}\ndata: {train: [{path: ./t}, {path: owner/id}, {path: ./t}], eval: ./e}\n"
    )
    result = ascendtune(*command.split(), "recipe.yaml")
    assert result.returncode == 2 and result.stderr.count("code: path-missing") == 3
    assert [line for line in result.stderr.splitlines() if "where:" in line] == [
        "where: ./m", "where: ./t", "where: ./e"
    ]  # fmt: skip
    created = ascendtune("init", "--model", "./m", "--data", "./t", "-o", "other.yaml")
    assert created.returncode == 2 and created.stderr.count("code: path-missing") == 2


def test_recipe_check_reports_every_path_and_every_file_that_is_wrong(
    ascendtune: Any, tiny_model: Path, data: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"model": {"path": "./none"}, "data": {"train": [str(data), "./nothing.jsonl"]}}))
    paths = ("checkpoint.resume=./gone", "parallel.strategy=deepspeed", "parallel.deepspeed.config=gone.json")
    refused = ascendtune("recipe", "check", recipe, *paths)
    assert refused.stderr.count("code: path-missing") == 3 and refused.stderr.count("code: checkpoint-missing") == 1
    shutil.copytree(tiny_model, tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()
    (tmp_path / "rows.jsonl").write_text('{"zz": 1}\n')
    words = (
        "model.path=./model",
        f"data.train=[{data}, ./rows.jsonl]",
        "method.tuner=lora",
        f"method.lora.start_from=[{tmp_path}]",
    )
    refused = ascendtune("recipe", "check", recipe, *words)
    assert refused.returncode == 2 and refused.stderr.count(" code: ") == 4, refused.stderr


def test_a_bad_recipe_is_refused_within_a_second(ascendtune: Any, tiny_model: Path, data: Path, tmp_path: Path) -> None:
    ascendtune("init", "--model", tiny_model, "--data", data)
    commands = json.dumps([["recipe", "check", "recipe.yaml", override] for override in BAD])
    argv = [sys.executable, "-c", _TIMED, commands]
    timed = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    seconds = [float(line) for line in timed.stdout.splitlines()]
    # The promise is one second; caches of a busy machine serve others too.
    assert len(seconds) == len(BAD) and max(seconds) < 3


def test_a_dry_run_says_which_part_is_not_there_yet(ascendtune: Any, tiny_model: Path, data: Path) -> None:
    assert ascendtune("init", "--model", tiny_model, "--data", data).returncode == 0
    shown = ascendtune("train", "recipe.yaml", "--dry-run", "name=new").stdout
    assert shown.startswith("# runs/new does not exist yet: `ascendtune train` prepares it")
    assert "ascendtune.train.worker runs/new" in shown


def test_init_marks_what_it_cannot_decide_and_train_refuses_it_by_name(
    ascendtune: Any, tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "odd.csv").write_text("foo,bar\nSome words,More words\nOther words,Even more words\n")
    made = ascendtune("init", "--model", tiny_model, "--data", "odd.csv")
    assert made.returncode == 0 and "replace TODO there" in made.stdout
    assert "    foo  Some words\n    bar  More words\n" in made.stdout
    refused = ascendtune("train", "recipe.yaml")
    assert refused.returncode == 2 and "code: recipe-todo" in refused.stderr
    assert "data.train.0.columns.prompt, data.train.0.columns.completion" in refused.stderr
    given = ("--columns", "prompt=foo", "--columns", "completion=bar", "-y")
    assert ascendtune("init", "--model", tiny_model, "--data", "odd.csv", *given).returncode == 0
    assert "columns: {prompt: foo, completion: bar}" in (tmp_path / "recipe.yaml").read_text()


def test_init_takes_the_way_of_training_from_a_preset(
    ascendtune: Any, tiny_model: Path, data: Path, tmp_path: Path
) -> None:
    words = ("init", "--model", tiny_model, "--data", data)
    assert ascendtune(*words, "--preset", "lora-sft").returncode == 0
    text = (tmp_path / "recipe.yaml").read_text()
    assert "rank: 8" in text and "columns: {prompt: Frage, completion: Antwort}" in text
    unknown = ascendtune(*words, "--preset", "lora-sfd", "-y")
    assert unknown.returncode == 2 and "did you mean 'lora-sft'?" in unknown.stderr
    (tmp_path / "theirs.yaml").write_text("base_model: m\ndatasets: [{path: d}]\nadapter: lora\n")
    foreign = ascendtune(*words, "--preset", "theirs.yaml", "-y")
    assert foreign.stderr.count("error: ") == 1 and "this is a configuration of axolotl" in foreign.stderr
    (tmp_path / "theirs.yaml").write_text("model_name_or_path: m\ndataset: d\ndo_train: true\n")
    assert "ascendtune recipe convert theirs.yaml" in ascendtune(*words, "--preset", "theirs.yaml", "-y").stderr
    other = ascendtune(*words, "--preset", "lora-dpo", "-y")
    assert other.returncode == 2 and "code: preset-of-another-stage" in other.stderr


@pytest.mark.parametrize("positions", [8, 40])
def test_init_says_that_none_of_the_first_rows_keeps_an_answer(
    ascendtune: Any, tiny_model: Path, tmp_path: Path, positions: int
) -> None:
    shutil.copytree(tiny_model, tmp_path / "short")
    config = json.loads((tmp_path / "short/config.json").read_text())
    (tmp_path / "short/config.json").write_text(json.dumps({**config, "max_position_embeddings": positions}))
    rows = [{"prompt": "2 + 3?", "completion": "five " * length} for length in (1, 90, 90)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = ascendtune("init", "--model", "short", "--data", "rows.jsonl", "-y")
    said = " ".join(made.stderr.split())
    assert f"the model's limit is {positions}: rows are cut there" in said
    assert ("as all of the first 3 rows are" in said) == (positions == 8)
    assert ("next: choose a model for longer texts or shorten the rows, then: " in made.stdout) == (positions == 8)
    assert "ascendtune train recipe.yaml" in made.stdout


def test_recipe_check_says_what_it_did_not_look_at_and_reads_all_rows_when_asked(
    ascendtune: Any, tiny_model: Path, data: Path
) -> None:
    ascendtune("init", "--model", tiny_model, "--data", data)
    short = ("recipe", "check", "recipe.yaml", "data.max_length=4")
    assert "not checked: rows beyond the first" in ascendtune(*short).stdout
    refused = ascendtune(*short, "--data")
    assert refused.returncode == 2 and "code: no-answer-left" in refused.stderr
    looked = ascendtune("recipe", "check", "recipe.yaml", "--data")
    assert looked.returncode == 0, looked.stderr
    assert "data: 60 rows read" in looked.stdout and "not checked: memory, devices" in looked.stdout


def test_recipe_check_prints_json_for_a_program(ascendtune: Any, tiny_model: Path, data: Path) -> None:
    ascendtune("init", "--model", tiny_model, "--data", data)
    words = ("recipe", "check", "recipe.yaml", "optim.learning_rate=3e-4", "method.lora.rank=4", "--json")
    found = json.loads(ascendtune(*words).stdout)
    assert found["values"]["optim"]["learning_rate"] == found["learning_rate"] == 3e-4
    assert "optim.learning_rate" in found["set"] and "optim.beta2" not in found["set"]
    assert found["data_reports"] is None and any("method.lora.rank" in each for each in found["warnings"])
    found = json.loads(ascendtune(*words, "--data").stdout)
    assert found["data_reports"]["train"]["rows_read"] == 60
    refused = ascendtune(*words, "optim.epoch=1", "data.train=./no.json")
    codes = {each["code"] for each in json.loads(refused.stdout)["errors"]}
    assert refused.returncode == 2 and codes == {"unknown-recipe-key", "path-missing"}


def test_a_dry_run_names_the_run_directory_that_the_start_would_make(
    ascendtune: Any, tiny_model: Path, data: Path, tmp_path: Path
) -> None:
    ascendtune("init", "--model", tiny_model, "--data", data)
    (tmp_path / "runs/dpo").mkdir(parents=True)
    (tmp_path / "runs/dpo/run.json").write_text(json.dumps({"schema_version": 1, "state": "finished", "attempts": []}))
    shown = ascendtune("train", "recipe.yaml", "--dry-run", "name=dpo").stdout
    assert shown.startswith("# starting runs/dpo-2: runs/dpo has finished\n# runs/dpo-2 does not exist yet")
    assert "ascendtune.train.worker runs/dpo-2" in shown
    assert not (tmp_path / "runs/dpo-2").exists()


def test_train_under_torchrun_is_refused(ascendtune: Any) -> None:
    refused = ascendtune("train", "recipe.yaml", RANK="1", LOCAL_RANK="1", WORLD_SIZE="2")
    assert refused.returncode == 2 and "code: started-by-launcher" in refused.stderr


def test_a_missing_deepspeed_file_is_found_before_a_start(ascendtune: Any, tiny_model: Path, data: Path) -> None:
    ascendtune("init", "--model", tiny_model, "--data", data)
    words = ("parallel.strategy=deepspeed", "parallel.deepspeed.config=nowhere.json")
    checked = ascendtune("recipe", "check", "recipe.yaml", *words)
    assert checked.returncode == 2 and "no such DeepSpeed JSON" in checked.stderr


def test_data_for_another_stage_are_found_before_a_start(ascendtune: Any, tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"instruction": "2+3?", "output": "5"}\n' * 9)
    ascendtune("init", "--model", tiny_model, "--data", "rows.jsonl")
    assert "rows.jsonl (alpaca, " in ascendtune("recipe", "check", "recipe.yaml").stdout
    refused = ascendtune("recipe", "check", "recipe.yaml", "method.stage=preference")
    assert refused.returncode == 2 and "needs pairs of answers; this file has conversations" in refused.stderr


def test_init_says_which_rows_are_bad(ascendtune: Any, tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "2+3?", "completion": "5"}\n' + '{"prompt": "2+3?"}\n' * 6)
    made = ascendtune("init", "--model", tiny_model, "--data", "rows.jsonl")
    assert made.returncode == 0
    first = "rows.jsonl:2: no answer (completion is missing or null)"
    assert f"warning: 6 of the first 7 rows of rows.jsonl cannot be trained on, first {first}; " in made.stderr
    (tmp_path / "rows.jsonl").write_text('{"prompt": "2+3?", "completion": ""}\n' * 6)
    refused = ascendtune("init", "--model", tiny_model, "--data", "rows.jsonl", "-y")
    assert refused.returncode == 2 and "none of the first 6 rows can be trained on: 1: " in refused.stderr
    assert "code: no-usable-rows" in refused.stderr


def test_an_error_about_a_llamafactory_recipe_names_its_own_keys_too(
    ascendtune: Any, tiny_model: Path, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "dataset_info.json").write_text(
        json.dumps({"rows": {"file_name": data.name, "columns": {"prompt": "Frage", "response": "Antwort"}}})
    )
    values = {"model_name_or_path": str(tiny_model), "stage": "sft", "do_train": True, "finetuning_type": "full"}
    values |= {"dataset": "rows", "dataset_dir": ".", "template": "qwen", "output_dir": "out", "cutoff_len": 4}
    (tmp_path / "lf.yaml").write_text(yaml.safe_dump(values))
    refused = ascendtune("recipe", "check", "lf.yaml", "--data")
    assert "code: no-answer-left" in refused.stderr and "data.max_length is cutoff_len" in " ".join(
        refused.stderr.split()
    )
    invalid = ascendtune("recipe", "check", "lf.yaml", "cutoff_len=1")
    assert invalid.returncode == 2 and "data.max_length is cutoff_len" in " ".join(invalid.stderr.split())


def test_init_writes_a_recipe_for_oft_and_takes_an_encoding(ascendtune: Any, tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "faq.csv").write_bytes("質問,回答\n首都はどこですか？,東京です。\n".encode("shift_jis"))
    words = ("init", "--model", tiny_model, "--data", "faq.csv", "--tuner", "oft")
    assert "code: not-utf8" in ascendtune(*words).stderr
    assert "windows-1252, windows-1251" in ascendtune(*words, "--encoding", "utf-9").stderr
    assert ascendtune(*words, "--encoding", "shift_jis").returncode == 0
    text = (tmp_path / "recipe.yaml").read_text()
    assert "  oft:\n    block_size: 32\n" in text and "learning_rate: 1.0e-4" in text and "encoding: shift_jis" in text
    assert ascendtune("recipe", "check", "recipe.yaml", "--data").returncode == 0


def test_init_skips_a_few_bad_rows_and_stops_at_many(
    ascendtune: Any, tiny_model: Path, data: Path, tmp_path: Path
) -> None:
    rows = data.read_text().splitlines()
    for bad, written in (
        (1, "on_bad_row: skip  # 1 of the first 60 rows cannot be trained on"),
        (30, "on_bad_row: fail"),
    ):
        kept = [json.dumps({**ROW, "Antwort": ""})] * bad + rows[bad:]
        data.write_text("".join(line + "\n" for line in kept))
        made = ascendtune("init", "--model", tiny_model, "--data", data, "-y")
        assert written in (tmp_path / "recipe.yaml").read_text() and f"{bad} of the first 60 rows" in made.stderr
    assert "they are skipped" not in made.stderr


def test_a_given_format_is_refused_for_its_own_columns(ascendtune: Any, tiny_model: Path, data: Path) -> None:
    words = ("init", "--model", tiny_model, "--data", data, "--format")
    for name, needed in (("scored", "the column completions"), ("preference", "the column")):
        refused = ascendtune(*words, name)
        assert refused.returncode == 2 and "code: data-format-mismatch" in refused.stderr
        assert f"the format {name} needs {needed}" in " ".join(refused.stderr.split())


def test_recipe_check_names_a_local_path_that_looks_like_a_hub_id_from_here(
    ascendtune: Any, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "project/models/small").mkdir(parents=True)
    words = ["data.train.0.columns={prompt: Frage, completion: Antwort}"]
    (tmp_path / "r.yaml").write_text(f"model: {{path: models/small}}\ndata: {{train: [{{path: {data}}}]}}\n")
    checked = ascendtune("recipe", "check", "r.yaml", *words, COLUMNS="200")
    assert checked.returncode == 0, checked.stderr
    assert "the local path project/models/small meant?" in checked.stdout


def test_commands_that_are_shown_run_as_they_are_for_names_with_spaces(
    ascendtune: Any, tiny_model: Path, data: Path, tmp_path: Path
) -> None:
    made = ascendtune("init", "--model", tiny_model, "--data", data, "--output", "my recipe.yaml", COLUMNS="200")
    assert made.returncode == 0, made.stderr
    assert made.stdout.endswith("next: ascendtune train 'my recipe.yaml'\n")
    [check] = [line for line in (tmp_path / "my recipe.yaml").read_text().splitlines() if line.startswith("# Check: ")]
    assert ascendtune(*shlex.split(check.removeprefix("# Check: "))[1:]).returncode == 0
