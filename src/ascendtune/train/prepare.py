"""From a recipe to a run directory that a worker can train in: model found, data prepared, place chosen. No torch."""

from __future__ import annotations

import difflib
import hashlib
import re
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascendtune.core import process
from ascendtune.core.errors import InputError, MachineError, RecipeError
from ascendtune.core.files import file_lock, require_writable, write_json
from ascendtune.core.places import cache_directory, require_writable_place
from ascendtune.core.rundir import RunDir
from ascendtune.data.prepare import Prepared, prepare
from ascendtune.data.spec import DatasetSpec, Task
from ascendtune.hub.download import fetch_dataset, fetch_model
from ascendtune.hub.verify import require_unquantised
from ascendtune.train.adapters import Adapter, find_adapters
from ascendtune.train.method import MethodSection
from ascendtune.train.recipe import Recipe
from ascendtune.train.strategy.zero_config import require_deepspeed, zero_config

Progress = Callable[[str, int, int], None]

# Keys that may differ when a run goes on: they change where things go and how fast, not what is learnt.
# Keys that decide which weights and which optimiser state exist: a checkpoint cannot be loaded under others.
_FIXED = (
    "model.path",
    "model.init",
    "model.new_tokens",
    "method.stage",
    "method.tuner",
    "method.preference.loss",
    "method.preference.reference",
    "method.lora.target",
    "method.lora.rank",
    "method.lora.dora",
    "method.lora.modules_to_save",
    "method.lora.init",
    "method.lora.start_from",
    "method.freeze.first_layers",
    "method.freeze.last_layers",
    "method.freeze.modules",
    "method.freeze.extra",
    "optim.optimizer",
)
_FREE_TO_CHANGE = ("name", "run_dir", "checkpoint.", "track.", "data.processes", "memory.", "parallel.", "batch.")


@dataclass(frozen=True)
class Start:
    """What a start comes to."""

    run: RunDir | None
    """None when only the data was asked for."""
    prepared: Prepared
    messages: list[str] = field(default_factory=list)
    """Sentences for the user: what is resumed and why, which name was taken."""


def prepare_run(
    recipe: Recipe,
    origins: dict[str, str],
    *,
    allow_change: Sequence[str] = (),
    trust_checkpoint: bool = False,
    only_data: bool = False,
    progress: Progress | None = None,
) -> Start:
    """Do everything that needs no device.

    Args:
        origins: where each key's value came from, for origins.json.
        allow_change: dotted keys (or `data`) that may differ from the run that is resumed.
        trust_checkpoint: load a checkpoint from outside the run; its metadata is a pickle.
        only_data: prepare the tokens and stop there.

    Raises:
        RecipeError, DataError: the recipe, the model or the data are not right.
        MachineError: the run directory cannot be written or is in use.
    """
    _require_known(allow_change, recipe)
    if recipe.parallel.strategy == "deepspeed":
        require_deepspeed()
        zero_config(recipe, compute=None, ranks=None, hidden_size=None)
    model_directory = fetch_model(
        recipe.model.path, recipe.model.revision, weights_needed=recipe.model.init == "pretrained"
    ).resolve()
    reference = fetch_model(path).resolve() if (path := recipe.method.preference.reference) else None
    adapters = find_adapters(recipe.method)
    require_unquantised(model_directory)
    choice = None if only_data else _choose_directory(recipe, allow_change, trust_checkpoint)
    if choice is not None:
        # Asked before the data takes its time.
        require_writable(choice.run.path)
    require_writable_place(cache_directory(), "XDG_CACHE_HOME")
    prepared = prepare_data(recipe, model_directory, progress)
    if choice is None:
        return Start(None, prepared)
    # Asked again: the data may have taken long enough for somebody else to start the same.
    _require_free(choice.run)
    if choice.resumed is not None:
        _require_same_data(choice.run, prepared.fingerprint, allow_change)
        _require_same_adapters(choice.run, adapters)
        choice.run.update(resume_from=str(choice.resumed), model_directory=str(model_directory), argv=_argv())
        choice.run.rewrite_recipe(recipe.to_yaml(), origins)
    else:
        choice.run.create(
            recipe.to_yaml(), origins, _facts(recipe, model_directory, reference, adapters, prepared, choice.foreign)
        )
    write_json(choice.run.data_report, data_reports(prepared))
    return Start(choice.run, prepared, choice.messages)


