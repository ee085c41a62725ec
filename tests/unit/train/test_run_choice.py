"""What `checkpoint.resume` may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascendtune.core.errors import RecipeError
from ascendtune.train.run_choice import require_checkpoint


def test_checkpoint_that_is_not_there_is_refused_with_an_example(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        require_checkpoint(tmp_path / "step_3")
    assert caught.value.code == "checkpoint-missing"
    assert "runs/NAME/checkpoints/step_100" in caught.value.remedy


def test_checkpoint_without_its_parts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").touch()
    with pytest.raises(RecipeError) as caught:
        require_checkpoint(tmp_path)
    assert caught.value.code == "checkpoint-incomplete"
