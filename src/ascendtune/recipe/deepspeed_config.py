"""The DeepSpeed configuration: from the recipe's keys, or from a user's own JSON.

The loop, its schedule and its optimizer are ascendtune's: DeepSpeed shards, gathers, scales fp16 losses and clips. A
value in the JSON that differs from the recipe is an error that names both.
"""

from __future__ import annotations

import importlib.util
import json
import logging
from pathlib import Path
from typing import Any

from ascendtune.core.document import Document, read_document
from ascendtune.core.errors import MachineError, RecipeError, combined_error
from ascendtune.core.foreign_json import value_at
from ascendtune.core.suggest import did_you_mean
from ascendtune.recipe.deepspeed_keys import KNOWN, PASSED_ON, REPLACED, REQUIRED, UNSUPPORTED, is_comment
from ascendtune.recipe.other_names import native_key
from ascendtune.recipe.parallel import STAGE_0_REMEDY, STAGE_0_ROUNDS, offload_fault
from ascendtune.recipe.recipe import Recipe

AUTO = "auto"
_IMPOSSIBLE = "invalid-value"
Config = dict[str, Any]
OFFLOADED = ("offload_optimizer", "offload_param")

_OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd"}


def zero_config(recipe: Recipe, *, compute: str | None, ranks: int | None, hidden_size: int | None) -> Config:
    """The dictionary for `deepspeed.initialize`.

    Args:
        compute: fp32, bf16 or fp16; None before a device is known: values that depend on it are then not compared.
        ranks: likewise.
        hidden_size: hidden size of the model; bucket sizes that are `auto` are derived from it, as in transformers.

    Raises:
        RecipeError: the JSON cannot be read or contradicts the recipe.
    """
    section = recipe.parallel.deepspeed
    if section.config is None:
        config: Config = {"zero_optimization": _zero_section(recipe)}
    else:
        document = read_document(Path(section.config), "DeepSpeed JSON")
        _Comparison(document, recipe, compute, ranks).check()
        # DeepSpeed refuses some sections even if they are off, and fails on "auto" and null.
        passed = {key: value for key, value in document.values.items() if key in PASSED_ON}
        config = {key: value for key, value in passed.items() if value not in (None, AUTO)}
    for name in ("bf16", "fp16"):
        section = config.get(name, {})
        options = {key: value for key, value in section.items() if key != "auto_cast" and value != AUTO}
        config[name] = {**options, "enabled": compute == name}
    # Skip, rather than apply, a step with a NaN gradient; DeepSpeed does so by itself with the other types.
    config["bf16"]["check_grad_overflow"] = True
    zero = config.setdefault("zero_optimization", {})
    _fill_buckets(zero, hidden_size)
    if "round_robin_gradients" in zero:
        # It only affects speed. DeepSpeed 0.19 then reorders weights in its buffers, and returns those of another
        # parameter when one is read: the exported model would be a mixture.
        zero["round_robin_gradients"] = False
    return {
        **config,
        # DeepSpeed's own messages and timers are not printed.
        "steps_per_print": 2**40,
        "train_micro_batch_size_per_gpu": recipe.batch.micro_batch,
        # Our loop determines the last micro-batch; loss and gradients are divided by tokens, not by batches.
        "gradient_accumulation_steps": 1,
        "gradient_clipping": recipe.optim.max_grad_norm or 0.0,
        # Any of torch's optimizers; on the host torch's fused AdamW is as fast as DeepSpeed's, which must be compiled
        # first.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def require_deepspeed() -> None:
    """Raise MachineError if DeepSpeed is not installed."""
    if importlib.util.find_spec("deepspeed") is None:
        raise MachineError(
            "parallel.strategy: deepspeed needs DeepSpeed, which is not installed",
            code="package-missing",
            remedy="pip install 'ascendtune[deepspeed]'; or use parallel.strategy: fsdp, which shards the same state",
        )


def silence_deepspeed() -> None:
    """Reduce DeepSpeed's logger to errors: on import, also by accelerate, it prints about the host to stdout.

    Call this before DeepSpeed is imported: it sets the level of its logger itself, but keeps a filter.
    """
    logging.getLogger("DeepSpeed").addFilter(_is_error)


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def stage_of(config: Config) -> int:
    return int(config.get("zero_optimization", {}).get("stage", 0))


def offloaded_parts(config: Config) -> dict[str, str]:
    """The offloaded ones of `offload_optimizer` and `offload_param` -> `cpu` or `nvme`."""
    zero = config.get("zero_optimization", {})
    devices = {part: (zero.get(part) or {}).get("device") or "none" for part in OFFLOADED}
    return {part: device for part, device in devices.items() if device != "none"}


def parts_on_disk(config: Config) -> list[str]:
    """Those of `offload_optimizer` and `offload_param` that are offloaded to a disk."""
    return [part for part, device in offloaded_parts(config).items() if device == "nvme"]


def _zero_section(recipe: Recipe) -> Config:
    section = recipe.parallel.deepspeed
    zero: Config = {"stage": section.stage}
    for key, device in (("offload_optimizer", section.offload_optimizer), ("offload_param", section.offload_param)):
        if device != "none":
            zero[key] = {"device": device, "pin_memory": True}
            if device == "nvme":
                zero[key]["nvme_path"] = section.nvme_path
    return zero


class _Comparison:
    """Compares a user's JSON with the recipe and with the features that ZeRO supports here."""

    def __init__(self, document: Document, recipe: Recipe, compute: str | None, ranks: int | None) -> None:
        self._document, self._recipe, self._compute, self._ranks = document, recipe, compute, ranks
        self._errors: list[RecipeError] = []

    def check(self) -> None:
        recipe, optim, batch = self._recipe, self._recipe.optim, self._recipe.batch
        self._require_form()
        for section, part in REPLACED.items():
            if self._is_on(section):
                self._contradiction(section, f"replaces {part}")
        for section, feature in UNSUPPORTED.items():
            if self._is_on(section):
                what = f"'{section}': {feature} with DeepSpeed is not supported in this version"
                self._add_error(section, what, "remove it", "not-in-this-version")
        for key, (value, reason) in REQUIRED.items():
            if (value_in_file := self._find(key)) not in (None, AUTO, value):
                what = f"'{key}' is {json.dumps(value_in_file)}, which would change the training: {reason}"
                self._add_error(key, what, f"remove it, or write {json.dumps(value)}", "conflicting-keys")
        self._same("train_micro_batch_size_per_gpu", batch.micro_batch, "batch.per_device")
        self._same("gradient_accumulation_steps", batch.accumulate, "batch.accumulate")
        if self._ranks is not None:
            product = batch.micro_batch * batch.accumulate * self._ranks
            self._same("train_batch_size", product, f"batch.per_device × batch.accumulate × {self._ranks} devices")
        self._same("gradient_clipping", optim.max_grad_norm or 0.0, "optim.max_grad_norm")
        if self._compute is not None:
            for name in ("bf16", "fp16"):
                self._same(f"{name}.enabled", self._compute == name, f"precision ({self._compute})")
        if kind := self._find("optimizer.type"):
            expected = "adamw" if optim.optimizer == AUTO else optim.optimizer
            if kind != AUTO and _OPTIMIZERS.get(str(kind).lower()) != expected:
                self._contradiction("optimizer.type", f"is {kind}, optim.optimizer {optim.optimizer}")
        self._same("optimizer.params.lr", recipe.learning_rate, "optim.learning_rate")
        self._same("optimizer.params.weight_decay", optim.weight_decay, "optim.weight_decay")
        self._same("optimizer.params.eps", optim.epsilon, "optim.epsilon")
        self._same("optimizer.params.max_grad_norm", optim.max_grad_norm or 0.0, "optim.max_grad_norm")
        self._same("optimizer.params.betas", [optim.beta1, optim.beta2], "optim.beta1 and optim.beta2")
        self._require_possible_stage()
        if self._errors:
            raise combined_error(self._errors)

    def _require_form(self) -> None:
        for key in ("zero_optimization", "bf16", "fp16"):
            if not isinstance(self._document.values.get(key, {}), dict):
                self._add_error(key, f"'{key}' is not an object", "write its keys between { and }", _IMPOSSIBLE)
        for section, known in KNOWN.items():
            self._require_known(section, known)
        if "bfloat16" in self._document.values:
            self._add_error("bfloat16", "'bfloat16' is an older name for bf16", 'write "bf16"', _IMPOSSIBLE)
        if self._find("zero_optimization.stage") not in (None, 0, 1, 2, 3):
            self._add_error("zero_optimization.stage", "there is no such ZeRO stage", "write 0, 1, 2 or 3", _IMPOSSIBLE)
        for part, old in zip(OFFLOADED, ("cpu_offload", "cpu_offload_params"), strict=True):
            key = f"zero_optimization.{part}"
            section = self._find(key)
            device = section.get("device") if isinstance(section, dict) else section
            if device not in (None, "none", "cpu", "nvme") or isinstance(section, str):
                what = f"'{key}' is not an object whose device is none, cpu or nvme"
                self._add_error(key, what, 'write {"device": "cpu"}', _IMPOSSIBLE)
            if self._find(f"zero_optimization.{old}"):
                what = f"'zero_optimization.{old}' is an older name for {part}"
                self._add_error(f"zero_optimization.{old}", what, f'write "{part}": {{"device": "cpu"}}', _IMPOSSIBLE)
        if self._errors:
            raise combined_error(self._errors)

    def _require_known(self, section: str, known: frozenset[str]) -> None:
        """Args:
        section: "" for the whole file.
        """
        keys = self._find(section) if section else self._document.values
        if keys in (None, AUTO):
            return
        if not isinstance(keys, dict):
            self._add_error(section, f"'{section}' is not an object", "write its keys between { and }", _IMPOSSIBLE)
            return
        for key in keys:
            if key not in known and not is_comment(key):
                name = f"{section}.{key}" if section else key
                where = f"'{section}' of a DeepSpeed JSON" if section else "a DeepSpeed JSON"
                remedy = did_you_mean(key, sorted(known), otherwise="remove it: it would have no effect")
                if equivalent := native_key(key):
                    remedy = f"remove it: it would have no effect; the recipe's key is {equivalent}"
                self._add_error(name, f"unknown key '{key}' in {where}", remedy, "unknown-deepspeed-key")

    def _require_possible_stage(self) -> None:
        keys = "zero_optimization"
        stage = self._find(f"{keys}.stage") or 0
        devices = {part: self._find(f"{keys}.{part}.device") or "none" for part in OFFLOADED}
        if fault := offload_fault(keys, stage, **devices):
            self._add_error(".".join(map(str, fault.path)), fault.what, fault.remedy, fault.code)
        if stage == 0 and self._recipe.precision in ("bf16", "fp16"):
            self._add_error(f"{keys}.stage", STAGE_0_ROUNDS, STAGE_0_REMEDY, "refused-combination")
        for part, device in devices.items():
            if device == "nvme" and not self._find(f"{keys}.{part}.nvme_path"):
                what, remedy = "offloading to nvme needs a directory", f"set {keys}.{part}.nvme_path"
                self._add_error(f"{keys}.{part}", what, remedy, "recipe-key-missing")

    def _is_on(self, section: str) -> bool:
        """Whether the JSON contains the section and does not switch it off; a size of 1 divides nothing."""
        value = self._find(section)
        if isinstance(value, dict):
            if "." in section:
                # Inside zero_optimization an empty section switches a feature on, with its defaults.
                return True
            return bool(value) and value.get("enabled") not in (False, AUTO) and value.get("autotp_size") not in (0, 1)
        return value is True or (bool(value) and value not in (1, AUTO))

    def _same(self, key: str, expected: Any, name: str) -> None:
        value = self._find(key)
        if value not in (None, AUTO) and value != expected:
            self._contradiction(key, f"is {json.dumps(value)}, {name} {json.dumps(expected)}")

    def _contradiction(self, key: str, what: str) -> None:
        agree = "remove it" if key in REPLACED else 'make them agree, or write "auto": then the recipe\'s value counts'
        self._add_error(key, f"the DeepSpeed JSON contradicts the recipe: '{key}' {what}", agree, "conflicting-keys")

    def _add_error(self, key: str, what: str, remedy: str, code: str) -> None:
        place = self._document.place(tuple(key.split(".")))
        self._errors.append(RecipeError(what, code=code, remedy=remedy, where=place))

    def _find(self, key: str) -> Any:
        return value_at(self._document.values, *key.split("."))


def _fill_buckets(zero: Config, hidden_size: int | None) -> None:
    """Set sizes that are `auto`, by the formulas of transformers' integration; without a hidden size DeepSpeed's
    own."""
    shares = {
        "reduce_bucket_size": (1.0, 2),
        "stage3_prefetch_bucket_size": (0.9, 2),
        "stage3_param_persistence_threshold": (10.0, 1),
    }
    for key, (factor, power) in shares.items():
        if zero.get(key) == AUTO:
            del zero[key]
            if hidden_size is not None:
                zero[key] = int(factor * hidden_size**power)
    # It only decides how transformers saves.
    zero.pop("stage3_gather_16bit_weights_on_model_save", None)
