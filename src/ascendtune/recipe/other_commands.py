"""Commands for the same training as a configuration of axolotl, TRL or ms-swift."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ascendtune.core.errors import RecipeError
from ascendtune.recipe import other_command_names as command_names
from ascendtune.recipe.other_data_sets import data_sets, left_out_of_data, text_column
from ascendtune.recipe.other_values import is_count, is_number, listed, plain, precision_of, translated


@dataclass(frozen=True)
class NativeCommands:
    """The two commands, and the parts of a configuration that they do not express."""

    init: str
    train: str
    left_out: tuple[str, ...]
    """Names in the configuration whose values are in neither command."""
    remarks: tuple[str, ...] = ()
    """Notes where equal values have another effect there, or where the effect depends on rows, which are not known
    here."""

    def __str__(self) -> str:
        rest = f"; left out: {', '.join(self.left_out)}" if self.left_out else ""
        return "; ".join((f"{self.init}, then {self.train}{rest}", *self.remarks))


@dataclass(frozen=True)
class _Training:
    """The training that the other tool would do."""

    tool: str | None
    stage: str | None
    is_adapted: bool
    has_dropout: bool


_REPLACED = {"optim.max_steps": "optim.epochs", "optim.warmup_steps": "optim.warmup_ratio"}
"""Key -> the key that it replaces."""


def tool_of(values: Mapping[str, Any]) -> str | None:
    """The tool that a configuration belongs to: axolotl, TRL or ms-swift; None for others."""
    keys = set(values)
    marks = {"datasets", "pretraining_dataset", "sequence_len", "micro_batch_size", "sample_packing"}
    if "base_model" in keys and keys & marks:
        return "axolotl"
    if "model_name_or_path" in keys and keys & {"dataset_name", "dataset_mixer", "datasets"}:
        return "TRL"
    if "dataset" in keys and (isinstance(values.get("model"), str) or "sft_type" in keys):
        return "ms-swift"
    return None


def native_commands(values: Mapping[str, Any], tool: str | None, stage: str | None = None) -> NativeCommands:
    """`ascendtune init …` and `ascendtune train …` for the values of another tool's configuration.

    Args:
        tool: the tool whose defaults apply to missing values; None: the defaults of `init`.
        stage: the stage, if a command of the other tool names it.

    Raises:
        RecipeError: the other tool's method is not supported.
    """
    given = {name: plain(value) for name, value in values.items()}
    switched_off = {name for name, value in given.items() if value is False}
    # 0 is a value, unlike other false ones; values that the tool or the tokenizer decides are decided here, too.
    decided = ("auto", "tokenizer_default")
    given = {name: value for name, value in given.items() if value not in decided and (value or is_number(value))}
    loss = _loss_of(given)
    data = next((given[name] for name in command_names.DATA if name in given), None)
    stage = command_names.STAGES.get(loss or "") or _implied_stage(given, data) or stage
    has_dropout = stage not in ("preference", "reward") or "disable_dropout" in switched_off
    training = _Training(tool, stage, _is_adapted(given, tool), has_dropout)
    if (task := given.get("task_type", "causal_lm")) != "causal_lm" and stage != "reward":
        raise _unsupported("task_type", task, "only text is generated here; method.stage: reward scores answers")
    sets = data_sets(data)
    if len(sets) == 1:
        own = {"subset": given.get("dataset_config"), "split": given.get("dataset_train_split")}
        sets = [{key: value for key, value in own.items() if value not in (None, "train")} | sets[0]]
    requested, left_out = _requested(given, stage)
    requested = dict(key for name, key in command_names.VALUES_IF_OFF.items() if name in switched_off) | requested
    if training.is_adapted and _is_quantised(given) and requested.get("parallel.strategy") != "deepspeed":
        requested["model.quantization"] = "nf4"
        # TRL's own default is off, that of the others on.
        if given.get("use_bnb_nested_quant", given.get("bnb_4bit_use_double_quant", tool != "TRL")):
            requested["model.double_quantization"] = "true"
        left_out = [name for name in left_out if name not in command_names.QUANTISATION]
    left_out += [name for name in command_names.ON_BY_DEFAULT if name in switched_off] + left_out_of_data(data)
    if tool == "TRL" and given.get("eval_strategy", "no") != "no":
        left_out.append("eval_strategy")
    for number, each in enumerate(sets):
        of_set = {**each, "system": given["system"]} if "system" in given else each
        requested |= {f"data.train.{number}.{key}": value for key, value in of_set.items() if key != "path"}
    if loss in command_names.PREFERENCES - {"dpo"}:
        requested["method.preference.loss"] = loss
    requested = _without_replaced(requested, training)
    defaults = _defaults(requested, training)
    if unlimited := [name for name in ("max_length", "max_seq_length") if name in values and name not in given]:
        # null: no row is cut there, whatever the tool's default is.
        defaults.pop("data.max_length", None)
        left_out += unlimited
    requested |= {key: value for key, value in defaults.items() if key not in requested}
    if isinstance(directory := given.get("output_dir"), str):
        requested["run_dir"] = directory
    changes = [
        f"{key}={requested[key]}"
        for key in sorted(requested, key=lambda key: command_names.SECTIONS.index(key.partition(".")[0]))
    ]
    return NativeCommands(
        shlex.join(_init_words(given, [each["path"] for each in sets], text_column(data), training)),
        shlex.join(["ascendtune", "train", "recipe.yaml", *changes]),
        tuple(left_out),
        tuple(_remarks(requested, given, tool, stage)),
    )


def _init_words(values: Mapping[str, Any], paths: list[str], column: str | None, training: _Training) -> list[str]:
    model = next((values[name] for name in command_names.MODEL if isinstance(values.get(name), str)), None)
    words = ["ascendtune", "init", "--model", str(model or values.get("model_type", "MODEL"))]
    for path in paths or ["DATA"]:
        words += ["--data", path]
    words += ["--stage", training.stage] if training.stage is not None else []
    words += ["--columns", f"text={column}"] if column not in (None, "text") else []
    return [*words, "--tuner", "lora"] if training.is_adapted else words


def _remarks(
    requested: Mapping[str, Any], given: Mapping[str, Any], tool: str | None, stage: str | None
) -> Iterator[str]:
    if requested.get("optim.optimizer") == "adafactor":
        yield (
            "adafactor: a step here is learning_rate times the size of the weight that moves, there learning_rate "
            "alone, so the same value trains more slowly here"
        )
    if "global_batch_size" in given:
        yield "batch.accumulate is that of one device: divide it by the number of devices"
    if tool == "ms-swift" and any(key.endswith(".limit") for key in requested):
        yield "limit takes the first rows; ms-swift draws them at random"
    if tool == "TRL" and stage in (None, "sft") and "data.loss_on" not in requested:
        yield "if rows have `messages`, add data.loss_on=all: TRL trains on questions, too"
    if tool == "TRL" and stage != "pretrain":
        yield (
            "where prompts are plain text, add data.template=plain, which puts a line break behind them: TRL uses no "
            "chat template then"
        )


def overrides_of(name: str, value: str) -> str | None:
    """`key=value` for an option of another tool; None if there is no such key, or the value is not valid for it."""
    translation = translated(name, plain(value), None)
    return shlex.join(f"{key}={each}" for key, each in translation.items()) if translation else None


def _loss_of(values: Mapping[str, Any]) -> str | None:
    """The loss that `rl` or `rlhf_type` names.

    Raises:
        RecipeError: it is not supported.
    """
    for name in ("rl", "rlhf_type"):
        if (loss := values.get(name)) is not None:
            if str(loss) not in command_names.STAGES:
                raise _unsupported(
                    name, loss, "method.stage: preference is the nearest, with its losses sigmoid (DPO), kto, orpo, "
                    "simpo, ipo and hinge",
                )  # fmt: skip
            return str(loss)
    return None


def _unsupported(name: str, value: Any, remedy: str) -> RecipeError:
    return RecipeError(f"{name}: {value} is not supported in this version", code="not-in-this-version", remedy=remedy)


def _implied_stage(values: Mapping[str, Any], data: Any) -> str | None:
    if "pretraining_dataset" in values or text_column(data):
        return "pretrain"
    if "reward_model" in values and "base_model" in values:
        return "reward"
    losses = values.get("loss_type")
    named = losses if isinstance(losses, list) else [losses]
    return "preference" if "beta" in values or any(loss in command_names.LOSSES for loss in named) else None


def _is_adapted(values: Mapping[str, Any], tool: str | None) -> bool:
    """Whether a LoRA is trained.

    Raises:
        RecipeError: neither a LoRA nor all weights.
    """
    kinds = {name: values[name] for name in ("adapter", "train_type", "tuner_type", "sft_type") if name in values}
    for name, kind in kinds.items():
        if kind not in ("lora", "qlora", "full"):
            raise _unsupported(name, kind, "lora is the nearest; full trains all weights")
    if tool == "ms-swift" and not kinds:
        # ms-swift's Megatron has the opposite default.
        return "micro_batch_size" not in values
    return not {"lora", "qlora"}.isdisjoint(kinds.values()) or values.get("use_peft") is True


def _is_quantised(values: Mapping[str, Any]) -> bool:
    """Whether the base model is quantised to the four-bit type that is supported here."""
    is_four_bit = values.get("load_in_4bit") is True or (
        values.get("quant_method") == "bnb" and str(values.get("quant_bits")) == "4"
    )
    return is_four_bit and values.get("bnb_4bit_quant_type", "nf4") == "nf4"


def _requested(values: Mapping[str, Any], stage: str | None) -> tuple[dict[str, Any], list[str]]:
    """Native key -> value, for names with one native key; and the names of the others."""
    requested: dict[str, Any] = {}
    left_out = []
    for name, value in values.items():
        if (
            name in command_names.EXPRESSED_ELSEWHERE
            or (name.startswith("dataloader_") and name != "dataloader_drop_last")
            or (name in command_names.STEPS and values.get(command_names.STEPS[name], "steps") != "steps")
        ):
            continue
        translation = translated(name, value, stage, values.get("learning_rate", values.get("lr")))
        requested |= translation or {}
        # 0 usually switches an option off; the contents of FSDP's file are not read.
        if (translation is None and value != 0) or (name == "fsdp" and str(value).endswith(".json")):
            left_out.append(name)
    if values.get("lora_target_linear") is True:
        # In axolotl the modules of lora_target_modules are added to these.
        requested["method.lora.target"] = "all-linear"
    if (precision := precision_of(values)) is not None:
        requested["precision"] = precision
    if evaluation := next((data_sets(values[name]) for name in command_names.EVALUATION if name in values), None):
        requested["data.eval"] = (
            evaluation[0]["path"] if len(evaluation) == 1 else listed([e["path"] for e in evaluation])
        )
    batch, micro = values.get("batch_size", 0), values.get("micro_batch_size", 0)
    if is_count(batch) and is_count(micro):
        # axolotl's batch_size counts all micro-batches of a step on one device.
        requested["batch.per_device"] = int(float(micro))
        if "gradient_accumulation_steps" not in values:
            requested["batch.accumulate"] = max(int(float(batch)) // requested["batch.per_device"], 1)
    if is_count(whole := values.get("global_batch_size", 0)):
        # Megatron's counts those of all devices.
        requested["batch.accumulate"] = math.ceil(float(whole) / requested.get("batch.per_device", 1))
        left_out.remove("global_batch_size")
    if "constant" in (values.get("lr_scheduler"), values.get("lr_scheduler_type")):
        # The constant schedule of transformers has no warm-up.
        requested = {key: value for key, value in requested.items() if not key.startswith("optim.warmup")}
        requested["optim.warmup_ratio"] = 0
    return requested, left_out


def _without_replaced(requested: Mapping[str, Any], training: _Training) -> dict[str, Any]:
    """`requested` without keys that have no effect, or that another key replaces."""
    unwanted = {key for key in requested if key.startswith("method.lora.") and not training.is_adapted}
    if training.stage not in (None, "sft"):
        unwanted.add("data.loss_on")
    if training.stage in ("preference", "reward"):
        unwanted.add("data.packing")
    unwanted |= {replaced for key, replaced in _REPLACED.items() if key in requested}
    kept = {key: value for key, value in requested.items() if key not in unwanted}
    if "data.eval_rows" in kept or "data.eval" in kept:
        kept["data.eval_fraction"] = 0
    elif not float(kept.get("data.eval_fraction", 0)):
        kept.pop("eval.every_steps", None)
    if training.tool is not None and not training.has_dropout:
        # TRL's trainers of pairs and single answers, which the others use, also switch off dropout of adapters.
        kept.pop("method.lora.dropout", None)
    return kept


def _defaults(requested: Mapping[str, Any], training: _Training) -> dict[str, Any]:
    """The tool's defaults for keys that its configuration does not set."""
    tool, stage = training.tool, training.stage
    if tool is None:
        return {}
    defaults = command_names.ALWAYS | command_names.DEFAULTS[tool]
    if not training.has_dropout:
        defaults["method.lora.dropout"] = 0
    if stage in (None, "sft"):
        defaults["data.packing"] = "false"
    if tool == "TRL":
        defaults["optim.learning_rate"] = command_names.TRL_RATES.get(stage or "", "2e-5")
        if stage == "reward":
            defaults["data.on_long_row"] = "drop"
    if tool == "ms-swift":
        defaults["optim.learning_rate"] = "1e-4" if training.is_adapted else "1e-5"
        # The default of a training on one device.
        defaults["batch.accumulate"] = math.ceil(16 / requested.get("batch.per_device", 1))
    if requested.get("method.preference.loss") == "simpo":
        defaults["method.preference.sft_weight"] = 1
        if tool == "ms-swift":
            defaults |= {"method.preference.beta": 2, "method.preference.simpo_gamma": 1}
    if stage == "pretrain":
        defaults.pop("data.on_long_row", None)
    replaced = {replaced for key, replaced in _REPLACED.items() if key in requested}
    return {
        key: value
        for key, value in defaults.items()
        if key not in replaced and (training.is_adapted or not key.startswith("method.lora."))
    }
