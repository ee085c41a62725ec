"""Which attention a run takes, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ascendtune.core.errors import RecipeError
from ascendtune.recipe.sections import ModelSection
from ascendtune.train.attention.interface import register
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
    """The first attention that computes this model: ours as asked or for the device, else the model's own.

    Raises:
        RecipeError: the one that is asked for does not, or the model cannot learn to predict tokens.
    """
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
                remedy="set model.attention: auto",
            )
        raise RecipeError(
            f"{config.model_type} cannot be trained here: {verdict.refused}",
            remedy="choose a decoder model; a BERT-like one is one with is_decoder: true in its config.json",
        )
    if verdict.own:
        return AttentionChoice(f"transformers_{verdict.attention}", f"not ours: {verdict.reason}", verdict)
    if wanted != "auto":
        return AttentionChoice(wanted, "as asked", verdict)
    if verdict.attention != "sdpa":
        return AttentionChoice(verdict.attention, f"not the fused one: {verdict.reason}", verdict)
    return AttentionChoice(device_default, "fused attention of this device", verdict)
