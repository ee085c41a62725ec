"""A quantised base: LLaMA-Factory's bits, type and double quantisation, in both of its forms of recipes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.errors import RecipeError
from ascendtune.recipe.recipe import Recipe

Write = Callable[..., Path]


def test_four_bits_are_nf4_with_quantised_scales_as_llamafactory_has_them(write: Write) -> None:
    model = Recipe.load(write({"quantization_bit": 4})).model
    assert (model.quantization, model.double_quantization) == ("nf4", True)
    model = Recipe.load(
        write({"quantization_bit": 4, "quantization_method": "bnb", "double_quantization": False})
    ).model
    assert (model.quantization, model.double_quantization) == ("nf4", False)


def test_without_bits_nothing_is_quantised_and_that_is_noted(write: Write) -> None:
    recipe = Recipe.load(write({"double_quantization": False, "quantization_type": "fp4"}))
    assert recipe.model.quantization is None


@pytest.mark.parametrize(
    ("theirs", "code", "said"),
    [
        ({"quantization_bit": 8}, "not-in-this-version", "quantization_bit: 8"),
        ({"quantization_bit": 5}, "not-in-this-version", "quantization_bit: 5"),
        ({"quantization_bit": "four"}, "invalid-value", "quantization_bit: four"),
        ({"quantization_bit": 4, "quantization_type": "fp4"}, "not-in-this-version", "quantization_type: fp4"),
        ({"quantization_bit": 4, "quantization_method": "hqq"}, "invalid-value", "quantization_method: hqq"),
        ({"quantization_bit": 4, "finetuning_type": "full"}, "refused-combination", "cannot be trained"),
        ({"quantization_bit": 4, "use_dora": True}, "refused-combination", "DoRA"),
        ({"ref_model_quantization_bit": 4}, "not-in-this-version", "only the base below an adapter"),
    ],
    ids=str,
)
def test_unsupported_quantisations_are_refused(theirs: dict[str, Any], code: str, said: str, write: Write) -> None:
    with pytest.raises(RecipeError) as refused:
        Recipe.load(write(theirs))
    assert refused.value.code == code and said in refused.value.what
    assert str(refused.value.where).startswith("theirs.yaml")
