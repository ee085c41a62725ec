"""What `checkpoint.resume` may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascendtune.core.errors import RecipeError
from ascendtune.core.rundir import RunDir
from ascendtune.train.run_choice import require_checkpoint


def test_checkpoint_that_is_not_there_is_refused_with_an_example(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        require_checkpoint(tmp_path / "step_3")
    assert caught.value.code == "checkpoint-missing"
    assert "runs/NAME/checkpoints/step_100" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("checkpoint-20", "checkpoint.resume={run}/checkpoints/step_20"),
        ("checkpoints/step_30", "this run has: sft@10, sft@20"),
    ],
)
def test_checkpoint_of_a_run_is_looked_for_under_the_name_that_other_tools_give_it(
    name: str, remedy: str, tmp_path: Path
) -> None:
    run = RunDir(tmp_path / "sft")
    for step in (10, 20):
        run.checkpoint(step).mkdir(parents=True)
    run.run_json.write_text("{}")
    with pytest.raises(RecipeError) as caught:
        require_checkpoint(run.path / name)
    assert caught.value.remedy == remedy.format(run=run.path)


def test_checkpoint_without_its_parts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").touch()
    with pytest.raises(RecipeError) as caught:
        require_checkpoint(tmp_path)
    assert caught.value.code == "checkpoint-incomplete"
