from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.errors import RecipeError
from ascendtune.data.tokenizer import Tokenizer

Make = Callable[..., Path]


def _replacing(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _sequence(name: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", f"{name}s": parts}


def _with(model: Path, name: str, part: dict[str, Any]) -> Path:
    path = model / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: part}))
    return model


_DOUBLING = _replacing({"String": "a"}, "aa")
_HOSTILE = {
    "nothing replaced by much": _replacing({"Regex": ""}, "a" * 1000),
    "doubled often": [_DOUBLING] * 12,
    "each by a hundred, twice": [_replacing({"Regex": "."}, "a" * 100)] * 2,
    "nested": [{"type": "Sequence", "parts": [_DOUBLING] * 6}] * 2,
}


@pytest.mark.parametrize("name", ["normalizer", "decoder"])
@pytest.mark.parametrize("case", _HOSTILE)
def test_part_that_makes_a_text_many_times_longer_is_refused(case: str, name: str, make_model: Make) -> None:
    parts = _HOSTILE[case]
    if isinstance(parts, list):
        parts = _sequence(name, [_sequence(name, each["parts"]) if "parts" in each else each for each in parts])
    with pytest.raises(RecipeError) as caught:
        Tokenizer.load(_with(make_model(), name, parts))
    assert caught.value.code == "tokenizer-expands-text" and name in caught.value.what


def test_long_prefix_is_refused(make_model: Make) -> None:
    with pytest.raises(RecipeError) as caught:
        Tokenizer.load(_with(make_model(), "normalizer", {"type": "Prepend", "prepend": "a" * 5000}))
    assert caught.value.code == "tokenizer-expands-text"


def test_usual_replacements_are_accepted(make_model: Make) -> None:
    names = [f"<|{count}space|>" for count in range(2, 5)]
    spaces = [_replacing({"String": " " * count}, name) for count, name in enumerate(names, 2)]
    parts = [{"type": "Prepend", "prepend": "▁"}, *spaces, _replacing({"String": " "}, "▁"), {"type": "NFKC"}]
    assert Tokenizer.load(_with(make_model(), "normalizer", _sequence("normalizer", parts))).encode("a b")
