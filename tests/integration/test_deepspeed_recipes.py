"""The recipes of `recipes/` that name DeepSpeed, as tests/integration/test_recipes.py does it with the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.integration.test_recipes import (
    RECIPES,
    WITH_DEEPSPEED,
    assert_passes_check,
    assert_trains_in_small,
)

pytest.importorskip("deepspeed", reason="DeepSpeed is shown to a process of its own (make deepspeed-tests)")

_ZERO_3 = ("parallel.deepspeed.stage=3", "parallel.deepspeed.offload_optimizer=none")


@pytest.mark.parametrize(
    ("file", "overrides"),
    [*((file, ()) for file in WITH_DEEPSPEED), (RECIPES / "alpaca-zero.yaml", _ZERO_3)],
    ids=[*(str(file.stem) for file in WITH_DEEPSPEED), "alpaca-zero-3"],
)
def test_every_recipe_with_deepspeed_trains_in_small(
    file: Path, overrides: Sequence[str], tiny_model: Path, tmp_path: Path
) -> None:
    assert_trains_in_small(file, tiny_model, tmp_path, overrides)


@pytest.mark.parametrize("file", WITH_DEEPSPEED, ids=lambda file: str(file.stem))
def test_every_recipe_with_deepspeed_passes_recipe_check(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_passes_check(file, capsys)
