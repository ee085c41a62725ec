"""The kind of a path, and logs of other trainers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ascendtune.check.align.training_record import read_training_record
from ascendtune.core.errors import DataError, InputError
from ascendtune.data.table_rows import rows_of_csv

CSV = {
    "plain": "step,loss,lr\n1,2.5,0.1\n2,2.0,0.1\n",
    "semicolons": "iteration;lm loss\n1;2.5\n2;2.0\n",
    "wandb": '"Step","run a - train/loss","run a - train/loss__MIN"\n1,2.5,0\n2,2.0,0\n',
    "empty cells": "global_step,train/loss,eval/loss\n1,2.5,\n2,2.0,\n2,,1.0\n",
    "Excel's mark": "\ufeffstep,loss\n1,2.5\n2,2.0\n",
}


@pytest.mark.parametrize("text", CSV.values(), ids=CSV)
def test_table_is_read_by_the_names_of_its_columns(tmp_path: Path, text: str) -> None:
    file = tmp_path / "log.csv"
    file.write_text(text, encoding="utf-8")
    found = read_training_record(file)
    assert found.kind == "CSV" and found.is_foreign
    assert found.curve.steps.tolist() == [1, 2] and found.curve.losses[0] == 2.5


def test_newest_checkpoint_of_a_trainer_is_read(tmp_path: Path) -> None:
    for step in (10, 20):
        (tmp_path / f"checkpoint-{step}").mkdir()
        history = [{"step": each, "loss": 2.0} for each in range(10, step + 1, 10)]
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    assert read_training_record(tmp_path).curve.steps.tolist() == [10, 20]


def test_checkpoint_of_the_most_steps_is_read_whatever_its_time(tmp_path: Path) -> None:
    for step in (100, 20):
        (tmp_path / f"checkpoint-{step}").mkdir()
        log = {"log_history": [{"step": step, "loss": 2.0}]}
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps(log))
    found = read_training_record(tmp_path)
    assert found.curve.steps.tolist() == [100]
    assert found.name == f"{tmp_path.name}/checkpoint-100/trainer_state.json"


@pytest.mark.parametrize("file", ["run.json", "recorded.json", "events.out.tfevents.1.host"])
def test_directory_of_several_trainings_is_refused_with_their_names(tmp_path: Path, file: str) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("{}")
    with pytest.raises(InputError) as caught:
        read_training_record(tmp_path)
    assert caught.value.code == "several-trainings" and "first, second" in caught.value.what


def test_only_recording_in_a_directory_is_read(tmp_path: Path) -> None:
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "recorded.json").write_text("{}")
    (tmp_path / "gpu" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n')
    found = read_training_record(tmp_path)
    assert (found.name, found.kind) == (f"{tmp_path.name}/gpu", "recorded")


def test_last_line_without_an_end_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "trainer_log.jsonl").write_text('{"current_steps": 1, "loss": 2.5}\n{"current_steps": 2, "lo')
    assert read_training_record(tmp_path).curve.steps.tolist() == [1]


@pytest.mark.parametrize("step", ["nan", "inf", "1e300", "-1", "1.5", "text"])
def test_row_whose_step_is_not_a_whole_number_is_left_out(tmp_path: Path, step: str) -> None:
    (tmp_path / "a.csv").write_text(f"step,loss\n{step},9\n1,2.5\n")
    assert read_training_record(tmp_path / "a.csv").curve.losses.tolist() == [2.5]


def names_of(prefix: str, blocks: int) -> dict[str, str]:
    return {f"{prefix}.{block}.mlp.experts.{expert}.weight": "0" for block in range(blocks) for expert in range(9)}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (names_of("model.layers", 4), 4),
        ({"wte.weight": "0", **names_of("transformer.h", 3)}, 3),
        ({**names_of("encoder.block", 2), **names_of("decoder.block", 5)}, 5),
        ({name.removeprefix("."): each for name, each in names_of("", 2).items()} | {"0.weight": "0"}, 2),
        ({"weight": "0"}, None),
    ],
    ids=["llama", "gpt2", "encoder and decoder", "sequential", "no list"],
)
def test_depth_of_a_recorded_training_is_that_of_its_weights(
    tmp_path: Path, names: dict[str, str], expected: int | None
) -> None:
    (tmp_path / "recorded.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n')
    (tmp_path / "start_weights.json").write_text(json.dumps({"parameters": names}))
    assert read_training_record(tmp_path).layers == expected


@pytest.mark.parametrize(
    "content",
    [
        *({name: 6} for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers")),
        {"text_config": {"num_hidden_layers": 6}, "n_layer": True},
    ],
)
def test_depth_of_a_run_without_names_of_weights_is_that_of_its_config(tmp_path: Path, content: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(content))
    (tmp_path / "run.json").write_text(
        json.dumps({"state": "finished", "attempts": [], "model_directory": str(tmp_path)})
    )
    (tmp_path / "recipe.yaml").write_text("name: x\n")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n')
    assert read_training_record(tmp_path).layers == 6


STRANGE: dict[str, dict[str, Any]] = {
    "precision": {"resolved": {"precision": ["bf16"]}},
    "ranks": {"attempts": [{"world_size": "x"}]},
    "adapters": {"adapters": [3]},
    "model directory": {"model_directory": 7},
}


@pytest.mark.parametrize("facts", STRANGE.values(), ids=STRANGE)
def test_run_of_a_stranger_with_fields_of_another_kind_is_read(tmp_path: Path, facts: dict[str, Any]) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"state": "finished", "attempts": [], **facts}))
    (tmp_path / "recipe.yaml").write_text("name: x\n")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5, "batch_hash": 7}\n')
    found = read_training_record(tmp_path)
    assert found.curve.losses.tolist() == [2.5]
    assert (found.precision, found.world_size, found.layers) == (None, None, None)


@pytest.mark.parametrize(
    ("groups", "reading", "weights"),
    [([8, 2, 8], "tokens", [8, 2, 8]), ([8, 4, 4], "steps", [8, 4, 4]), (None, "steps", [10, 10, 10])],
    ids=["uneven", "even", "not recorded"],
)
def test_record_of_pairs_is_a_mean_over_them(
    tmp_path: Path, groups: list[int] | None, reading: str, weights: list[int]
) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"state": "finished", "attempts": []}))
    (tmp_path / "recipe.yaml").write_text("method: {stage: preference}\n")
    records = [{"step": step, "loss": 0.5, "labelled_tokens": 10} for step in (2, 3, 4)]
    if groups:
        records = [{**record, "groups": count} for record, count in zip(records, groups, strict=True)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    curve = read_training_record(tmp_path).curve
    assert curve.readings == (reading,) and curve.weights.tolist() == weights


DAMAGED = {
    "null alone": b"null\n",
    "null before an object": b'null\n{"step": 1, "loss": 2}\n',
    "null behind an object": b'{"step": 1, "loss": 2}\nnull\n',
    "hash that is not UTF-8": b'{"step": 1, "loss": 2, "batch_hash": "\xff"}\n',
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_metrics_that_no_run_writes_are_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"state": "finished", "attempts": []}))
    (tmp_path / "recipe.yaml").write_text("name: x\n")
    (tmp_path / "metrics.jsonl").write_bytes(content)
    # Arrow ends the process where the first value is null.
    read = (
        "import sys; from pathlib import Path; from ascendtune.check.align.training_record import read_training_record"
    )
    ended = subprocess.run(
        [sys.executable, "-c", f"{read}; read_training_record(Path(sys.argv[1]))", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1 and "record-damaged" in ended.stderr


@pytest.mark.parametrize("content", [None, b""])
def test_run_without_a_step_is_told_as_such(tmp_path: Path, content: bytes | None) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"state": "failed", "attempts": []}))
    (tmp_path / "recipe.yaml").write_text("name: run\n")
    if content is not None:
        (tmp_path / "metrics.jsonl").write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_training_record(tmp_path)
    assert caught.value.code == "no-training-records" and "runs show" in (caught.value.remedy or "")


def test_field_longer_than_tables_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('step,loss\n1,"' + "9" * 200_000 + '"\n')
    assert len(list(rows_of_csv(tmp_path / "a.csv"))) == 1, "data may have it"
    with pytest.raises(DataError) as caught:
        read_training_record(tmp_path / "a.csv")
    assert caught.value.code == "table-unreadable"


def test_decimal_commas_are_read_where_semicolons_part_the_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("step;loss\n1;2,5\n2;2.25\n")
    assert read_training_record(tmp_path / "a.csv").curve.losses.tolist() == [2.5, 2.25]


def test_search_for_events_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascendtune.check.align.training_record._MOST_DIRECTORIES", 3)
    for name in "abc":
        (tmp_path / name).mkdir()
    with pytest.raises(InputError) as caught:
        read_training_record(tmp_path)
    assert caught.value.code == "too-many-directories"


def test_loss_that_no_float_holds_counts_as_absent(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"step": 1, "loss": 1' + "0" * 400 + '}\n{"step": 2, "loss": 2.5}\n')
    assert np.isnan(read_training_record(tmp_path / "a.jsonl").curve.losses).tolist() == [True, False]


def test_digits_of_small_losses_are_counted_behind_their_exponent(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("step,loss\n1,5e-05\n2,2.5e-05\n")
    assert read_training_record(tmp_path / "a.csv").curve.resolution == pytest.approx(0.5e-6)


def test_pipe_among_the_events_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.out.tfevents.1")
    with pytest.raises(DataError) as caught:
        read_training_record(tmp_path / "events.out.tfevents.1")
    assert caught.value.code == "no-training-records"


WRONG = {
    "no such path": ("absent", None, InputError, "path-missing"),
    "other suffix": ("model.bin", b"", InputError, "unknown-training-record"),
    "no column of losses": ("a.csv", b"step,reward\n1,2\n", DataError, "unknown-columns"),
    "JSON of something else": ("config.json", b"{}", DataError, "no-training-records"),
    "no steps": ("trainer_state.json", b'{"log_history": []}', DataError, "no-training-records"),
}


@pytest.mark.parametrize(("name", "content", "kind", "code"), WRONG.values(), ids=WRONG)
def test_files_that_are_not_training_records_are_refused(
    tmp_path: Path, name: str, content: bytes | None, kind: type[InputError], code: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(kind) as caught:
        read_training_record(tmp_path / name)
    assert caught.value.code == code


def test_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_training_record(tmp_path)
    assert caught.value.code == "unknown-training-record"


def test_gap_of_an_export_is_not_nan(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('"Step","npu - train/loss"\n"1","2.5"\n"2",""\n"3","NaN"\n"4","n/a"\n"5","2"\n')
    curve = read_training_record(tmp_path / "a.csv").curve
    assert curve.steps.tolist() == [1, 3, 5] and np.isnan(curve.losses[1])


@pytest.mark.parametrize("text", ["1;1.234,5\n2;12,25\n", "1;1234,5\n2;12.25\n", '1;"1.234,5"\n2;12,25\n'])
def test_groups_of_thousands_are_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text("step;loss\n" + text)
    assert read_training_record(tmp_path / "a.csv").curve.losses.tolist() == [1234.5, 12.25]


def test_quoted_decimal_comma_is_read_where_commas_part_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('step,loss\n1,"2,99"\n2,"1.234,5"\n3,2\n')
    assert read_training_record(tmp_path / "a.csv").curve.losses.tolist() == [2.99, 1234.5, 2]
    (tmp_path / "b.csv").write_text('step,loss\n1,"1,234.5"\n2,2.5\n')
    assert read_training_record(tmp_path / "b.csv").curve.losses.tolist() == [1234.5, 2.5]
