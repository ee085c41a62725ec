"""Files given in place of a recipe: configurations of other tools, data, models, programs.

Each is refused, with the commands for the same training here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ascendtune.core.document import Document
from ascendtune.core.errors import RecipeError
from ascendtune.recipe.other_commands import native_commands, tool_of

_TOOLS = ("llamafactory-cli", "swift", "axolotl", "trl")
# A command in a shell script that starts a process for each device.
_LAUNCHER = re.compile(
    r"^[^#\n]*?\b(torchrun|torch\.distributed\.(?:run|launch)|accelerate|deepspeed|msrun|megatron(?= (?:sft|pt|rlhf))|"
    rf"{'|'.join(_TOOLS)})\s",
    re.MULTILINE,
)
_LARGEST_SCRIPT = 256 * 1024
_DATA_SUFFIXES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".jsonl.gz", ".json.gz", ".csv.gz", ".tsv.gz")


def refuse_other_file(path: Path, further: Sequence[str] = ()) -> None:
    """Refuse a file or directory that is not a recipe.

    Args:
        further: the arguments after `path` on the command line; an existing file among them is assumed to be the data.

    Raises:
        RecipeError: `path` is a run, a model, a data set or a program; or it does not exist and looks like a model's
            name on a hub.
    """
    given = shlex.quote(str(path))
    data = next((shlex.quote(word) for word in further if "=" not in word and Path(word).exists()), "DATA")
    then = "then ascendtune train recipe.yaml"
    init = f"ascendtune init --model {given} --data {data}, {then}"
    if run := next((each for each in (path, Path("runs") / path) if (each / "run.json").is_file()), None):
        raise _not_a_recipe(path, "a run", f"give its recipe: {shlex.quote(str(run / 'recipe.yaml'))}")
    if _is_like_a_hub_id(path):
        remedy = f"check the path, or for a model of a hub: {init}"
        raise RecipeError("no such recipe", code="path-missing", remedy=remedy, where=path)
    if path.is_file() and (path.name.lower().endswith(_DATA_SUFFIXES) or _is_json_list(path)):
        raise _not_a_recipe(path, "a data set", f"ascendtune init --model MODEL --data {given}, {then}")
    if path.is_file() and path.suffix in _INTERPRETERS:
        raise _not_a_recipe(path, "a program", _start_of(path, f"{_INTERPRETERS[path.suffix]} {given}"))
    if (path / "config.json").is_file():
        raise _not_a_recipe(path, "a model", init)


_INTERPRETERS = {".py": "python", ".sh": "bash"}


def _not_a_recipe(path: Path, what: str, remedy: str) -> RecipeError:
    return RecipeError(f"this is {what}, not a recipe", code="not-a-recipe", remedy=remedy, where=path)


def _start_of(path: Path, program: str) -> str:
    """The command that starts `program`, itself a command that runs the file, on all devices."""
    with path.open(encoding="utf-8", errors="replace") as file:
        match = _LAUNCHER.search(file.read(_LARGEST_SCRIPT)) if path.suffix == ".sh" else None
    if match is None:
        return f"ascendtune launch -- {program}, which starts it once per device"
    start = f"{program}: its {match[1]} starts the processes"
    return f"{start}; or type its command with `ascendtune` in place of `{match[1]}`" if match[1] in _TOOLS else start


def _is_like_a_hub_id(path: Path) -> bool:
    """Whether `path`, which does not exist, looks like ORGANISATION/NAME."""
    is_name = len(path.parts) == 2 and path.suffix not in (".yaml", ".yml", ".json") and "." not in path.parts[0]
    return is_name and not path.exists() and not path.parent.exists()


def _is_json_list(path: Path) -> bool:
    if path.suffix.lower() != ".json":
        return False
    # A file that cannot be read is reported later, when it is read as a recipe.
    with suppress(OSError), path.open("rb") as file:
        return file.read(1024).lstrip()[:1] == b"["
    return False


def refuse_other_recipe(document: Document) -> None:
    """Raises:
    RecipeError: `document` is a configuration of another tool; the remedy has the commands for the same training.
    """
    if tool := tool_of(document.values):
        remedy = str(native_commands(document.values, tool))
    elif tool := _tool_with_sections(document.values):
        remedy = (
            "ascendtune init --model MODEL --data DATA writes a recipe into which its values go; PPO and GRPO are not "
            "supported in this version"
        )
    else:
        return
    raise RecipeError(
        f"this is a configuration of {tool}", code="recipe-of-another-tool", remedy=remedy, where=document.source
    )


def _tool_with_sections(values: Mapping[str, Any]) -> str | None:
    """The tool of a configuration whose keys are in sections; None for other files."""
    sections = {name: section for name, section in values.items() if isinstance(section, dict)}
    if any(str(section.get("_component_", "")).startswith("torchtune.") for section in sections.values()):
        return "torchtune"
    if "actor_rollout_ref" in values or ("trainer" in values and "train_files" in sections.get("data", {})):
        return "verl"
    if "runner_config" in values or {"run_mode", "trainer"} <= values.keys():
        return "MindFormers"
    if "training" in sections and (isinstance(values.get("model"), str) or "lora" in values):
        return "Unsloth"
    return None
