"""The two shapes in a size mismatch of weights: whether a file contains one part of a split tensor."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ascendtune.check.explain.language import say

_MISMATCH = re.compile(
    r"size mismatch for (?P<key>[\w.]+): copying a param with shape torch\.Size\(\[(?P<saved>\d[\d, ]*)\]\) from "
    r"checkpoint, the shape in current model is torch\.Size\(\[(?P<model>\d[\d, ]*)\]\)"
)
_MATRIX = 2
"""Dimensions of a weight: with two, one equal size distinguishes a part from a model of another size."""
_PARTS = (2, 4, 8, 16, 32, 64)
"""Sizes of tensor parallelism."""
_SPLIT = re.compile(
    r"\.\d+\.(?:\w+\.)*?(?:mlp|ffn|feed_forward|q_proj|o_proj|out_proj|linear_proj|dense)\."
    r"(?!(?:gate|router)\.weight)(?!.*lora_)"
)
"""Matrices of a numbered layer that tensor parallelism splits. Others differ in size for other reasons: a head by its
labels, an embedding by its vocabulary, keys and values by their heads, a router by its experts, an adapter by its
rank."""
_VOCABULARY = re.compile(r"\blm_head\b|embed|\bwte\b|output_layer")
"""Weights with a row for each token."""
_PADDED_TO, _MOST_PADDING = 64, 1024
"""Vocabularies are padded to a multiple of 64, and rarely by more than 1024 rows."""
_CUT_ROWS = (
    "the model has {model} rows, most likely the tokenizer's length, and the file the padded vocabulary of "
    "config.json, {saved}: the program calls resize_token_embeddings(len(tokenizer)) before it loads this file: leave "
    "that call out, or make it after the weights are loaded"
)
_OTHER_ROWS = (
    "the layer of {key} has another number of outputs (classes, labels, characters): make the model with {saved}, as "
    "in the file; or leave the layer out of the file and train it anew (transformers: ignore_mismatched_sizes=True)"
)


@dataclass(frozen=True)
class Mismatch:
    """One tensor: its name, and its shapes in the file and in the model."""

    key: str
    saved: tuple[int, ...]
    model: tuple[int, ...]

    @property
    def parts(self) -> int | None:
        """Number of equal parts into which one dimension was split, in the file or in the model; None if it was not."""
        if not (len(self.saved) == len(self.model) == _MATRIX and _SPLIT.search(self.key)):
            return None
        differing = [(saved, model) for saved, model in zip(self.saved, self.model, strict=True) if saved != model]
        if len(differing) != 1:
            return None
        small, large = sorted(differing[0])
        parts = large // small if small and large % small == 0 else 0
        return parts if parts in _PARTS else None

    @property
    def _has_other_rows(self) -> bool:
        """Whether the tensor differs only in its number of outputs, and its layer is not numbered."""
        is_one_layer = re.search(r"\.\d+\.|lora_", self.key) is None and not _VOCABULARY.search(self.key)
        return is_one_layer and self.saved[:1] != self.model[:1] and self.saved[1:] == self.model[1:]

    @property
    def _is_cut_to_tokenizer(self) -> bool:
        """Whether the file has the rows of a padded vocabulary, and the model a few less."""
        saved, model = self.saved[0], self.model[0]
        is_padded = saved % _PADDED_TO == 0 and model % _PADDED_TO != 0 and 0 < saved - model <= _MOST_PADDING
        return is_padded and self.saved[1:] == self.model[1:] and _VOCABULARY.search(self.key) is not None

    @property
    def is_file_split(self) -> bool:
        return self.parts is not None and self.saved < self.model

    def headline(self) -> str:
        names = {"key": self.key, "saved": _written(self.saved), "model": _written(self.model)}
        if self.parts is None:
            return say("{key} is {saved} in the file and {model} in the model", **names)
        if self.is_file_split:
            template = (
                "{key} is {saved} in the file and {model} in the model: one of {parts} parts of tensor parallelism"
            )
        else:
            template = "{key} is {saved} in the file and {model} in the model, which is split into {parts} parts"
        return say(template, parts=self.parts, **names)

    def remedy(self) -> str | None:
        """First remedy if a tensor was split, or has another number of rows; None otherwise."""
        if self._is_cut_to_tokenizer:
            return say(_CUT_ROWS, saved=self.saved[0], model=self.model[0])
        if self.parts is None:
            return say(_OTHER_ROWS, key=self.key, saved=self.saved[0]) if self._has_other_rows else None
        if self.is_file_split:
            template = (
                "load it with the tensor parallelism that it was trained with ({parts}), or merge its parts into one "
                "file before (Megatron-LM: tools/checkpoint/convert.py --target-tensor-parallel-size 1)"
            )
        else:
            template = (
                "split the file for tensor parallelism {parts} before (Megatron-LM: tools/checkpoint/convert.py "
                "--target-tensor-parallel-size {parts}), or load it without tensor parallelism"
            )
        return say(template, parts=self.parts)


def mismatch_in(text: str) -> Mismatch | None:
    """Tensor in a message of torch's load_state_dict."""
    match = _MISMATCH.search(text)
    return Mismatch(match["key"], _sizes(match["saved"]), _sizes(match["model"])) if match else None


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(",") if size.strip())


def _written(sizes: tuple[int, ...]) -> str:
    return " × ".join(map(str, sizes))
