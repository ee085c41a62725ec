"""Model types that cannot be trained with a recipe, as far as config.json shows it, refused before any process starts.

The worker tests every model on a small copy (`choice.py`) and refuses the same ones; this table refuses them earlier.
Tests compare the table with those trials. Free of torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ascendtune.core.errors import RecipeError
from ascendtune.hub.model_config import read_model_config, text_config
from ascendtune.recipe.recipe import Recipe

SEES_LATER_TOKENS = "its tokens see the tokens after them, so there is nothing to predict"
PICKS_KEYS = "it attends to the keys with the highest scores, and the length of the row decides between equal scores"
ENCODERS = {
    *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert"),
    *("rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl", "xmod"),
}
"""Types that are decoders only with `is_decoder: true`."""
NEVER_CAUSAL = {"cpmant", "xlm", "xlnet"}
SPARSE = {
    *("axk2", "deepseek_v32", "deepseek_v4", "doge", "dots3_note_text", "glm_moe_dsa", "hy_v4", "qwen4_exp_text"),
}
"""Types whose attention selects keys by score if config.json sets a number of keys."""
ROWS_ALONE = {"prophetnet": "its values depend on the length of the row"}
"""Model type -> reason why its rows cannot be padded."""
_PICKED = re.compile(r"^index(er)?_(top_?k|budget)|^keep_window_size$")


def require_trainable_type(recipe: Recipe, directory: Path) -> None:
    """Raise if this version cannot train models of this type with the recipe.

    Args:
        directory: directory of the model.

    Raises:
        RecipeError: the model does not predict tokens, or its rows cannot be padded and the recipe needs that.
    """
    config = read_model_config(directory / "config.json")
    if recipe.model.trust_remote_code and "auto_map" in config:
        return
    text = text_config(config)
    kind = str(text.get("model_type"))
    is_encoder = kind in ENCODERS and not text.get("is_decoder")
    if recipe.method.stage != "reward" and (is_encoder or kind in NEVER_CAUSAL):
        raise cannot_train(kind, SEES_LATER_TOKENS)
    if kind in SPARSE and picks_keys(text):
        require_rows_alone(recipe, PICKS_KEYS)
    elif kind in ROWS_ALONE:
        require_rows_alone(recipe, ROWS_ALONE[kind])


def cannot_train(model_type: str, why: str) -> RecipeError:
    """The error for a model that does not predict tokens."""
    return RecipeError(
        f"{model_type} cannot be trained here: {why}",
        code="model-not-causal",
        remedy="choose a decoder model; a BERT-like model is a decoder if its config.json sets is_decoder: true",
    )


def picks_keys(values: Mapping[str, Any]) -> bool:
    """Whether attention selects by score the keys that a token sees, according to the fields of a config."""
    return any(_PICKED.search(key) and value for key, value in values.items())


ROWS_NEED_PADDING = "rows-need-padding"
"""Code of the error for a model that supports single rows only."""


def require_rows_alone(recipe: Recipe, why: str) -> None:
    """Raise if the recipe pads rows.

    Args:
        why: reason why the model does not support padded rows.
    """
    sentence = f"padding changes the outputs of this model: {why}"
    method = recipe.method
    if method.stage == "reward" or (method.stage == "preference" and method.preference.loss != "kto"):
        raise RecipeError(
            f"stage {method.stage} pads the two answers of a pair to one length; {sentence}",
            code="pairs-need-padding",
            remedy="choose another model, or train on single answers: stage sft, or preference with loss kto",
        )
    if recipe.batch.micro_batch > 1:
        raise RecipeError(
            sentence,
            code=ROWS_NEED_PADDING,
            remedy="set batch.per_device: 1, and raise batch.accumulate to keep the number of rows per step",
        )
