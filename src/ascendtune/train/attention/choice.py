"""Which attention a run takes, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ascendtune.core.errors import RecipeError
from ascendtune.recipe.sections import ModelSection
from ascendtune.train.attention.interface import register
from ascendtune.train.attention.model_type import cannot_train
from ascendtune.train.attention.proof import decoder_values, lm_values
from ascendtune.train.attention.verdict import Verdict, find_verdict, remembered
from ascendtune.train.model import class_of

# What compute the same function as another of the table, on their devices.
_STANDS_FOR = {"sdpa_fp32": "sdpa", "varlen": "sdpa", "npu_fusion": "sdpa"}


@dataclass(frozen=True)
class AttentionChoice:
    name: str
    """Of the attention table, or `transformers_sdpa`, `transformers_eager`: the model's own."""
    reason: str
    verdict: Verdict

    @property
    def is_own(self) -> bool:
        """Whether the model makes its masks itself: it must be told which tokens are padding."""
        return self.verdict.own

    def implementation(self) -> str:
        """What to give transformers as `attn_implementation`.

        Raises:
            MachineError: it needs a package that is not here.
        """
        return self.verdict.attention if self.is_own else register(self.name)


def choose_attention(section: ModelSection, stage: str, config: Any, device_default: str) -> AttentionChoice:
    """The first attention that computes this model.

    `auto` tries ours for the device, then the model's own. A name is tried as ours, then as the model's own of the same
    name, which `sdpa` and `eager` alone have.

    Raises:
        RecipeError: the one that is asked for does not compute this model, the model cannot learn to predict tokens, or
            it has no class with a score for stage reward.
    """
    if stage == "reward":
        _require_class_with_score(section, config)
    wanted = section.attention
    if wanted == "auto":
        ours, own = ["sdpa", "eager"], ["sdpa", "eager"]
    elif wanted in _STANDS_FOR:
        ours, own = [_STANDS_FOR[wanted]], []
    else:
        ours, own = [wanted], [wanted]

    def find() -> Verdict:
        kind = class_of(stage)

        def make(small: Any, implementation: str) -> Any:
            return kind.from_config(
                small, attn_implementation=implementation, trust_remote_code=section.trust_remote_code
            )

        values = decoder_values if stage == "reward" else lm_values
        return find_verdict(config, make, values, ours=ours, own=own, must_be_causal=stage != "reward")

    brings_code = section.trust_remote_code and hasattr(config, "auto_map")
    # Code that a model brings has no version.
    verdict = find() if brings_code else remembered([config.to_dict(), stage == "reward", ours, own], find)
    if verdict.refused is not None:
        if wanted != "auto":
            raise RecipeError(
                f"model.attention: {wanted} does not compute this model: {verdict.refused}",
                code="attention-not-equal",
                remedy="set model.attention: auto",
            )
        raise cannot_train(config.model_type, verdict.refused)
    if verdict.own:
        return AttentionChoice(
            f"transformers_{verdict.attention}", f"ours does not compute this model: {verdict.reason}", verdict
        )
    if wanted != "auto":
        return AttentionChoice(wanted, "as asked", verdict)
    if verdict.attention != "sdpa":
        return AttentionChoice(
            verdict.attention, f"the fused one does not compute this model: {verdict.reason}", verdict
        )
    return AttentionChoice(device_default, "fused attention of this device", verdict)


def _require_class_with_score(section: ModelSection, config: Any) -> None:
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

    if type(config) in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING or (
        section.trust_remote_code and hasattr(config, "auto_map")
    ):
        return
    raise RecipeError(
        f"method.stage: reward needs a class with a score, which transformers does not have for {config.model_type}",
        code="no-class-with-score",
        remedy="choose a model that transformers' AutoModelForSequenceClassification loads",
    )
