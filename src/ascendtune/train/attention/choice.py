"""Selects the attention of a run, with the reason: tested on a small copy of the model, and cached."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ascendtune.core.directories import cache_directory
from ascendtune.core.errors import AscendtuneError, MachineError, RecipeError
from ascendtune.core.files import write_atomically
from ascendtune.recipe.sections import ModelSection
from ascendtune.train.attention.interface import register
from ascendtune.train.attention.model_type import PICKS_KEYS, SEES_LATER_TOKENS, cannot_train, picks_keys
from ascendtune.train.attention.proof import AttentionTrial, Make, NotComparable, decoder_values, lm_values
from ascendtune.train.model import auto_class

# Functions that compute the same as another one of the table, on their devices.
_SAME_AS = {"sdpa_fp32": "sdpa", "varlen": "sdpa", "npu_fusion": "sdpa"}


@dataclass(frozen=True)
class AttentionSupport:
    """The attention that computes the models of a config correctly, and the batches that it supports."""

    attention: str
    """`sdpa` or `eager`; the devices' fused functions compute the same as `sdpa`."""
    own: bool = False
    """Whether it is transformers' attention with the model's own masks; otherwise this project's."""
    packed: bool = False
    """Whether documents may share a sequence."""
    padded: bool = True
    """Whether rows of different lengths may share a batch."""
    reason: str | None = None
    """Reason why it is not the attention that was tried first."""
    why_padded: str | None = None
    """Reason why documents must not share a sequence."""
    refused: str | None = None
    """Reason why the model cannot be trained at all."""
    without_gradient: list[str] = field(default_factory=list)
    """Parameters without a gradient from any token, with stars for numbers."""


@dataclass(frozen=True)
class AttentionChoice:
    name: str
    """Name in the attention table, or `transformers_sdpa` or `transformers_eager` for the model's own."""
    reason: str
    support: AttentionSupport

    @property
    def is_own(self) -> bool:
        """Whether the model makes its own masks: then it needs an attention mask, which marks padding."""
        return self.support.own

    def implementation(self) -> str:
        """The value of transformers' `attn_implementation`.

        Raises:
            MachineError: it needs a package that is not installed.
        """
        return self.support.attention if self.is_own else register(self.name)


def choose_attention(section: ModelSection, stage: str, config: Any, device_default: str) -> AttentionChoice:
    """Select the first attention that computes this model correctly.

    `auto` tries this project's for the device, then the model's own. A name is tried as this project's, then as the
    model's own of the same name; only `sdpa` and `eager` have one.

    Args:
        device_default: the choice of `auto` on this device.

    Raises:
        MachineError: the requested attention is an operator that this device lacks.
        RecipeError: the requested attention does not compute this model, the model cannot learn to predict tokens, or
            it has no class with a score head for stage reward.
    """
    if section.attention == "npu_fusion" != device_default:
        raise MachineError(
            "model.attention: npu_fusion is an operator of Ascend NPUs from the 910B on, and this device has none",
            code="attention-not-on-device",
            remedy="set model.attention: auto",
        )
    if stage == "reward":
        _require_class_with_score(section, config)
    else:
        _require_causal_class(section, config)
    requested = section.attention
    if requested == "auto":
        table_names, own = ["sdpa", "eager"], ["sdpa", "eager"]
    elif requested in _SAME_AS:
        table_names, own = [_SAME_AS[requested]], []
    else:
        table_names, own = [requested], [requested]

    def find() -> AttentionSupport:
        kind = auto_class(stage)

        def make(small: Any, implementation: str) -> Any:
            return kind.from_config(
                small, attn_implementation=implementation, trust_remote_code=section.trust_remote_code
            )

        values = decoder_values if stage == "reward" else lm_values
        return find_support(config, make, values, table_names=table_names, own=own, must_be_causal=stage != "reward")

    brings_code = section.trust_remote_code and hasattr(config, "auto_map")
    # Code that a model brings has no version, so results for it are not cached.
    support = find() if brings_code else cached_support([config.to_dict(), stage == "reward", table_names, own], find)
    if support.refused is not None:
        if requested != "auto":
            raise RecipeError(
                f"model.attention: {requested} does not work with this model: {support.refused}",
                code="attention-not-equal",
                remedy="set model.attention: auto",
            )
        raise cannot_train(config.model_type, support.refused)
    if support.own:
        return AttentionChoice(
            f"transformers_{support.attention}", f"ascendtune's does not compute this model: {support.reason}", support
        )
    if requested != "auto":
        return AttentionChoice(requested, "as asked", support)
    if support.attention != "sdpa":
        return AttentionChoice(
            support.attention, f"the fused one does not compute this model: {support.reason}", support
        )
    return AttentionChoice(device_default, "fused attention of this device", support)


