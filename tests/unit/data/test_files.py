from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ascendtune.core.errors import DataError
from ascendtune.data import files
from ascendtune.data.conversation import RawRow
from ascendtune.data.files import data_files
from ascendtune.data.read import read_rows
from ascendtune.data.spec import DatasetSpec
from rows_of_files import refused, rows_in


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "alpaca_en_demo.json").touch()
    for missing in ("data/alpaca_en_dmo.json", "data/alpaca_en_demo", "data/alpaca_en_demo.jsonl"):
        assert refused(tmp_path / missing).remedy == f"did you mean '{tmp_path}/data/alpaca_en_demo.json'?"
    assert refused(tmp_path / "dta/alpaca.json").remedy == f"did you mean '{tmp_path}/data'?"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.jsonl", "a.json", "README.txt", "dataset_info.json", ".hidden.json", "deep/c.jsonl", "picture.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"from": name}) + "\n")
    return tmp_path


def _names(rows: list[RawRow]) -> list[str]:
    return [row.values["from"] for row in rows]


def test_a_directory_is_its_data_files_in_order(folder: Path) -> None:
    rows = rows_in(folder)
    assert _names(rows) == ["a.json", "b.jsonl", "deep/c.jsonl"]
    assert rows[2].place == f"{folder}/deep/c.jsonl:1"


def test_split_and_subset_choose_files_by_name(folder: Path) -> None:
    for name in ("en/train-00000.jsonl", "en/test-00000.jsonl", "zh/train-00000.jsonl", "en/training.jsonl"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps({"from": name}) + "\n")
    assert _names(rows_in(folder, subset="en", split="train")) == ["en/train-00000.jsonl"]
    assert _names(rows_in(folder, split="test")) == ["en/test-00000.jsonl"]
    error = refused(folder, split="dev")
    assert "no file belongs to the split 'dev'" in error.what and "a.json" in error.remedy


_CARD = """---
license: mit
configs:
- config_name: all
  data_files:
  - split: train
    path: all/train-*
- config_name: default
  data_files:
  - {split: train, path: data/train-*}
  - {split: test, path: [data/test-*, more/*]}
- config_name: socratic
  data_dir: deep
  data_files: "**/x*.jsonl"
- config_name: gone
  data_files: gone/*
- config_name: folder
  data_dir: other
---
# Rows
"""


@pytest.mark.parametrize(
    ("chosen", "read"),
    [
        ({}, ["data/train-0.jsonl"]),
        ({"subset": "all"}, ["all/train-0.jsonl"]),
        ({"split": "test"}, ["data/test-0.jsonl", "more/a.jsonl"]),
        ({"subset": "socratic"}, ["deep/er/x1.jsonl", "deep/x0.jsonl"]),
        ({"subset": "folder"}, ["other/train.jsonl"]),
        ({"subset": "folder", "split": "test"}, ["other/test.jsonl"]),
        # What the card does not name is found by the names of files.
        ({"subset": "other"}, ["other/train.jsonl"]),
        ({"subset": "gone", "split": "dev"}, ["gone/dev.jsonl"]),
    ],
    ids=str,
)
def test_the_card_of_a_data_set_says_which_files_a_subset_has(
    chosen: dict[str, str], read: list[str], tmp_path: Path
) -> None:
    """Several subsets may hold the same rows, which would be trained on twice."""
    (tmp_path / "README.md").write_text(_CARD)
    for name in ("all/train-0", "data/train-0", "data/test-0", "more/a", "deep/x0", "deep/er/x1", "deep/y",
                 "other/train", "other/test", "gone/dev"):  # fmt: skip
        file = tmp_path / f"{name}.jsonl"
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(json.dumps({"from": f"{name}.jsonl"}) + "\n")
    assert _names(rows_in(tmp_path, **chosen)) == read


@pytest.mark.parametrize(
    ("header", "read"),
    [
        ("configs:\n- {config_name: b, data_files: b.jsonl}\n- {config_name: a, data_files: a.jsonl}", ["b.jsonl"]),
        ("configs:\n- {config_name: b, data_files: b.jsonl}\n- {config_name: a, data_files: a.jsonl, default: true}",
         ["a.jsonl"]),
        ("configs:\n- data_files:\n  - {split: train_a, path: a.jsonl}\n  - {split: train_b, path: b.jsonl}",
         ["a.jsonl"]),
        ("configs:\n- data_files:\n  - {split: test, path: a.jsonl}\n  - {split: auxiliary_train, path: b.jsonl}",
         ["b.jsonl"]),
        ("configs:\n- data_files:\n  - {split: x, path: a.jsonl}\n  - {split: y, path: b.jsonl}",
         ["a.jsonl", "b.jsonl"]),
        ("configs:\n- data_files: {train: ./a.jsonl, test: b.jsonl}", ["a.jsonl"]),
        ("configs:\n- {data_dir: '', data_files: b.jsonl}", ["b.jsonl"]),
        ("configs:\n- {data_dir: ./., data_files: b.jsonl}", ["b.jsonl"]),
        # Not a card, or none that names files which are there.
        ("configs:\n- {config_name: b}", ["a.jsonl", "b.jsonl"]),
        ("configs:\n- data_files: ../a.jsonl", ["a.jsonl", "b.jsonl"]),
        ("configs: [1, {data_files: 3}, {data_files: [{path: 1}]}]", ["a.jsonl", "b.jsonl"]),
        ("configs: [", ["a.jsonl", "b.jsonl"]),
        ("- 1", ["a.jsonl", "b.jsonl"]),
    ],
)  # fmt: skip
def test_a_card_has_a_default_subset_or_none_at_all(header: str, read: list[str], tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"---\n{header}\n---\n")
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(json.dumps({"from": name}) + "\n")
    assert _names(rows_in(tmp_path)) == read


