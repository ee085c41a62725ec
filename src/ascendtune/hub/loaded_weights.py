"""Checks that weight files and config.json match, using the report of transformers' loading."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ascendtune.core.errors import RecipeError
from ascendtune.core.foreign_json import shown_names
from ascendtune.core.replaced import replaced
from ascendtune.core.units import count_of

_HARMLESS = re.compile(
    # Computed from config.json; older files contain a copy for every layer.
    r"(?:^|\.)(?:rotary_emb\.(?:inv_freq|cos_cached|sin_cached)|position_ids)$"
    # Causal masks that GPT-2 and its successors once saved.
    r"|\.(?:attn|attention)\.(?:bias|masked_bias)$"
)
# Layers that predict further tokens. No class for causal language models has them.
_PREDICTS_FURTHER = re.compile(r"(?:^|\.)mtp(?:_[a-z]+)?\.")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_SHOWN_SHAPES = 3
HEADS = ("lm_head.weight", "lm_head.bias", "embed_out.weight")
"""The head of a language model, which a reward model does not have; the last one is GPT-NeoX's (Pythia)."""


def require_all_weights(
    report: Mapping[str, Any],
    directory: Path,
    config: Any,
    *,
    drawn: Collection[str] = (),
    left_out: Collection[str] = (),
) -> None:
    """Raise if weights are missing from the files, have no counterpart in the model, or have other shapes.

    Args:
        report: the second result of `from_pretrained(…, output_loading_info=True, ignore_mismatched_sizes=True)`, to
            which transformers has already applied its own rules for missing weights.
        config: the model's.
        drawn: weights that may be missing because they are initialised at random.
        left_out: weights of the files that this class of model does not use.

    Raises:
        RecipeError: with the first of them, and their number.
    """
    missing = set(report["missing_keys"]) - set(drawn)
    if missing:
        raise RecipeError(
            f"{count_of(len(missing), 'weight is', 'weights are')} missing from the files: {shown_names(missing)}",
            code="weights-missing",
            remedy="download the model again; `model.init: random` starts from random weights on purpose",
            where=directory,
        )
    if what := _mismatch(report, config, left_out):
        remedy = "copy config.json and the weights from the same model"
        raise RecipeError(what, code="weights-config-mismatch", remedy=remedy, where=directory)


def _mismatch(report: Mapping[str, Any], config: Any, left_out: Collection[str]) -> str | None:
    """The contradiction between files and config.json; None if they agree."""
    if mismatched := sorted(report["mismatched_keys"]):
        shown = ", ".join(
            f"{name} is {list(stored)} in the files and {list(built)} in the model"
            for name, stored, built in mismatched[:_SHOWN_SHAPES]
        )
        have = count_of(len(mismatched), "weight has another shape", "weights have other shapes")
        return f"{have} than in config.json: {shown}"
    without_place = set(report["unexpected_keys"]) - set(left_out) - prediction_weights(report, config)
    if unexpected := [name for name in without_place if not _HARMLESS.search(name)]:
        return (
            f"{count_of(len(unexpected), 'weight of the files has', 'weights of the files have')} "
            f"no place in the model that config.json describes: {shown_names(unexpected)}"
        )
    if failed := report.get("conversion_errors") or report.get("error_msgs"):
        return f"{count_of(len(failed), 'weight')} cannot be converted, first {next(iter(failed))}"
    return None


def without_own_implementations(config: Any) -> Any:
    """`config` without the implementations that its file selects: they may name packages that are downloaded and run.

    Must be passed to `from_pretrained` as `config`: its arguments of these names do not override the file. The model
    returns named outputs, whatever the file says.
    """
    # Both setters also set the nested configs.
    config._attn_implementation = None
    config._experts_implementation = None
    config.return_dict = config.get_text_config().return_dict = True
    return config


def prediction_weights(report: Mapping[str, Any], config: Any) -> set[str]:
    """Weights of the files that were not loaded because they belong to layers for multi-token prediction (MTP).

    Args:
        report, config: as for `require_all_weights`.
    """
    layers = _predicting_layers(config)
    return {
        name
        for name in report["unexpected_keys"]
        if _PREDICTS_FURTHER.search(name) or ((layer := _LAYER.search(name)) and int(layer[1]) in layers)
    }


def _predicting_layers(config: Any) -> range:
    """Indices of the layers that predict further tokens, if they follow the model's own."""
    text = config.get_text_config()
    layers, further = getattr(text, "num_hidden_layers", None), getattr(text, "num_nextn_predict_layers", None)
    if not isinstance(layers, int) or not isinstance(further, int):
        return range(0)
    return range(layers, layers + further)


def weights_not_finite(model: Any) -> RecipeError | None:
    """The error for a model with NaN or infinite weights, which names the first of them; None if all are finite."""
    spoilt = [name for name, weight in model.named_parameters() if not weight.isfinite().all()]
    if not spoilt:
        return None
    counted = count_of(len(spoilt), "weight of the model is", "weights of the model are")
    return RecipeError(
        f"{counted} not finite, first {spoilt[0]}",
        code="weights-not-finite",
        remedy="copy or download the model again",
    )


def resize_embeddings(model: Any, rows: int) -> None:
    """Give the embeddings and the head `rows` rows each. The caller writes the rows that are new.

    The model's own initialisation is left out: it draws whole tables anew, of which the old rows are copied afterwards,
    and that of xLSTM fails for a single table.
    """
    with replaced(type(model), _init_weights=lambda model, module: None):
        model.resize_token_embeddings(rows, mean_resizing=False)
    # transformers 5.1 leaves the old number in a tied head, and PEFT makes adapters of that size.
    if hasattr(head := model.get_output_embeddings(), "out_features"):
        head.out_features = len(head.weight)
