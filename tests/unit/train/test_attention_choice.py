"""Attention support is cached by what decides it, read only from files of this user, and refused in sentences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, MambaConfig, T5Config

from ascendtune.core.directories import cache_directory
from ascendtune.core.errors import MachineError, RecipeError
from ascendtune.recipe.sections import ModelSection
from ascendtune.train.attention import choice
from ascendtune.train.attention.choice import AttentionSupport, cached_support, choose_attention, find_support
from ascendtune.train.attention.proof import lm_values

FOUND = AttentionSupport("sdpa", packed=True, without_gradient=["model.gate"])


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def counted() -> tuple[Callable[[], AttentionSupport], list[int]]:
    calls: list[int] = []

    def find() -> AttentionSupport:
        calls.append(1)
        return FOUND

    return find, calls


def files() -> list[Path]:
    return list((cache_directory() / "attention").iterdir())


def test_support_is_found_once_for_each_config() -> None:
    find, calls = counted()
    assert [cached_support({"width": width}, find) for width in (1, 1, 2, 1)] == [FOUND] * 4
    assert len(calls) == 2


@pytest.mark.parametrize("spoil", ["writable by others", "folder writable by others", "not JSON", "other fields"])
def test_cached_support_of_others_or_damaged_is_found_again(spoil: str) -> None:
    find, calls = counted()
    cached_support("key", find)
    (file,) = files()
    if spoil == "writable by others":
        file.chmod(0o666)
    elif spoil == "folder writable by others":
        file.parent.chmod(0o777)
    else:
        file.write_text("{" if spoil == "not JSON" else '{"attention": "sdpa", "new": 1}')
    assert cached_support("key", find) == FOUND
    assert len(calls) == 2


def test_other_code_of_ours_finds_support_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "choice.py"
    code.write_text("one = 1\n")
    monkeypatch.setattr(choice, "__file__", str(code))
    before = choice._versions()
    assert choice._versions() == before
    code.write_text("one = 2\n")
    assert choice._versions() != before


def test_without_a_cache_every_start_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    find, calls = counted()
    assert [cached_support("key", find) for _ in range(2)] == [FOUND] * 2
    assert len(calls) == 2


def unusable(error: Exception) -> Callable[[Any, str], Any]:
    def make(config: Any, implementation: str) -> Any:
        raise error

    return make


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (KeyError("layer"), "small copies of it could not be compared: the model's code does not run on them"),
        (
            ValueError("hidden_size must be a multiple of 64.\nTraceback"),
            "small copies of it could not be compared: the model's code does not run on them: "
            "hidden_size must be a multiple of 64",
        ),
    ],
)
def test_without_a_small_copy_the_reason_is_a_sentence(error: Exception, sentence: str) -> None:
    support = find_support(
        LlamaConfig(), unusable(error), lm_values, table_names=["sdpa"], own=["sdpa"], must_be_causal=True
    )
    assert (support.attention, support.own, support.padded, support.reason) == ("sdpa", True, False, sentence)


def test_a_named_attention_of_ours_alone_is_refused_without_a_small_copy() -> None:
    make = unusable(KeyError("layer"))
    support = find_support(LlamaConfig(), make, lm_values, table_names=["sdpa"], own=[], must_be_causal=True)
    assert support.refused


def test_a_model_without_a_causal_class_is_refused_in_one_sentence() -> None:
    with pytest.raises(RecipeError) as caught:
        choose_attention(ModelSection(path="t5"), "sft", T5Config(), "sdpa")
    assert caught.value.code == "model-not-causal" and len(str(caught.value)) < 300


def test_a_reward_model_needs_a_class_with_a_score() -> None:
    with pytest.raises(RecipeError) as caught:
        choose_attention(ModelSection(path="mamba"), "reward", MambaConfig(), "sdpa")
    assert caught.value.code == "no-class-with-score"


@pytest.mark.parametrize("default", ["sdpa", "sdpa_fp32", "varlen"])
def test_an_operator_of_other_chips_is_refused_before_the_model_is_looked_at(default: str) -> None:
    with pytest.raises(MachineError) as caught:
        choose_attention(ModelSection(path="x", attention="npu_fusion"), "sft", LlamaConfig(), default)
    assert caught.value.code == "attention-not-on-device"