@pytest.mark.parametrize(
    ("chosen", "what"),
    [
        ({"subset": "math", "split": "dev"}, "no file belongs to the split 'dev' of the subset 'math'"),
        ({"subset": "mth", "split": "dev"}, "no file belongs to the subset 'mth'"),
        ({"split": "dev"}, "no file belongs to the split 'dev'"),
    ],
    ids=str,
)
def test_names_of_the_card_are_suggested_if_no_file_matches(chosen: dict[str, str], what: str, tmp_path: Path) -> None:
    splits = "{train: m-train.jsonl, test: m-test.jsonl}"
    header = f"configs:\n- {{config_name: math, data_files: {splits}}}\n- {{config_name: code, data_files: c.jsonl}}"
    (tmp_path / "README.md").write_text(f"---\n{header}\n---\n")
    for name in ("m-train", "m-test", "c"):
        (tmp_path / f"{name}.jsonl").write_text("{}\n")
    with pytest.raises(DataError) as caught:
        rows_in(tmp_path, **chosen)
    assert caught.value.what == what
    assert caught.value.remedy.endswith("README.md names the subsets (and splits) math (train, test), code (train)")


def test_a_subset_that_is_a_guess_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    header = "configs:\n- {config_name: main, data_files: main.jsonl}\n- {config_name: more, data_files: more.jsonl}\n"
    (tmp_path / "README.md").write_text(f"---\n{header}---\n")
    # As of a hub, from which the others are not downloaded.
    (tmp_path / "main.jsonl").write_text('{"from": "main.jsonl"}\n')
    for chosen in ({}, {}, {"subset": "main"}):
        assert _names(rows_in(tmp_path, **chosen)) == ["main.jsonl"]
    [told] = [record for record in caplog.records if record.levelname == "WARNING"]
    what = "README.md names what is read, subset 'main', split 'train' (1 file of 1); other subsets: more"
    assert told.message == f"{tmp_path}: {what}; it names no default: set `subset`"
    with_default = header.replace("more.jsonl}", "more.jsonl, default: true}")
    (tmp_path / "README.md").write_text(f"---\n{with_default}---\n")
    (tmp_path / "more.jsonl").write_text('{"from": "more.jsonl"}\n')
    assert _names(rows_in(tmp_path)) == ["more.jsonl"]
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_a_test_file_beside_a_train_file_is_not_trained_on(tmp_path: Path) -> None:
    for name in ("train.jsonl", "test.jsonl"):
        (tmp_path / name).write_text(json.dumps({"from": name}) + "\n")
    assert _names(rows_in(tmp_path)) == ["train.jsonl"]


@pytest.mark.parametrize(
    ("names", "read"),
    [
        (["Train.jsonl", "Test.jsonl"], ["Train.jsonl"]),
        (["training.jsonl", "testing.jsonl"], ["training.jsonl"]),
        (["evaluation/a.jsonl", "train.jsonl"], ["train.jsonl"]),
        (["more.jsonl", "test.jsonl", "train-2.jsonl"], ["more.jsonl", "train-2.jsonl"]),
        (["more.jsonl", "train.jsonl", "train_test.jsonl"], ["more.jsonl", "train.jsonl", "train_test.jsonl"]),
        (["more.jsonl", "test.jsonl"], ["more.jsonl", "test.jsonl"]),
    ],
)
def test_files_of_other_splits_are_left_out_where_one_is_of_train(
    names: list[str], read: list[str], tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"from": name}) + "\n")
    assert _names(rows_in(tmp_path)) == read


def test_a_compressed_file_that_cannot_be_read_is_not_left_out(folder: Path) -> None:
    (folder / "a.json.xz").touch()
    assert _names(rows_in(folder)) == ["a.json", "b.jsonl", "deep/c.jsonl"]
    (folder / "picture.zip").touch()
    (folder / ".d.jsonl.zst").touch()
    assert _names(rows_in(folder)) == ["a.json", "b.jsonl", "deep/c.jsonl"]
    packed = folder / "deep" / "d.jsonl.zst"
    packed.touch()
    for path in (folder, packed):
        error = refused(path)
        assert (error.code, error.where) == ("data-format-unknown", str(packed))
    (folder / "train.jsonl").write_text('{"from": "train.jsonl"}')
    packed.rename(folder / "test.jsonl.zst")
    assert "train.jsonl" in _names(rows_in(folder))


def test_a_directory_without_data_says_so(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing here")
    assert "no data file" in refused(tmp_path).what


@pytest.mark.skipif(not os.path.ismount("/proc"), reason="no /proc")
def test_a_file_of_the_kernel_is_not_data(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").symlink_to("/proc/kmsg")
    for path in (tmp_path, tmp_path / "rows.txt", Path("/dev/zero")):
        with pytest.raises(DataError) as caught:
            data_files(DatasetSpec(path=str(path)))
        assert caught.value.code == "not-a-regular-file"


def test_markdown_files_are_rows_unless_they_describe_other_data(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# A\n\nText.\n")
    (tmp_path / "b.markdown").write_text("B\n")
    assert [row.values["text"] for row in read_rows(DatasetSpec(path=str(tmp_path)))] == ["B\n", "# A\n\nText.\n"]
    (tmp_path / "rows.jsonl").write_text('{"text": "row"}\n')
    assert [row.values["text"] for row in read_rows(DatasetSpec(path=str(tmp_path)))] == ["row"]


def test_directory_of_everything_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    monkeypatch.setattr(files, "_MOST_ENTRIES", 2)
    with pytest.raises(DataError) as caught:
        rows_in(tmp_path)
    assert caught.value.code == "directory-too-large"
