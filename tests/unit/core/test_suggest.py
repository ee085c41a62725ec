from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.suggest import closest, closest_path, did_you_mean, path_suggestion


def test_the_most_similar_choice_is_suggested_and_a_dissimilar_one_is_not() -> None:
    assert closest("lorra", ["full", "lora"]) == "lora" and closest("xyz", ["full", "lora"]) is None
    assert closest("lorra", ["full", "lora"], cutoff=0.95) is None
    assert did_you_mean("lorra", ["lora"]) == "did you mean 'lora'?"
    assert did_you_mean("xyz", ["lora"]) == "" and did_you_mean("xyz", ["lora"], "list them") == "list them"


def test_a_path_with_a_missing_suffix_or_a_misspelt_folder_is_completed(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.jsonl").touch()
    assert closest_path(tmp_path / "rows" / "a") == tmp_path / "rows" / "a.jsonl"
    assert closest_path(tmp_path / "row" / "a.jsonl") == tmp_path / "rows"
    assert path_suggestion(tmp_path / "other", "check the path") == "check the path"
    # Only the suffix is alike.
    (tmp_path / "dpo.yaml").touch()
    assert closest_path(tmp_path / "nothing.yaml") is None
    assert closest_path(tmp_path / "dpoo.yaml") == tmp_path / "dpo.yaml"
    # A file of the same stem cannot be meant where a directory is asked for.
    (tmp_path / "rowss.jsonl").touch()
    assert closest_path(tmp_path / "rowss") == tmp_path / "rowss.jsonl"
    assert closest_path(tmp_path / "rowss", fits=Path.is_dir) == tmp_path / "rows"
    assert path_suggestion(tmp_path / "dpo", "check the path", fits=Path.is_dir) == "check the path"


def test_a_path_written_for_another_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project/models/small").mkdir(parents=True)
    (tmp_path / "project/scripts").mkdir()
    (tmp_path / "project/rows.jsonl").touch()
    monkeypatch.chdir(tmp_path / "project/scripts")
    assert closest_path(Path("rows.jsonl")) == Path("../rows.jsonl")
    assert closest_path(Path("models/small")) == Path("../models/small")
    monkeypatch.chdir(tmp_path)
    assert closest_path(Path("models/small")) == Path("project/models/small")
    assert closest_path(Path("small")) == Path("project/models/small")
    assert closest_path(Path("models/large")) is None
    assert closest_path(Path("/models/small")) is None
    # A recipe in project/scripts names it so.
    assert closest_path(Path("../models/small")) == Path("project/models/small")
    assert closest_path(Path("../models/large")) is None
    assert (
        path_suggestion(Path("../models/small"), "check the path")
        == "did you mean 'project/models/small'? A path starts at the working directory"
    )
    # Up from where a link leads is elsewhere.
    (tmp_path / "other/deep").mkdir(parents=True)
    (tmp_path / "other/data").mkdir()
    (tmp_path / "link").symlink_to("other/deep")
    assert closest_path(Path("../data")) == Path("link/../data")


def test_a_directory_that_cannot_be_read_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As lost+found, beside which a disk's directories are."""
    (tmp_path / "project/models/small").mkdir(parents=True)
    (tmp_path / "lost+found").mkdir()
    monkeypatch.chdir(tmp_path)
    scan, stat = os.scandir, Path.stat

    def refuse(path: Path) -> None:
        if "lost+found" in Path(path).parts:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    def refusing_scan(path: Path) -> Any:
        refuse(path)
        return scan(path)

    def refusing_stat(path: Path, **named: Any) -> os.stat_result:
        # The directory itself may be looked at, but not what is in it.
        refuse(path.parent)
        return stat(path, **named)

    monkeypatch.setattr(os, "scandir", refusing_scan)
    monkeypatch.setattr(Path, "stat", refusing_stat)
    assert closest_path(Path("models/small")) == Path("project/models/small")
    assert closest_path(Path("small")) == Path("project/models/small")
