"""The shapes of weights that do not fit: parts of tensor parallelism, told from a model of another size."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.facts.shapes import mismatch_in

_SAID = (
    "size mismatch for tide.layers.2.mlp.down.weight: copying a param with shape torch.Size([{saved}]) from "
    "checkpoint, the shape in current model is torch.Size([{model}])."
)


@pytest.mark.parametrize(
    ("saved", "model", "parts"),
    [
        ("64, 64", "64, 256", 4),
        ("96, 64", "768, 64", 8),
        ("64, 256", "64, 128", 2),
        ("64, 64", "64, 192", None),
        ("64, 64", "128, 128", None),
        ("64", "128", None),
        ("64, 64", "64, 64, 1", None),
    ],
)
def test_part_of_a_tensor_is_told_from_another_size(saved: str, model: str, parts: int | None) -> None:
    mismatch = mismatch_in(_SAID.format(saved=saved, model=model))

    assert mismatch is not None
    assert mismatch.parts == parts
    assert (mismatch.remedy() is None) == (parts is None)


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("language_model.encoder.layers.28.mlp.dense_4h_to_h", 4),
        ("model.layers.0.self_attn.o_proj", 4),
        ("encoder.layers.29.self_attention.dense", 4),
        ("classifier", None),
        ("classifier.out_proj", None),
        ("model.embed_tokens", None),
        ("model.layers.0.self_attn.k_proj", None),
        ("model.layers.0.mlp.gate", None),
        ("model.layers.0.mlp.up_proj.lora_A.default", None),
    ],
)
def test_only_matrices_that_are_split_by_tensor_parallelism_are_called_parts(key: str, parts: int | None) -> None:
    mismatch = mismatch_in(_SAID.replace("tide.layers.2.mlp.down", key).format(saved="64, 64", model="64, 256"))

    assert mismatch is not None
    assert mismatch.parts == parts


def test_file_that_is_a_part_and_model_that_is_split_have_opposite_remedies() -> None:
    part = mismatch_in(_SAID.format(saved="64, 64", model="64, 256"))
    split = mismatch_in(_SAID.format(saved="64, 256", model="64, 64"))

    assert part is not None and split is not None
    assert "merge" in str(part.remedy())
    assert "split the file" in str(split.remedy())


def test_headline_has_the_shapes_and_the_first_remedy_the_parallelism(explained: Callable[..., Explanation]) -> None:
    explanation = explained(f"RuntimeError: {_SAID.format(saved='64, 64', model='64, 256')}\n")

    assert "64 × 64 in the file and 64 × 256 in the model: one of 4 parts" in explanation.headline()
    assert "parallelism that it was trained with (4)" in explanation.remedies()[0]


def test_text_without_a_mismatch_has_none() -> None:
    assert mismatch_in("size mismatch for tide: nothing else") is None


@pytest.mark.parametrize(
    ("key", "saved", "model", "is_anew"),
    [
        ("classifier.weight", "7, 64", "3, 64", True),
        ("classifier.bias", "7", "3", True),
        ("classifier.weight", "7, 64", "3, 32", False),
        ("model.embed_tokens.weight", "7, 64", "3, 64", False),
        ("base_model.model.lm_head.modules_to_save.default.weight", "7, 64", "3, 64", False),
    ],
)
def test_a_layer_with_another_number_of_outputs_is_made_anew(key: str, saved: str, model: str, is_anew: bool) -> None:
    mismatch = mismatch_in(_SAID.replace("tide.layers.2.mlp.down.weight", key).format(saved=saved, model=model))

    assert mismatch is not None
    remedy = mismatch.remedy() or ""
    assert ("another number of outputs" in remedy and "with 7" in remedy) == is_anew


@pytest.mark.parametrize(
    ("key", "saved", "model", "is_cut"),
    [
        ("base_model.model.lm_head.modules_to_save.default.weight", "151936, 64", "151665, 64", True),
        ("model.embed_tokens.weight", "128256, 64", "128011, 64", True),
        # Tokens were added to the file's model, or the model is another one.
        ("model.embed_tokens.weight", "151665, 64", "151936, 64", False),
        ("model.embed_tokens.weight", "151936, 64", "32000, 64", False),
        ("classifier.weight", "128, 64", "127, 64", False),
    ],
)
def test_a_vocabulary_that_was_cut_to_the_tokenizer_names_the_call(
    key: str, saved: str, model: str, is_cut: bool
) -> None:
    mismatch = mismatch_in(_SAID.replace("tide.layers.2.mlp.down.weight", key).format(saved=saved, model=model))

    assert mismatch is not None
    assert ("resize_token_embeddings(len(tokenizer))" in (mismatch.remedy() or "")) == is_cut
