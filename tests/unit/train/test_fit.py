"""Rows that `fit` is given: each is a dict that JSON can hold, and an error names the row. What its errors advise."""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ascendtune.core.errors import AscendtuneError, DataError, MachineError, RecipeError
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.fit import fit
from ascendtune.train.report.callback import Callback

GOOD = {"prompt": "a", "completion": "b"}


def nested(depth: int) -> Any:
    value: Any = "a"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (("prompt", "completion"), "row-not-an-object"),
        (None, "row-not-an-object"),
        ("text", "row-not-an-object"),
        ({"prompt": np.int64(3)}, "row-not-json"),
        ({"prompt": {1, 2}}, "row-not-json"),
        ({"prompt": b"a"}, "row-not-json"),
        ({"prompt": "\ud800"}, "row-not-json"),
        ({("prompt",): "a"}, "row-not-json"),
        ({"prompt": 10**5000}, "row-not-json"),
        ({"prompt": nested(100_000)}, "row-not-json"),
    ],
    ids=["tuple", "None", "text", "numpy", "set", "bytes", "surrogate", "key", "long number", "deep"],
)
def test_row_that_json_cannot_hold_is_refused_with_its_number(tmp_path: Path, row: Any, code: str) -> None:
    recipe = Recipe.check({"model": {"path": "none"}, "data": {"train": "none"}, "run_dir": str(tmp_path / "{name}")})
    with pytest.raises(DataError) as caught:
        fit(recipe, rows=[GOOD, row])
    assert caught.value.code == code and caught.value.what.startswith("row 2 of rows ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("recipe", "rows", "code"),
    [
        ("recipe.yaml", None, "not-a-recipe"),
        (["recipe.yaml"], None, "not-a-recipe"),
        ({"model": {"path": "none"}}, [], "no-rows"),
        ({"model": {"path": "none"}, "data": None}, [], "no-rows"),
        ({"model": {"path": "none"}, "data": "rows.jsonl"}, [GOOD], "invalid-value"),
    ],
)
def test_arguments_that_are_neither_recipe_nor_rows_are_refused(recipe: Any, rows: Any, code: str) -> None:
    with pytest.raises(AscendtuneError) as caught:
        fit(recipe, rows=rows)
    assert caught.value.code == code


def test_a_run_is_shown_by_its_path_in_a_notebook() -> None:
    assert repr(RunDir("runs/a")) == "RunDir('runs/a')"


def test_empty_cell_of_a_data_frame_is_an_empty_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    frame = pandas.read_csv(io.StringIO("instruction,input,output,score\na,,b,\nc,d,e,2\n"))
    with pytest.raises(AscendtuneError, match="none"):
        fit({"model": {"path": str(tmp_path / "none")}}, rows=frame)
    [written] = (tmp_path / "ascendtune/rows").iterdir()
    assert [json.loads(line) for line in written.read_text().splitlines()] == [
        {"instruction": "a", "input": None, "output": "b", "score": None},
        {"instruction": "c", "input": "d", "output": "e", "score": 2.0},
    ]


def test_rows_that_others_could_change_are_not_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "ascendtune/rows").mkdir(parents=True)
    (tmp_path / "ascendtune/rows").chmod(0o777)
    with pytest.raises(AscendtuneError) as caught:
        fit({"model": {"path": str(tmp_path / "none")}}, rows=[{"text": "hello"}])
    assert caught.value.code == "writable-by-others" and "XDG_CACHE_HOME" in caught.value.remedy


def test_errors_of_a_resumed_run_name_arguments_of_fit(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "hello"}\n')
    recipe = {
        "run_dir": str(tmp_path / "run"),
        "model": {"path": str(tiny_model)},
        "data": {"train": str(rows)},
        "method": {"stage": "pretrain"},
    }
    run = RunDir(tmp_path / "run")
    run.create(Recipe.check(recipe).to_yaml(), {}, {})
    checkpoint = run.checkpoint(1)
    checkpoint.mkdir()
    with pytest.raises(RecipeError) as caught:
        fit({**recipe, "seed": 5})
    assert caught.value.code == "recipe-changed" and "allow_change=['seed']" in caught.value.remedy
    for name in ("state.json", "digests.json"):
        (checkpoint / name).write_text("{}")
    checkpoint.chmod(0o777)
    with pytest.raises(MachineError) as caught_too:
        fit({**recipe, "run_dir": str(tmp_path / "other"), "checkpoint": {"resume": str(checkpoint)}})
    assert caught_too.value.code == "writable-by-others" and "trust_checkpoint=True" in caught_too.value.remedy
    assert "--" not in caught_too.value.remedy


