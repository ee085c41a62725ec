"""Model types that a recipe cannot train are refused by their config.json, before anything starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.errors import RecipeError
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.attention.model_type import require_trainable_type

PAIRS = {"method": {"stage": "preference"}}
ALONE = {"batch": {"per_device": 1}}
KTO = {"method": {"stage": "preference", "preference": {"loss": "kto"}}, **ALONE}
REWARD = {"method": {"stage": "reward"}}


@pytest.fixture
def code_for(tmp_path: Path) -> Callable[..., str | None]:
    """The code of the refusal, or None, for a config.json and sections of a recipe."""

    def ask(config: dict[str, Any], sections: dict[str, Any], **model: Any) -> str | None:
        (tmp_path / "config.json").write_text(json.dumps(config))
        recipe = Recipe.check({"model": {"path": str(tmp_path), **model}, "data": {"train": "rows.jsonl"}, **sections})
        try:
            require_trainable_type(recipe, tmp_path)
        except RecipeError as error:
            return error.code
        return None

    return ask


@pytest.mark.parametrize(
    ("config", "sections", "code"),
    [
        ({"model_type": "bert"}, {}, "model-not-causal"),
        ({"model_type": "bert", "is_decoder": True}, {}, None),
        ({"model_type": "bert"}, REWARD, None),
        ({"model_type": "xlnet"}, PAIRS, "model-not-causal"),
        ({"model_type": "deepseek_v32", "index_topk": 2048}, PAIRS, "pairs-need-padding"),
        ({"model_type": "deepseek_v32", "index_topk": 2048}, REWARD, "pairs-need-padding"),
        ({"model_type": "deepseek_v32", "index_topk": 2048}, {"batch": {"per_device": 2}}, "rows-need-padding"),
        ({"model_type": "deepseek_v32", "index_topk": 2048}, ALONE, None),
        ({"model_type": "deepseek_v32", "index_topk": 2048}, KTO, None),
        ({"model_type": "qwen4_exp", "text_config": {"model_type": "qwen4_exp_text"}}, PAIRS, None),
        (
            {"model_type": "qwen4_exp", "text_config": {"model_type": "qwen4_exp_text", "indexer_budget": 64}},
            PAIRS,
            "pairs-need-padding",
        ),
        ({"model_type": "prophetnet"}, PAIRS, "pairs-need-padding"),
        ({"model_type": "qwen3"}, PAIRS, None),
    ],
)
def test_config_tells_what_a_recipe_cannot_train(
    config: dict[str, Any], sections: dict[str, Any], code: str | None, code_for: Callable[..., str | None]
) -> None:
    assert code_for(config, sections) == code


def test_type_that_cannot_be_trained_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    recipe = Recipe.check({"model": {"path": str(tmp_path)}, "data": {"train": "rows.jsonl"}})
    with pytest.raises(RecipeError, match="bert cannot be trained here: its tokens see"):
        require_trainable_type(recipe, tmp_path)


def test_code_of_the_model_itself_is_not_judged_by_its_type(code_for: Callable[..., str | None]) -> None:
    config = {"model_type": "bert", "auto_map": {"AutoModelForCausalLM": "modeling.Own"}}
    assert code_for(config, {}) == "model-not-causal"
    assert code_for(config, {}, trust_remote_code=True) is None
