from __future__ import annotations

import re
import time

import pytest

from ascendtune.hub.module_patterns import may_be_endless

_NAMES = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(3)]


@pytest.mark.parametrize(
    "pattern",
    [
        r"(\w+\.?)+!",
        r"(a|aa)+$",
        r"((\w|\.)+)+!",
        r"(?:\w*)*!",
        r"(?P<x>\w+)*!",
        r"(\w?){40}!",
        r"((?:model|m|o|d|e|l)\.?){2,}!",
        r"(.*)*",
        r".*.*.*.*.*.*!",
        r"(.*)(.*)(.*)((.*)(.*)(.*))!",
        "a" * 20_000,
    ],
)
def test_pattern_that_may_not_end_is_found(pattern: str) -> None:
    assert may_be_endless(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "q_proj",
        r".*\.layers\.(?:1[0-9]|2[0-3])\..*\.(?:q|k|v)_proj",
        r"^(?!.*patch_embed).*(?:model|layers).*(?:q_proj|k_proj).*",
        r"(?:.*?(?:vision|image).*?(?:self_attn|mlp).*?(?:q_proj|fc1).*?)|(?:\bmodel\.layers\.[\d]{1,}\.(?:mlp)\.(?:up_proj))",
        r"(.*\.)?layers\.\d+\.mlp\.(down|up)_proj",
        r"model\.layers\.(\d+)\.self_attn\.[qkvo]_proj",
        r"a\(b+\)*[(*+]*",
        r"(abc)+",
        r"[]+)]+x",
    ],
)
def test_pattern_of_public_adapters_is_accepted_and_ends(pattern: str) -> None:
    assert not may_be_endless(pattern)
    began = time.process_time()
    for name in _NAMES:
        re.fullmatch(pattern, name)
    assert time.process_time() - began < 2


@pytest.mark.parametrize("pattern", ["(", ")", "*", "a{", "a{}", "[", "(?P<x", "\\", "", "x)+"])
def test_invalid_pattern_is_left_to_re(pattern: str) -> None:
    assert not may_be_endless(pattern)
