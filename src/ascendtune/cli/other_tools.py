"""Commands and options of other tools, answered with their equivalents here."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from ascendtune.core.errors import InputError
from ascendtune.core.mask import command_without_secrets

_CHAT = "ascendtune chat RUN_OR_MODEL"
_MERGE = "ascendtune merge RUN_OR_ADAPTER --to DIR"
_SERVE = "serve the directory RUN/model with vLLM (vllm serve RUN/model), or ask with ascendtune generate RUN PROMPT"
_EVALUATE = "ascendtune generate RUN --file rows.jsonl --json writes answers beside the expected ones; for benchmarks "
_EVALUATE += "give RUN/model to lm-eval"
_LAUNCH = "ascendtune launch -- python train.py starts a program once per device"
_NO_PPO = "PPO and GRPO are not supported in this version; method.stage: preference is the nearest"


def _training(stage: str | None, loss: str | None = None) -> str:
    """The commands for a training of which only the stage and loss are known."""
    of_stage = f" --stage {stage}" if stage else ""
    of_loss = f" method.preference.loss={loss}" if loss else ""
    return f"ascendtune init --model MODEL --data DATA{of_stage}, then ascendtune train recipe.yaml{of_loss}"


_TRAININGS = {
    "pt": "pretrain",
    "pretrain": "pretrain",
    "sft": "sft",
    "finetune": None,
    "fine-tune": None,
    "rm": "reward",
    "reward": "reward",
    "dpo": "preference",
    "kto": "preference",
    "orpo": "preference",
    "rlhf": "preference",
}
"""Commands that train -> their stage, if they are for one."""
_LOSSES = ("kto", "orpo")
_MERGES = ("export", "merge-lora", "merge_lora")
_CHATS = ("webchat", "inference", "app")
_COMMANDS = {
    **dict.fromkeys(_MERGES, _MERGE),
    **dict.fromkeys(_CHATS, _CHAT),
    **dict.fromkeys(("api", "deploy", "vllm-serve", "serve"), _SERVE),
    **dict.fromkeys(("webui", "web-ui"), f"there is no web interface; {_training(None)}"),
    **dict.fromkeys(("eval", "evaluate"), _EVALUATE),
    **dict.fromkeys(("torchrun", "accelerate", "deepspeed"), _LAUNCH),
    **dict.fromkeys(("grpo", "ppo"), _NO_PPO),
    "tune": f"recipes of torchtune are not read; {_training(None)}",
    "verl": f"PPO and GRPO are not supported in this version; for supervised training: {_training('sft')}",
    "infer": "ascendtune generate RUN_OR_MODEL PROMPT",
    "version": "ascendtune --version",
    "logs": "ascendtune jobs logs JOB",
    "ps": "ascendtune jobs list",
    "status": "ascendtune jobs list",
    "stop": "ascendtune jobs stop JOB",
    "list": "ascendtune runs list",
    "show": "ascendtune runs show RUN",
    "resume": "repeat the same ascendtune train RECIPE: it resumes from the newest checkpoint",
    "preprocess": "ascendtune train recipe.yaml --prepare",
}
"""Other commands -> the equivalent here."""
# Launchers before another tool's command.
_TOOLS = ("llamafactory-cli", "lmf", "trl", "swift", "axolotl", "unsloth")
# Options that name the model, the adapter and the directory of the result.
_MODELS = ("model_name_or_path", "model", "base_model", "model_id_or_path")
_ADAPTERS = ("adapter_name_or_path", "adapters", "adapter", "lora_model_dir", "peft_model", "ckpt_dir")
_TARGETS = ("export_dir", "output_dir", "merged_model_dir")


def require_command(word: str, following: list[str], known: list[str]) -> None:
    """Raise for a word that is a command of another tool and not of this one.

    Args:
        following: the words after it; model, data and numbers among them are included in the remedy.

    Raises:
        InputError: the remedy has the command that does the same here.
    """
    if word in _TOOLS:
        here = shlex.join(["ascendtune", *command_without_secrets(following)])
        raise InputError(f"no such command '{word}'", code="unknown-command", remedy=f"leave it out: {here}")
    if word in known or word not in {*_COMMANDS, *_TRAININGS}:
        return
    values = _options_in(following)
    file = _configuration_in(following, values)
    remedy = None
    if word in ("export", "webchat") and following and following[0].endswith((".yaml", ".yml")):
        remedy = _of_recipe(Path(following[0]))
    elif word == "preprocess" and file is not None:
        remedy = shlex.join(["ascendtune", "train", str(file), "--prepare"])
    elif word in _TRAININGS:
        remedy = _training_with(word, following, file)
    remedy = remedy or _with_models(word, values) or _COMMANDS.get(word) or _training(None)
    raise InputError(f"no such command '{word}'", code="unknown-command", remedy=remedy)


def _configuration_in(words: list[str], values: dict[str, str]) -> Path | None:
    """The YAML file among the words, with `--config` or without."""
    named = [values["config"]] if "config" in values else [each for each in words if each.endswith((".yaml", ".yml"))]
    return Path(named[0]) if named else None


def _training_with(word: str, words: list[str], file: Path | None) -> str:
    """The commands for a training whose options are on the command line, or in a file, or both.

    Args:
        word: the command: one of `_TRAININGS`, or `train`.
    """
    from ascendtune.core.document import read_document
    from ascendtune.core.errors import AscendtuneError
    from ascendtune.recipe.other_commands import native_commands, tool_of

    options: dict[str, object] = {key: value for key, value in _all_options_in(words).items() if key != "config"}
    if file is not None:
        try:
            written = read_document(file).values
        except AscendtuneError as error:
            return f"{file}: {error.what}; {error.remedy}"
        if tool_of(written) is None:
            return shlex.join(["ascendtune", "train", str(file)])
        options = {**written, **options}
    stage, loss = _TRAININGS.get(word), word if word in _LOSSES else None
    if not options:
        return _training(stage, loss)
    # This program has a command `train`, too: its options may be of any tool.
    given = {**({"rl": loss} if loss else {}), **options}
    return str(native_commands(given, None if word == "train" else tool_of(options), stage))


def _with_models(word: str, values: dict[str, str]) -> str | None:
    """`ascendtune chat`, `generate` or `merge` with the models in the options; None if they contain none.

    Args:
        word: the command that was typed, of this program or of another.
    """
    model, adapters, target = (
        next((values[name] for name in names if values.get(name, "true") != "true"), None)
        for names in (_MODELS, _ADAPTERS, _TARGETS)
    )
    named = adapters or model
    if values.get("push_to_hub", "false").lower() == "true" and word in _MERGES:
        return shlex.join(["ascendtune", "push", named or "RUN", values.get("hub_model_id", "OWNER/NAME")])
    if named is None:
        return None
    if word in (*_MERGES, "merge"):
        first, *others = [each.strip() for each in (adapters or "").split(",") if each.strip()] or [named]
        more = [each for other in others for each in ("--adapter", other)]
        onto = ["--onto", model] if model and adapters else []
        return shlex.join(["ascendtune", "merge", first, *more, *onto, "--to", target or "DIR"])
    if word in (*_CHATS, "chat"):
        return shlex.join(["ascendtune", "chat", named])
    if word in ("infer", "generate"):
        return shlex.join(["ascendtune", "generate", named, "PROMPT"])
    return None


def _of_recipe(path: Path) -> str | None:
    """The equivalent of a LLaMA-Factory recipe for merging or chat; None for other files."""
    from ascendtune.core.errors import AscendtuneError
    from ascendtune.recipe.recipe import Recipe

    try:
        Recipe.load(path)
    except AscendtuneError as error:
        return error.remedy if error.code == "not-a-training-recipe" else None
    return None


def _options_in(words: list[str]) -> dict[str, str]:
    """`--name value`, `--name=value` and `name=value`: the first value; an option without one is true."""
    return {name: value[0] if isinstance(value, list) else value for name, value in _all_options_in(words).items()}


def _all_options_in(words: list[str]) -> dict[str, str | list[str]]:
    """`_options_in`, with all the values of an option."""
    options: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, separator, value = word[2:].partition("=")
            name = name.replace("-", "_")
            options[name] = [value] if separator else []
            name = "" if separator else name
        elif name and ("=" not in word or not options[name]):
            options[name].append(word)
        elif "=" in word:
            key, _, value = word.partition("=")
            options[key] = [value]
    return {name: value if len(value) > 1 else (value or ["true"])[0] for name, value in options.items()}


def option_remedy(option: str, words: list[str]) -> str | None:
    """The replacement for an option that is a recipe key, here or in another tool; None for other options.

    Args:
        words: the command line, in which the option may have a value.
    """
    from ascendtune.recipe.other_commands import overrides_of
    from ascendtune.recipe.other_names import native_key, native_overrides

    name = option.lstrip("-").replace("-", "_")
    values = _options_in(words)
    if words and words[0] in ("chat", "generate", "merge"):
        return _with_models(words[0], values)
    if "model_name_or_path" in values and {"stage", "do_train"} & set(values):
        return (
            "write these options into a file, a line `key: value` for each, and give that: ascendtune train FILE.yaml"
        )
    if words and words[0] == "train" and set(_MODELS) & set(values) and _configuration_in(words, values) is None:
        return _training_with("train", words[1:], None)
    if name in ("config", "config_file"):
        return "give the recipe without an option: ascendtune train RECIPE"
    if name in ("resume", "resume_from_checkpoint"):
        return "the same command resumes from the newest checkpoint; for another one: checkpoint.resume=PATH"
    if name in ("push_to_hub", "hub_model_id", "push_to_hub_model_id"):
        named = next((each for each in (values.get("hub_model_id"), values.get(name)) if each and "/" in each), None)
        return f"after the training: {shlex.join(['ascendtune', 'push', 'RUN', named or 'OWNER/NAME'])}"
    value = values.get(name, "")
    if overrides := native_overrides(name, value) or overrides_of(name, value):
        return f"keys of the recipe are written without dashes: {overrides}"
    key = name if "." in name else native_key(name)
    if not key:
        return None
    key = key.split(", ")[0]
    # Other values may have other names here.
    is_number = key == name and re.fullmatch(r"[\d.]+(e-?\d+)?", value)
    is_same = is_number or (key in ("run_dir", "model.path") and value != "true")
    shown = shlex.quote(value) if value and is_same else "VALUE"
    return f"keys of the recipe are written without dashes: {key}={shown}"
