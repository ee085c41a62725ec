"""Prepares a run directory for the worker: finds the model, prepares the data. Free of torch."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ascendtune.core import process
from ascendtune.core.claim import Claim
from ascendtune.core.directories import cache_directory, require_writable_place
from ascendtune.core.errors import all_errors, with_other_names
from ascendtune.core.mask import command_without_secrets
from ascendtune.core.records import write_json
from ascendtune.core.rundir import RunDir, hash_of_recipe
from ascendtune.data.fingerprint import TokenInputs
from ascendtune.data.prepare import PreparedData, prepare
from ascendtune.data.spec import DatasetSpec
from ascendtune.hub.download import fetch_dataset, fetch_model, require_local_paths
from ascendtune.hub.model_config import require_rows_for_tokens, signs_of_other_tokenizer
from ascendtune.hub.verify import require_unquantised
from ascendtune.recipe.changes import ResumeOptions, require_known, require_same_data
from ascendtune.recipe.deepspeed_config import require_deepspeed, zero_config
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.attention.model_type import require_trainable_type
from ascendtune.train.recorded_config import hashes_of_configs, require_same_config
from ascendtune.train.run_choice import RunChoice, checkpoint_to_resume, choose_run, require_checkpoint
from ascendtune.train.stored_adapters import StoredAdapter, find_adapters, require_same_adapters

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class PreparedRun:
    """The result of `prepare_run`."""

    run: RunDir | None
    """None with `only_data`."""
    prepared: PreparedData
    model_directory: Path
    messages: list[str] = field(default_factory=list)
    """Sentences for the user: which checkpoint is resumed and why, which name was chosen."""
    claim: Claim | None = None
    """The claim on `run`; passed to the worker, or kept until the worker has ended."""


def prepare_run(
    recipe: Recipe,
    origins: dict[str, str],
    *,
    resume_options: ResumeOptions | None = None,
    only_data: bool = False,
    progress: Progress | None = None,
) -> PreparedRun:
    """Do everything that needs no device.

    Args:
        origins: source of each key's value, for origins.json.
        resume_options: permitted differences from the run that is resumed (default: none).
        only_data: only prepare the tokens.

    Raises:
        RecipeError, DataError: the recipe, the model or the data are invalid.
        MachineError: the run directory cannot be written or is in use.
    """
    resume_options = resume_options or ResumeOptions()
    require_known(resume_options, recipe)
    if recipe.parallel.strategy == "deepspeed":
        require_deepspeed()
    require_paths(recipe, only_data=only_data)
    model_directory = fetch_model(
        recipe.model.path, recipe.model.revision, weights_needed=recipe.model.init == "pretrained"
    ).resolve()
    reference = fetch_model(path).resolve() if (path := recipe.method.preference.reference) else None
    require_unquantised(model_directory)
    require_trainable_type(recipe, model_directory)
    if reference is not None:
        require_unquantised(reference, "comparing with")
    adapters = find_adapters(
        recipe.method,
        model_directory if recipe.model.init == "pretrained" else None,
        quantised=recipe.model.quantization is not None,
    )
    require_writable_place(cache_directory(), "XDG_CACHE_HOME")
    if only_data:
        return PreparedRun(None, prepare_data(recipe, model_directory, progress), model_directory)
    # The run is claimed before the data is prepared, which takes long: its state must not change meanwhile.
    choice, claim = choose_run(recipe, resume_options)
    try:
        config_hashes = hashes_of_configs(model_directory, reference)
        prepared = prepare_data(recipe, model_directory, progress)
        require_rows_for_tokens(model_directory / "config.json", prepared.vocab_size, len(recipe.model.new_tokens))
        if choice.resumed is not None:
            require_same_data(choice.run, choice.record, prepared.fingerprint, resume_options)
        if choice.record:
            require_same_adapters(choice.record, adapters)
            require_same_config(choice.record, config_hashes)
        facts = {
            "start_id": claim.start_id,
            "argv": _argv(),
            "recipe_hash": hash_of_recipe(recipe.to_yaml()),
            "data_hash": prepared.fingerprint,
            "model_directory": str(model_directory),
            "reference_directory": str(reference) if reference else None,
            "config_hashes": config_hashes,
            "weights_hash": _hash_of_weights(model_directory, reference),
        }
        _write(choice, recipe, origins, facts, adapters)
        write_json(choice.run.data_report, data_reports(prepared))
    except BaseException:
        claim.release()
        raise
    return PreparedRun(choice.run, prepared, model_directory, choice.messages, claim)


def require_paths(recipe: Recipe, *, only_data: bool = False) -> None:
    """Raise one error for all paths in the recipe that do not exist, without network.

    Args:
        only_data: without the checkpoint to resume from.
    """
    with all_errors() as check:
        if recipe.parallel.strategy == "deepspeed":
            with check():
                zero_config(recipe, compute=None, ranks=None, hidden_size=None)
        with check():
            require_local_paths(recipe.sources)
        if recipe.checkpoint.resume not in ("auto", "never") and not only_data:
            with check():
                require_checkpoint(checkpoint_to_resume(recipe))


def prepare_data(recipe: Recipe, model_directory: Path, progress: Progress | None = None) -> PreparedData:
    """The recipe's tokens, from the cache or newly tokenised. Data sets that are hub ids are downloaded first."""
    with with_other_names(recipe.other_names):
        prepared = prepare(
            recipe.data,
            model_directory,
            task=recipe.method.task,
            new_tokens=recipe.model.new_tokens,
            seed=recipe.seed,
            resolve=_resolve,
            progress=progress,
        )
    signs = signs_of_other_tokenizer(model_directory / "config.json", prepared.vocab_size, prepared.added_ids)
    return replace(prepared, warnings=(*prepared.warnings, *signs))