def _require_class_with_score(section: ModelSection, config: Any) -> None:
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

    if type(config) in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING or (
        section.trust_remote_code and hasattr(config, "auto_map")
    ):
        return
    raise RecipeError(
        f"method.stage: reward needs a class with a score head, and transformers has none for {config.model_type}",
        code="no-class-with-score",
        remedy="choose a model that transformers' AutoModelForSequenceClassification loads",
    )


def _require_causal_class(section: ModelSection, config: Any) -> None:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    types = {type(config), type(config.get_text_config(decoder=True))}
    if any(each in MODEL_FOR_CAUSAL_LM_MAPPING for each in types) or (
        section.trust_remote_code and hasattr(config, "auto_map")
    ):
        return
    raise cannot_train(config.model_type, "transformers has no causal language model of this type")


def cached_support(key: object, find: Callable[[], AttentionSupport]) -> AttentionSupport:
    """Return the cached result of an earlier start for the same `key`, or that of `find`.

    Args:
        key: plain values that determine the result, beside the versions of the code.
    """
    decisive = json.dumps([key, _versions()], sort_keys=True, default=str)
    file = cache_directory() / "attention" / f"{hashlib.sha256(decisive.encode()).hexdigest()}.json"
    if (cached := _read(file)) is not None:
        return cached
    support = find()
    # Without a cache entry the next start runs the trials again.
    with suppress(OSError, AscendtuneError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(asdict(support)))
    return support


def find_support(
    config: Any,
    make: Make,
    values_of: Callable[[Any, dict[str, Any]], torch.Tensor],
    *,
    table_names: Sequence[str],
    own: Sequence[str],
    must_be_causal: bool,
) -> AttentionSupport:
    """Try attentions on a small copy of the model, first this project's, then the model's own.

    Args:
        table_names: names in the attention table, in the order in which they are tried.
        own: names of transformers' attentions.
        must_be_causal: whether the model is trained to predict the next token.
    """
    try:
        trial = AttentionTrial(config, make, values_of)
    except NotComparable as error:
        why = f"small copies of it could not be compared: {error}"
        if not own:
            return AttentionSupport(table_names[0], refused=why)
        own_name = "eager" if "eager" in own else own[0]
        return AttentionSupport(own_name, own=True, padded=False, reason=why, why_padded=why)
    if must_be_causal and not trial.is_causal():
        return AttentionSupport(table_names[0], refused=SEES_LATER_TOKENS)
    silent = trial.without_gradient()
    reason: str | None = None
    for name in table_names:
        difference = trial.difference_padded(register(name), masked=False)
        if difference is None:
            of_packing = trial.difference_packed(register(name))
            is_packed = of_packing is None
            return AttentionSupport(
                name, packed=is_packed, reason=reason, why_padded=of_packing, without_gradient=silent
            )
        reason = reason or difference
    of_padding: str | None = None
    for name in own:
        of_padding = trial.difference_padded(name, masked=True)
        if of_padding is None and picks_keys(config.get_text_config().to_dict()):
            # Only some rows show it, so a trial may miss it.
            of_padding = PICKS_KEYS
        if of_padding is None:
            return AttentionSupport(name, own=True, reason=reason, why_padded=reason, without_gradient=silent)
    if "eager" not in own:
        # The attention that was requested by name does not compute this model.
        return AttentionSupport(table_names[0], refused=reason)
    # On single rows eager attention is the reference of the trials itself.
    return AttentionSupport(
        "eager", own=True, padded=False, reason=reason, why_padded=of_padding, without_gradient=silent
    )


def _versions() -> list[str]:
    # The code of this room influences the result, too.
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return [version("transformers"), torch.__version__, digest.hexdigest()]


def _read(file: Path) -> AttentionSupport | None:
    """The result stored in `file`; None if another user may have written it."""
    try:
        for place in (file, file.parent):
            status = place.stat()
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return None
        return AttentionSupport(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None
