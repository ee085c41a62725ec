"""Files that are given in place of a recipe: configurations of axolotl, TRL and ms-swift, data, models, programs.

Each is answered with the commands that train the same here.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ascendtune.core.document import Document
from ascendtune.core.errors import RecipeError
from ascendtune.recipe.other_names import key_here

_MODEL = ("model", "model_name_or_path", "base_model", "model_id_or_path")
_DATA = ("dataset", "dataset_name", "datasets", "data", "train_file", "data_path")
_PREFERENCES = frozenset(("dpo", "kto", "orpo", "simpo", "ipo"))
_DATA_SUFFIXES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".jsonl.gz", ".json.gz", ".csv.gz", ".tsv.gz")
_SCHEDULERS = frozenset(("linear", "cosine", "constant"))


def refuse_other_file(path: Path, further: Sequence[str] = ()) -> None:
    """Refuse what is given in place of a recipe.

    Args:
        further: the words behind `path` on the command line; a file among them is taken for the data.

    Raises:
        RecipeError: `path` is a run, a model, a data set or a program; or it is not there and reads like a model's name
            on a hub.
    """
    given = shlex.quote(str(path))
    data = next((shlex.quote(word) for word in further if "=" not in word and Path(word).exists()), "DATA")
    then = "then ascendtune train recipe.yaml"
    what, code = "this is a model, not a recipe", "not-a-recipe"
    remedy = f"ascendtune init --model {given} --data {data}, {then}"
    if run := next((each for each in (path, Path("runs") / path) if (each / "run.json").is_file()), None):
        what, remedy = "this is a run, not a recipe", f"give its recipe: {shlex.quote(str(run / 'recipe.yaml'))}"
    elif _is_like_a_hub_id(path):
        what, code, remedy = "no such recipe", "path-missing", f"check the path, or for a model of a hub: {remedy}"
    elif path.is_file() and (path.name.lower().endswith(_DATA_SUFFIXES) or _is_json_list(path)):
        what, remedy = "this is a data set, not a recipe", f"ascendtune init --model MODEL --data {given}, {then}"
    elif path.is_file() and path.suffix in (".py", ".sh"):
        program = f"python {given}" if path.suffix == ".py" else f"bash {given}"
        what, remedy = (
            "this is a program, not a recipe",
            f"ascendtune launch -- {program}, which starts it once per device",
        )
    elif not (path / "config.json").is_file():
        return
    raise RecipeError(what, code=code, remedy=remedy, where=path)


def _is_like_a_hub_id(path: Path) -> bool:
    """Whether `path`, which is not there, reads like ORGANISATION/NAME."""
    is_name = len(path.parts) == 2 and path.suffix not in (".yaml", ".yml", ".json") and "." not in path.parts[0]
    return is_name and not path.exists() and not path.parent.exists()


def _is_json_list(path: Path) -> bool:
    if path.suffix.lower() != ".json":
        return False
    # What cannot be read is reported when it is read as a recipe.
    with suppress(OSError), path.open("rb") as file:
        return file.read(1024).lstrip()[:1] == b"["
    return False


def refuse_other_recipe(document: Document) -> None:
    """Raises:
    RecipeError: `document` is a configuration of another tool, with the two commands that do the same here.
    """
    if tool := tool_of(document.values):
        raise RecipeError(
            f"this is a configuration of {tool}",
            code="recipe-of-another-tool",
            remedy=", then ".join(commands_here(document.values)),
            where=document.source,
        )


def tool_of(values: Mapping[str, Any]) -> str | None:
    """The tool whose configuration this is, of axolotl, TRL and ms-swift."""
    keys = set(values)
    if "base_model" in keys and keys & {"datasets", "sequence_len", "micro_batch_size", "sample_packing"}:
        return "axolotl"
    if "model_name_or_path" in keys and "dataset_name" in keys:
        return "TRL"
    if isinstance(values.get("model"), str) and "dataset" in keys:
        return "ms-swift"
    return None


def commands_here(values: Mapping[str, Any], stage: str | None = None) -> tuple[str, str]:
    """`ascendtune init …` and `ascendtune train …` for the values of another tool's configuration.

    Args:
        stage: where a command of the other tool says it.
    """
    asked, loss = _stage_of(values)
    stage = stage or asked
    model = next((values[name] for name in _MODEL if isinstance(values.get(name), str)), "MODEL")
    words = ["ascendtune", "init", "--model", model]
    for path in _paths(next((values[name] for name in _DATA if values.get(name)), None)) or ["DATA"]:
        words += ["--data", path]
    if stage is not None:
        words += ["--stage", stage]
    if _is_adapted(values):
        words += ["--tuner", "lora"]
    changes = [f"method.preference.loss={loss}"] if loss not in (None, "dpo") else []
    if stage == "preference" and _is_number(values.get("rl_beta")):
        changes.append(f"method.preference.beta={values['rl_beta']}")
    changes += _numbers(values)
    if isinstance(directory := values.get("output_dir"), str):
        changes.append(f"run_dir={directory}")
    return shlex.join(words), shlex.join(["ascendtune", "train", "recipe.yaml", *changes])


def _stage_of(values: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The stage, and the loss of preferences, as far as the keys say them."""
    loss = next((str(values[name]) for name in ("rl", "rlhf_type") if values.get(name)), None)
    if loss in _PREFERENCES:
        return "preference", loss
    return ("preference", None) if {"beta", "loss_type"} & set(values) else (None, None)


def _paths(data: Any) -> list[str]:
    """Paths or hub ids, without ms-swift's `#500` for a number of rows."""
    found = []
    for each in data if isinstance(data, list) else [data]:
        path = each.get("path") if isinstance(each, dict) else each
        if isinstance(path, str):
            found.append(path.partition("#")[0])
    return found


def _is_adapted(values: Mapping[str, Any]) -> bool:
    kinds = {str(values.get(name)) for name in ("adapter", "train_type", "tuner_type")}
    return bool(kinds & {"lora", "qlora"}) or values.get("use_peft") in (True, "true", "True")


def _numbers(values: Mapping[str, Any]) -> list[str]:
    """`key=value` for the numbers and the scheduler that have one key here."""
    found = []
    for name, value in values.items():
        key = key_here(name)
        if key is None or "," in key or "." not in key or isinstance(value, bool):
            continue
        if _is_number(value) or (key == "optim.scheduler" and value in _SCHEDULERS):
            found.append(f"{key}={value}")
    return found


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return isinstance(value, int | float | str)