def places_of_rows(recipe: Recipe, run: RunDir, rows: Sequence[int]) -> list[str]:
    """`file:line` of rows of a run's training tokens; their numbers if that is unknown.

    Raises:
        DataError: the data files have changed.
    """
    from ascendtune.data.build import places_of

    model = Path(str(run.read().get("model_directory")))
    locations = [(spec, _resolve(spec)) for spec in (*recipe.data.train, *recipe.data.eval)]
    inputs = TokenInputs(recipe.data, model, locations, recipe.method.task, recipe.model.new_tokens, recipe.seed)
    report = (run.read_data_report() or {}).get("train") or {}
    return places_of(inputs, rows, report.get("rows_kept", 0))


def _resolve(spec: DatasetSpec) -> Path:
    return fetch_dataset(spec.path, spec.revision, split=spec.split, subset=spec.subset)


def data_reports(prepared: PreparedData) -> dict[str, Any]:
    """The content of data.json: the reports of the training and the evaluation data."""
    evaluation = prepared.eval_report
    return {"train": prepared.report.to_json(), "eval": evaluation.to_json() if evaluation else None}


def _write(
    choice: RunChoice, recipe: Recipe, origins: dict[str, str], facts: dict[str, Any], adapters: list[StoredAdapter]
) -> None:
    """Write the recipe and run.json, to which the worker adds devices, versions and its choices."""
    if choice.resumed is not None:
        choice.run.update(resume_from=str(choice.resumed), **facts)
        choice.run.rewrite_recipe(recipe.to_yaml(), origins)
        return
    git = process.run(["git", "rev-parse", "HEAD"], timeout_seconds=5)
    choice.run.create(
        recipe.to_yaml(),
        origins,
        {
            "name": recipe.name,
            "directory": str(Path.cwd()),
            "host": socket.gethostname(),
            "started_by": os.getpid(),
            "git_commit": git.output.strip() if git.exit_code == 0 else None,
            "seed": recipe.seed,
            **facts,
            "adapters": [each.to_json() for each in adapters],
            "resume_from": str(choice.foreign) if choice.foreign else None,
            "exit_cause": None,
            "resolved": {},
        },
    )


def _hash_of_weights(*directories: Path | None) -> str:
    """Hash of the names, sizes and modification times of the weight files, which are not read."""
    files = [sorted(each.glob("*.safetensors")) if each else [] for each in directories]
    facts = [[(file.name, (stat := file.stat()).st_size, stat.st_mtime_ns) for file in each] for each in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _argv() -> list[str]:
    """The command line to run the program again: `python -m PACKAGE`, or a program's name in PATH."""
    program = Path(sys.argv[0])
    name = ["python", "-m", program.parent.name] if program.name == "__main__.py" else [program.name]
    return command_without_secrets([*name, *sys.argv[1:]])