def prepare_data(recipe: Recipe, model_directory: Path, progress: Progress | None = None) -> Prepared:
    """The recipe's tokens, from the cache or made: downloads first, where a data set is a hub id."""

    def resolve(spec: DatasetSpec) -> Path:
        return fetch_dataset(spec.path, spec.revision, split=spec.split, subset=spec.subset)

    return prepare(
        recipe.data,
        model_directory,
        task=_task_of(recipe.method),
        new_tokens=recipe.model.new_tokens,
        seed=recipe.seed,
        resolve=resolve,
        progress=progress,
    )


def _task_of(method: MethodSection) -> Task:
    match method.stage:
        case "pretrain":
            return "text"
        case "sft":
            return "conversations"
        case "reward":
            return "pairs"
        case "preference":
            return "singles" if method.preference.loss == "kto" else "pairs"


def data_reports(prepared: Prepared) -> dict[str, Any]:
    """What data.json says: the reports of the training and the evaluation data."""
    evaluation = prepared.eval_report
    return {"train": prepared.report.to_json(), "eval": evaluation.to_json() if evaluation else None}


@dataclass(frozen=True)
class _Choice:
    run: RunDir
    resumed: Path | None
    """A checkpoint of this run to go on from."""
    foreign: Path | None
    """A checkpoint of another run to start from."""
    messages: list[str]


def _choose_directory(recipe: Recipe, allow_change: Sequence[str], trust_checkpoint: bool) -> _Choice:
    wanted, resume = recipe.run_directory(), recipe.checkpoint.resume
    newest = _newest_of_series(wanted)
    if newest is not None:
        _require_free(newest)
    if resume not in ("auto", "never"):
        return _from_path(recipe, Path(resume), wanted, allow_change, trust_checkpoint)
    if newest is None:
        if wanted.exists() and not (wanted.is_dir() and not any(wanted.iterdir())):
            free = RunDir(_next_of_series(wanted))
            return _Choice(free, None, None, [f"starting {free}: {wanted} exists and is not a run"])
        return _Choice(RunDir(wanted), None, None, [])
    state, steps = newest.read()["state"], newest.checkpoint_steps()
    if resume == "never":
        reason = "checkpoint.resume is never"
    elif state == "finished":
        reason = f"{newest} has finished"
    elif not steps:
        reason = f"{newest} has no checkpoint"
        if not newest.has_metrics():
            return _Choice(
                newest, None, None, [f"starting over in {newest}: its last attempt ended before the first step"]
            )
    else:
        _require_same_recipe(newest, recipe, allow_change)
        checkpoint = newest.checkpoint(steps[-1])
        return _Choice(
            newest,
            checkpoint,
            None,
            [f"resuming {newest} from step {steps[-1]}: it was {state} and has this checkpoint"],
        )
    free = RunDir(_next_of_series(wanted))
    return _Choice(free, None, None, [f"starting {free}: {reason}"])


def _from_path(
    recipe: Recipe, checkpoint: Path, wanted: Path, allow_change: Sequence[str], trust_checkpoint: bool
) -> _Choice:
    key = "checkpoint.resume"
    if not checkpoint.is_dir():
        raise RecipeError(
            f"{key}: no such checkpoint",
            remedy="give a directory like runs/NAME/checkpoints/step_100",
            where=checkpoint,
        )
    parts = (checkpoint / "state.json", checkpoint / "digests.json")
    if not all(part.is_file() for part in parts):
        raise RecipeError(
            f"{key}: not a complete checkpoint",
            remedy="give a directory that holds state.json and digests.json",
            where=checkpoint,
        )
    owner = RunDir(checkpoint.resolve().parent.parent)
    own = next((path for path in _series(wanted).values() if path.resolve() == owner.path), None)
    if own is not None and owner.run_json.is_file():
        _require_free(owner)
        _require_same_recipe(owner, recipe, allow_change)
        return _Choice(RunDir(own), checkpoint, None, [f"resuming {own} from {checkpoint}: as asked"])
    if not trust_checkpoint:
        raise RecipeError(
            f"{key}: this checkpoint belongs to another run, and its metadata is a pickle, which can run code",
            remedy="add --trust-checkpoint when you know who wrote it",
            where=checkpoint,
        )
    run = RunDir(wanted if _newest_of_series(wanted) is None else _next_of_series(wanted))
    return _Choice(run, None, checkpoint.resolve(), [f"starting {run} from {checkpoint}: as asked"])


def _series(wanted: Path) -> dict[int, Path]:
    """`name` is number 1, `name-2` number 2, …: those that exist as run directories or otherwise."""
    pattern = re.compile(re.escape(wanted.name) + r"(?:-(\d+))?")
    entries = wanted.parent.iterdir() if wanted.parent.is_dir() else iter(())
    found = ((pattern.fullmatch(entry.name), entry) for entry in entries)
    return {int(match.group(1) or 1): entry for match, entry in found if match}


