"""Training as a function call. Free of torch until it is called."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ascendtune.core.directories import cache_directory
from ascendtune.core.errors import DataError, InputError
from ascendtune.core.files import write_atomically
from ascendtune.core.foreign_json import first_line
from ascendtune.core.ownership import require_own, restricted_umask
from ascendtune.core.rundir import RunDir
from ascendtune.data.spec import DatasetSpec
from ascendtune.recipe.changes import ResumeOptions
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.report.callback import Callback
from ascendtune.train.report.notebook import Picture
from ascendtune.train.report.picture import draw

_TRAINING_LOCK = threading.RLock()
"""Random states and settings of torch belong to the process: trainings in two threads would change each other's."""


@dataclass(frozen=True)
class FitResult:
    """A finished run."""

    run: RunDir
    steps: int
    loss: float | None
    """Loss of the last recorded step; None if it was not a number."""
    best_evaluation_loss: float | None
    model: Path
    """Final weights in Hugging Face format; an adapter if the tuner is lora or oft."""

    def load_model(self) -> Any:
        """The final weights as a transformers model, or a PEFT model for an adapter; on the CPU, in evaluation mode."""
        recipe = Recipe.load(self.run.recipe)
        scores = recipe.method.stage == "reward"
        kind, options = ("SequenceClassification", {"num_labels": 1}) if scores else ("CausalLM", {})
        if (self.model / "adapter_config.json").is_file():
            loader = getattr(import_module("peft"), f"AutoPeftModelFor{kind}")
        else:
            loader = getattr(import_module("transformers"), f"AutoModelFor{kind}")
        return loader.from_pretrained(self.model, trust_remote_code=recipe.model.trust_remote_code, **options).eval()

    def plot(self) -> Picture | None:
        """Loss, learning rate, gradient norm and throughput over the steps; None if matplotlib is not installed."""
        pictures = draw(self.run)
        return Picture(pictures[0].resolve()) if pictures else None

    @property
    def metrics(self) -> Any:
        """The lines of metrics.jsonl: a pandas DataFrame if pandas is installed, otherwise a list of dicts."""
        return _table(self.run.read_metrics())

    @property
    def evaluations(self) -> Any:
        """The lines of eval.jsonl, in the same form as `metrics`."""
        return _table(self.run.read_evaluations())


def fit(
    recipe: Recipe | Mapping[str, Any],
    *,
    rows: Iterable[Mapping[str, Any]] | None = None,
    callbacks: Sequence[Callback] = (),
    allow_change: Sequence[str] = (),
    trust_checkpoint: bool = False,
) -> FitResult:
    """Train in this process, on one device; several devices need `ascendtune train` or torchrun.

    Calls from several threads train one after the other.

    Args:
        recipe: a recipe, or its keys as nested dicts; with `rows` these need no data.train.
        rows: training rows instead of the recipe's data.train: dicts, a data set of the package `datasets` or a pandas
            DataFrame, in any format that files may have. They are written to the cache as JSON Lines; the file is named
            after its SHA-256.
        callbacks: called during the run; an exception ends the run, one in `on_end` is logged as a warning.
        allow_change: recipe keys that may differ from those of the resumed run.
        trust_checkpoint: load a checkpoint that another user has written, or has permission to write.

    Raises:
        AscendtuneError: as the command line would report it; `exit_code` is the one that the command would return.
        InputError: `recipe` is a path.
        DataError: there are no rows, a row is not a dict, or a value cannot be written as JSON.
    """
    if not isinstance(recipe, Recipe | Mapping):
        raise InputError(
            f"fit takes a Recipe or nested dicts, not {type(recipe).__name__}",
            code="not-a-recipe",
            remedy='read the file: fit(Recipe.load("recipe.yaml"))',
        )
    # Imported here: checking a recipe must import neither Arrow nor torch.
    from ascendtune.train.prepare import prepare_run

    if isinstance(recipe, Mapping):
        keys = dict(recipe)
        if rows is not None:
            data = keys.get("data") or {}
            # The check reports a value that is not a section.
            keys["data"] = {"train": "rows", **data} if isinstance(data, Mapping) else data
        recipe = Recipe.check(keys)
    if rows is not None:
        specs = [DatasetSpec(path=str(_write_rows(rows)))]
        recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": specs})})
    with _TRAINING_LOCK, restricted_umask(), _variables_and_progress_bars_kept():
        prepared = prepare_run(recipe, {}, resume_options=ResumeOptions(allow_change, trust_checkpoint, in_python=True))
        assert prepared.run is not None and prepared.claim is not None
        # The program may change its working directory before it uses the result.
        run = RunDir(prepared.run.path.absolute())
        with prepared.claim:
            from ascendtune.train.attempt import train

            train(prepared.run, prepared.run.read(), callbacks)
    last = list(run.read_metrics())[-1]
    evaluations = [record["loss"] for record in run.comparable_evaluations() if record["loss"] is not None]
    return FitResult(
        run=run,
        steps=last["step"],
        loss=last["loss"],
        best_evaluation_loss=min(evaluations, default=None),
        model=run.model,
    )


@contextmanager
def _variables_and_progress_bars_kept() -> Iterator[None]:
    """Undo what a training sets in its process and the libraries in it: another library may train afterwards."""
    before = dict(os.environ)
    # Imported here: see `fit`.
    from transformers.utils import logging

    has_progress_bars = logging.is_progress_bar_enabled()
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)
        if has_progress_bars:
            logging.enable_progress_bar()


def _write_rows(rows: Iterable[Mapping[str, Any]]) -> Path:
    if type(rows).__name__ == "DataFrame":
        # pandas, which need not be installed, stores NaN for an empty cell.
        frame: Any = rows
        rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    content = b"".join(_json_line(row, number) for number, row in enumerate(rows, 1))
    if not content:
        raise DataError("rows is empty", code="no-rows", remedy="give at least one row")
    path = cache_directory() / "rows" / f"{hashlib.sha256(content).hexdigest()}.jsonl"
    if not path.exists():
        with restricted_umask():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
    require_own(path.parent, path, remedy="set XDG_CACHE_HOME to a directory of your own")
    return path


def _json_line(row: Mapping[str, Any], number: int) -> bytes:
    if not isinstance(row, Mapping):
        raise DataError(
            f"row {number} of rows is of type {type(row).__name__}, not a dict",
            code="row-not-an-object",
            remedy='give dicts, such as {"prompt": "…", "completion": "…"}',
        )
    try:
        return (json.dumps(dict(row), ensure_ascii=False) + "\n").encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"row {number} of rows cannot be written as JSON: {first_line(error)}",
            code="row-not-json",
            remedy="give texts, numbers, lists and dicts; an array: its tolist(), a date: its isoformat()",
        ) from error


def _table(records: Iterable[dict[str, Any]]) -> Any:
    listed = list(records)
    try:
        return import_module("pandas").DataFrame(listed)
    except ModuleNotFoundError:
        return listed