@pytest.fixture
def trained(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[float]]:
    """Trains two steps, anew at each call; returns the losses."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    runs = itertools.count()

    def losses() -> list[float]:
        recipe = {
            "run_dir": str(tmp_path / f"run{next(runs)}"),
            "model": {"path": str(tiny_model)},
            "method": {"tuner": "lora"},
            "optim": {"max_steps": 2, "learning_rate": 0.01},
        }
        return [each["loss"] for each in fit(recipe, rows=[GOOD] * 4).run.read_metrics()]

    return losses


@contextmanager
def default_dtype(dtype: Any) -> Iterator[None]:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
        assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(before)


def test_defaults_of_torch_that_a_program_has_changed_do_not_reach_the_training(
    trained: Callable[[], list[float]],
) -> None:
    import torch

    expected = trained()
    for context in (
        torch.no_grad(),
        torch.inference_mode(),
        torch.device("meta"),
        default_dtype(torch.float64),
        default_dtype(torch.bfloat16),
    ):
        with context:
            assert trained() == expected, context
    with torch.no_grad():
        trained()
        assert not torch.is_grad_enabled(), "the caller's setting is restored"


class Failing(Callback):
    def on_start(self, facts: object) -> None:
        # As the tracker of a server of one's own does.
        os.environ["SWANLAB_API_HOST"] = "https://of.the.recipe"
        raise ZeroDivisionError


def test_program_finds_its_process_as_it_was(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from transformers.utils import logging

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("CUBLAS_WORKSPACE_CONFIG", "LRU_CACHE_CAPACITY", "MPLCONFIGDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SWANLAB_API_HOST", "https://of.the.program")
    had_progress_bars = logging.is_progress_bar_enabled()
    logging.enable_progress_bar()
    torch.use_deterministic_algorithms(True, warn_only=True)

    def state() -> tuple[object, ...]:
        deterministic = torch.get_deterministic_debug_mode()
        return torch.get_rng_state().tolist(), dict(os.environ), logging.is_progress_bar_enabled(), deterministic

    recipe: dict[str, Any] = {
        "run_dir": str(tmp_path / "run"),
        "model": {"path": str(tiny_model)},
        "method": {"tuner": "lora", "lora": {"dropout": 0.1}},
        "optim": {"max_steps": 1},
        "deterministic": True,
    }
    try:
        before = state()
        fit(recipe, rows=[GOOD])
        assert state() == before
        with pytest.raises(ZeroDivisionError):
            fit({**recipe, "run_dir": str(tmp_path / "other")}, rows=[GOOD], callbacks=[Failing()])
        assert state() == before, "after a training that failed"
    finally:
        torch.use_deterministic_algorithms(False)
        if not had_progress_bars:
            logging.disable_progress_bar()


def test_training_inside_autocast_is_refused(trained: Callable[[], list[float]]) -> None:
    import torch

    with torch.autocast("cpu", torch.bfloat16), pytest.raises(AscendtuneError) as caught:
        trained()
    assert caught.value.code == "called-in-autocast"


def test_trainings_in_two_threads_do_not_change_each_other(trained: Callable[[], list[float]]) -> None:
    expected = trained()
    with ThreadPoolExecutor(2) as pool:
        assert [each.result() for each in [pool.submit(trained), pool.submit(trained)]] == [expected, expected]


def test_result_is_found_after_the_program_has_changed_its_directory(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    recipe = {"run_dir": "run", "model": {"path": str(tiny_model)}, "optim": {"max_steps": 1}}
    result = fit(recipe, rows=[GOOD])
    monkeypatch.chdir("/")
    assert list(result.run.read_metrics()) and result.model.is_dir()


def test_run_that_is_to_end_before_its_schedule_counts_to_its_end(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    recipe = {
        "run_dir": str(tmp_path / "run"),
        "model": {"path": str(tiny_model)},
        "optim": {"max_steps": 1000},
        "align": {"stop_after": 2},
    }
    fit(recipe, rows=[GOOD])
    last = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step ")][-1]
    assert last.startswith("step 2/2  ") and "  took " in last
