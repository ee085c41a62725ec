from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascendtune.cli.quickstart import command
from ascendtune.cli.quickstart.command import recipe_text


@pytest.mark.parametrize("name", ["train.jsonl", "recipe.yaml", "base-model/config.json"])
def test_quickstart_refuses_to_overwrite_foreign_files(
    in_process: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    mine = tmp_path / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine\n")
    result = in_process("quickstart", "--directory", ".")
    assert result.returncode == 2
    assert (
        f"{mine.name} exists with other content" in result.stderr
        and "--directory" in result.stderr
        and name in result.stderr
    )
    assert mine.read_text() == "mine\n"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [mine.name], "nothing else was written"


def test_second_quickstart_keeps_unchanged_files(tmp_path: Path) -> None:
    files = {tmp_path / "new" / "recipe.yaml": recipe_text(tmp_path).encode(), tmp_path / "new" / "x" / "y": b"y"}
    command._write(files)
    before = {path: path.stat().st_mtime_ns for path in files}
    shutil.rmtree(tmp_path / "new" / "x")
    command._write(files)
    assert {path: path.read_bytes() for path in files} == files
    recipe = tmp_path / "new" / "recipe.yaml"
    assert recipe.stat().st_mtime_ns == before[recipe]
