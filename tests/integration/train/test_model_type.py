"""The table of model types that are refused before anything starts holds those that a trial on a small copy refuses."""

from __future__ import annotations

from typing import Any

import pytest

from ascendtune.train.attention.choice import AttentionSupport, find_support
from ascendtune.train.attention.model_type import (
    ENCODERS,
    NEVER_CAUSAL,
    PICKS_KEYS,
    ROWS_ALONE,
    SEES_LATER_TOKENS,
    SPARSE,
)
from ascendtune.train.attention.proof import lm_values
from families.configs import tiny_config


def support_of(config: Any) -> AttentionSupport:
    from transformers import AutoModelForCausalLM

    def make(small: Any, implementation: str) -> Any:
        return AutoModelForCausalLM.from_config(small, attn_implementation=implementation)

    names = ["sdpa", "eager"]
    return find_support(config, make, lm_values, table_names=names, own=names, must_be_causal=True)


@pytest.mark.parametrize("name", sorted(ENCODERS | NEVER_CAUSAL))
def test_types_that_see_later_tokens_are_those_of_a_trial(name: str) -> None:
    config = tiny_config(name)
    config.is_decoder = False
    assert support_of(config).refused == SEES_LATER_TOKENS
    if name in ENCODERS:
        config.is_decoder = True
        assert support_of(config).refused is None


@pytest.mark.parametrize("name", sorted(SPARSE | set(ROWS_ALONE)))
def test_types_whose_rows_cannot_be_padded_are_those_of_a_trial(name: str) -> None:
    support = support_of(tiny_config(name))
    assert not support.padded
    assert (support.why_padded == PICKS_KEYS) == (name in SPARSE)
