"""Commands and options of other tools, answered with the ones that do the same here."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from ascendtune.core.errors import InputError

_TRAIN = "ascendtune init --model MODEL --data DATA{}, then ascendtune train recipe.yaml"
_CHAT = "ascendtune chat RUN_OR_MODEL"
_MERGE = "ascendtune merge RUN_OR_ADAPTER --to DIR"
_SERVE = "serve the directory RUN/model with vLLM (vllm serve RUN/model), or ask with ascendtune generate RUN PROMPT"
_EVALUATE = "ascendtune generate RUN --file rows.jsonl --json writes answers beside the expected ones; for benchmarks "
_EVALUATE += "give RUN/model to lm-eval"

# Word -> what to do here.
_COMMANDS = {
    "export": _MERGE,
    "merge-lora": _MERGE,
    "merge_lora": _MERGE,
    "api": _SERVE,
    "deploy": _SERVE,
    "serve": _SERVE,
    "webui": f"there is no web interface; {_TRAIN.format('')}",
    "web-ui": f"there is no web interface; {_TRAIN.format('')}",
    "webchat": _CHAT,
    "inference": _CHAT,
    "infer": "ascendtune generate RUN_OR_MODEL PROMPT",
    "app": _CHAT,
    "eval": _EVALUATE,
    "evaluate": _EVALUATE,
    "version": "ascendtune --version",
    "logs": "ascendtune jobs logs JOB",
    "ps": "ascendtune jobs list",
    "status": "ascendtune jobs list",
    "stop": "ascendtune jobs stop JOB",
    "list": "ascendtune runs list",
    "show": "ascendtune runs show RUN",
    "resume": "give the same ascendtune train RECIPE again: it goes on from the newest checkpoint",
    "preprocess": "ascendtune train recipe.yaml --prepare",
    "pt": _TRAIN.format(" --stage pretrain"),
    "pretrain": _TRAIN.format(" --stage pretrain"),
    "sft": _TRAIN.format(" --stage sft"),
    "finetune": _TRAIN.format(""),
    "fine-tune": _TRAIN.format(""),
    "rm": _TRAIN.format(" --stage reward"),
    "reward": _TRAIN.format(" --stage reward"),
    "dpo": _TRAIN.format(" --stage preference"),
    "kto": _TRAIN.format(" --stage preference"),
    "orpo": f"{_TRAIN.format(' --stage preference')} method.preference.loss=orpo",
    "rlhf": _TRAIN.format(" --stage preference"),
    "grpo": "PPO and GRPO are not in this version; method.stage: preference is the nearest",
    "ppo": "PPO and GRPO are not in this version; method.stage: preference is the nearest",
}


def require_command(word: str, following: list[str], known: list[str]) -> None:
    """Raise for a word that is a command of another tool and not of this one.

    Args:
        following: the words behind it; model, data and numbers among them go into the answer.

    Raises:
        InputError: with the command that does the same here.
    """
    if word not in known and (remedy := _COMMANDS.get(word)):
        values = _options_in(following)
        if word in ("export", "webchat", "api") and following and following[0].endswith((".yaml", ".yml")):
            remedy = _of_recipe(Path(following[0])) or remedy
        if values and remedy.startswith(_TRAIN.partition("{")[0]):
            from ascendtune.recipe.other_recipes import commands_here

            stage = next(
                (each for each in ("sft", "pretrain", "reward", "preference") if f"--stage {each}" in remedy), None
            )
            loss = {"rl": word} if word in ("kto", "orpo") else {}
            remedy = ", then ".join(commands_here({**loss, **values}, stage))
        raise InputError(f"no such command '{word}'", code="unknown-command", remedy=remedy)


def _of_recipe(path: Path) -> str | None:
    """The command that does what a LLaMA-Factory recipe for merging or chat does; None for other files."""
    from ascendtune.core.errors import AscendtuneError
    from ascendtune.recipe.recipe import Recipe

    try:
        Recipe.load(path)
    except AscendtuneError as error:
        return error.remedy if error.code == "not-a-training-recipe" else None
    return None


def _options_in(words: list[str]) -> dict[str, str]:
    """`--name value`, `--name=value` and `name=value`; an option without a value is true."""
    found, name = dict[str, str](), ""
    for word in words:
        if word.startswith("--"):
            name, separator, value = word[2:].partition("=")
            found[name.replace("-", "_")] = value if separator else "true"
            name = "" if separator else name
        elif name:
            found[name.replace("-", "_")] = word
            name = ""
        elif "=" in word:
            key, _, value = word.partition("=")
            found[key] = value
    return found


def option_remedy(option: str, words: list[str]) -> str | None:
    """What to write instead of an option that is a recipe key, here or in another tool; None for other options.

    Args:
        words: the command line, in which the option may have a value.
    """
    from ascendtune.recipe.other_names import key_here

    name = option.lstrip("-").replace("-", "_")
    if name in ("config", "config_file"):
        return "give the recipe without an option: ascendtune train RECIPE"
    if name in ("resume", "resume_from_checkpoint"):
        return "the same command goes on from the newest checkpoint; another one: checkpoint.resume=PATH"
    key = name if "." in name else key_here(name)
    if not key:
        return None
    key, value = key.split(", ")[0], _options_in(words).get(name, "")
    # Other values may have other names here.
    is_same = re.fullmatch(r"[\d.]+(e-?\d+)?", value) or (key in ("run_dir", "model.path") and value != "true")
    shown = shlex.quote(value) if value and is_same else "VALUE"
    return f"keys of the recipe are written without dashes: {key}={shown}"
