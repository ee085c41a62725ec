"""Values of other tools' options as native keys and values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ascendtune.recipe import other_command_names as command_names
from ascendtune.recipe.other_names import native_key


def plain(value: Any) -> Any:
    """A value of a command line as YAML would parse it."""
    if isinstance(value, str) and value.lower() in ("true", "false", "none", "null"):
        return {"true": True, "false": False}.get(value.lower())
    return value


def translated(name: str, value: Any, stage: str | None, rate: Any = None) -> dict[str, Any] | None:
    """Native keys and values for one option; None if it has none.

    Args:
        rate: the highest learning rate, if it is known.
    """
    if name == "deepspeed" and isinstance(value, str):
        of_file = {"parallel.strategy": "deepspeed", "parallel.deepspeed.config": value}
        return command_names.ZERO.get(value) or (of_file if value.endswith(".json") else None)
    if name in ("fsdp", "fsdp_config"):
        return _of_fsdp(value)
    if name == "loss_type":
        return _of_loss_type(value, stage)
    if name in ("lr_scheduler_kwargs", "min_lr"):
        share = _lowest_share(value if name == "lr_scheduler_kwargs" else {name: value}, rate)
        return None if share is None else {"optim.min_learning_rate_ratio": share}
    if name in command_names.CHOICES:
        return command_names.CHOICES[name] if value else None
    key = command_names.KEYS[name] if name in command_names.KEYS else native_key(name)
    if not key or "," in key:
        return None
    if key == "data.eval_fraction" and is_count(value):
        key = "data.eval_rows"
    if key in ("optim.max_steps", "checkpoint.keep") and is_number(value) and float(value) <= 0:
        return {}
    if key == "optim.max_grad_norm" and is_number(value) and not float(value):
        return {key: "null"}
    if key == "optim.warmup_steps" and is_number(value) and float(value) < 1:
        # 0 does not replace a warmup_ratio.
        return {"optim.warmup_ratio": value} if float(value) else {}
    native = _value(key, value)
    return None if native is None else {key: native}


def _value(key: str, value: Any) -> Any:
    """The value as it is written on the command line; None if it is not valid for the native key."""
    if key in command_names.SWITCHES:
        return "true" if value else "false"
    if key in command_names.LISTS:
        names = value if isinstance(value, list) else [value]
        if names in (["all-linear"], ["all"]):
            return "all-linear"
        return listed(names) if all(isinstance(each, str) and each.isidentifier() for each in names) else None
    if key == "optim.scheduler":
        return command_names.SCHEDULERS.get(str(value))
    if key == "data.on_long_row":
        return command_names.LONG_ROWS.get(str(value))
    if key == "optim.optimizer":
        return command_names.OPTIMIZERS.get(str(value))
    if key in command_names.COUNTS:
        return int(float(value)) if is_count(value) else None
    return value if is_number(value) and key.partition(".")[0] in command_names.SECTIONS else None


def _lowest_share(options: Any, rate: Any) -> float | None:
    """The lowest learning rate as a share of the highest, `rate`, from options of transformers' schedules."""
    if isinstance(options, str):
        with suppress(ValueError):
            options = json.loads(options)
    if not isinstance(options, dict) or len(options) != 1 or not all(map(is_number, options.values())):
        return None
    if "min_lr_rate" in options:
        return float(options["min_lr_rate"])
    if "min_lr" not in options or not is_number(rate) or not float(rate):
        return None
    # Decimal fractions have no exact quotient: 1e-6 / 1e-4 is 0.009999999999999998.
    return round(float(options["min_lr"]) / float(rate), 12)


def _of_loss_type(value: Any, stage: str | None) -> dict[str, Any] | None:
    names = value if isinstance(value, list) else [value]
    if names in (["nll"], ["chunked_nll"]):
        return {}
    if names == ["dft"] and stage != "preference":
        return {"method.sft.loss": "dft"}
    return {"method.preference.loss": names[0]} if len(names) == 1 and names[0] in command_names.LOSSES else None


def _of_fsdp(value: Any) -> dict[str, Any]:
    """Translate `fsdp`, words such as `full_shard auto_wrap` or ms-swift's name of a file, or `fsdp_config`."""
    if isinstance(value, dict):
        offloads = any(value.get(key) is True for key in ("offload_params", "fsdp_offload_params"))
    else:
        words = value if isinstance(value, list) else str(value).split()
        offloads = "offload" in words
        if "no_shard" in words:
            return {"parallel.strategy": "ddp"}
    return {"parallel.strategy": "fsdp", **({"parallel.fsdp.offload": "true"} if offloads else {})}


def precision_of(values: Mapping[str, Any]) -> str | None:
    for name in ("bf16", "fp16"):
        if values.get(name) is True:
            return name
    return command_names.TYPES.get(str(values.get("torch_dtype"))) if "dataset" in values else None


def listed(names: list[str]) -> str:
    return f"[{','.join(names)}]"


def is_count(value: Any) -> bool:
    """Whether the value is a whole number above 0, also as text."""
    return is_number(value) and float(value) >= 1 and float(value).is_integer()


def is_number(value: Any) -> bool:
    """Whether the value is a number, also as text."""
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return isinstance(value, int | float | str) and not isinstance(value, bool)