def _newest_of_series(wanted: Path) -> RunDir | None:
    runs = {number: RunDir(path) for number, path in _series(wanted).items() if RunDir(path).run_json.is_file()}
    return runs[max(runs)] if runs else None


def _next_of_series(wanted: Path) -> Path:
    taken = _series(wanted)
    return wanted.with_name(f"{wanted.name}-{max(taken) + 1}") if taken else wanted


def _require_free(run: RunDir) -> None:
    with file_lock(run.lock, wait=False) as free:
        if not free:
            raise MachineError(
                "this run is being trained by another process",
                remedy="wait for it, or give this one another name: name=OTHER",
                where=run.path,
            )


def _require_same_recipe(run: RunDir, recipe: Recipe, allow_change: Sequence[str]) -> None:
    before = _leaves(Recipe.load(run.recipe).model_dump(mode="json"))
    after = _leaves(recipe.model_dump(mode="json"))
    if fixed := [key for key in _FIXED if before.get(key) != after.get(key)]:
        raise RecipeError(
            f"{fixed[0]} cannot change within a run ({before.get(fixed[0])} -> {after.get(fixed[0])}): "
            "its checkpoints hold other weights",
            remedy="undo the change; or start anew: checkpoint.resume=never",
            where=run.recipe,
        )
    changed = [
        f"{key}: {before.get(key)} -> {after.get(key)}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and not _may_change(key, allow_change)
    ]
    if changed:
        keys = " ".join(f"--allow-change {line.partition(':')[0]}" for line in changed)
        raise RecipeError(
            "this run was trained with another recipe: " + "; ".join(changed),
            remedy=f"undo the change; or go on with it: {keys}; or start anew: checkpoint.resume=never",
            where=run.recipe,
        )


def _require_same_data(run: RunDir, fingerprint: str, allow_change: Sequence[str]) -> None:
    before = run.read().get("data_hash")
    # Whoever allows a key of the data section to change has allowed other tokens.
    if before != fingerprint and not any(each.partition(".")[0] == "data" for each in allow_change):
        raise InputError(
            f"the data is not what this run was trained on ({before} -> {fingerprint}): its files, template or "
            "tokenizer have changed",
            remedy="restore the data; or go on with it: --allow-change data; or start anew: checkpoint.resume=never",
            where=run.path,
        )


def _require_same_adapters(run: RunDir, adapters: list[Adapter]) -> None:
    # Checkpoints hold what trains; the frozen adapters beside it are read from their files every time.
    before = [Adapter.of(each) for each in run.read().get("adapters", [])]
    for old, new in zip(before, adapters, strict=True):
        if old.digest != new.digest:
            raise RecipeError(
                "this adapter is not the one that the run began with",
                remedy="restore it; or start anew: checkpoint.resume=never",
                where=new.path,
            )


def _require_known(allow_change: Sequence[str], recipe: Recipe) -> None:
    leaves = [key.split(".") for key in _leaves(recipe.model_dump(mode="json"))]
    known = {".".join(parts[:length]) for parts in leaves for length in range(1, len(parts) + 1)}
    for key in allow_change:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            raise RecipeError(
                f"--allow-change {key}: no such recipe key",
                remedy=f"did you mean '{close[0]}'?" if close else "`ascendtune recipe schema` lists the keys",
            )


def _may_change(key: str, allowed: Sequence[str]) -> bool:
    return key.startswith(_FREE_TO_CHANGE) or any(key == each or key.startswith(each + ".") for each in allowed)


def _leaves(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _facts(
    recipe: Recipe,
    model_directory: Path,
    reference: Path | None,
    adapters: list[Adapter],
    prepared: Prepared,
    foreign: Path | None,
) -> dict[str, Any]:
    """What run.json says from the beginning; the worker adds devices, versions and what it chose."""
    git = process.run(["git", "rev-parse", "HEAD"], timeout_seconds=5)
    return {
        "name": recipe.name,
        "argv": _argv(),
        "directory": str(Path.cwd()),
        "host": socket.gethostname(),
        "git_commit": git.output.strip() if git.exit_code == 0 else None,
        "recipe_hash": hashlib.sha256(recipe.to_yaml().encode()).hexdigest()[:16],
        "data_hash": prepared.fingerprint,
        "seed": recipe.seed,
        "model_directory": str(model_directory),
        "adapters": [each.to_json() for each in adapters],
        "reference_directory": str(reference) if reference else None,
        "resume_from": str(foreign) if foreign else None,
        "exit_cause": None,
        "resolved": {},
    }


def _argv() -> list[str]:
    return [Path(sys.argv[0]).name, *sys.argv[1:]]
