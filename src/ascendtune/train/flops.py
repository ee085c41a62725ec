"""Floating-point operations of a training step, by the quantities that they grow with. Free of torch.

`useful` FLOPs are those of one forward and one backward pass, the base of MFU (Chowdhery et al. 2022, PaLM, arXiv
2204.02311, appendix B); `computed` FLOPs include recomputation and padding, the base of HFU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Passes:
    """FLOPs of each position, or of each pair of query and key."""

    forward: float = 0.0
    backward: float = 0.0
    again: float = 0.0
    """Forward passes that are computed a second time."""

    def __add__(self, other: Passes) -> Passes:
        return Passes(self.forward + other.forward, self.backward + other.backward, self.again + other.again)

    def __mul__(self, times: float) -> Passes:
        return Passes(self.forward * times, self.backward * times, self.again * times)

    @property
    def useful(self) -> float:
        return self.forward + self.backward

    @property
    def computed(self) -> float:
        return self.forward + self.backward + self.again


@dataclass(frozen=True)
class ModelFlops:
    """The FLOPs of a model under a recipe, by the quantity that they grow with."""

    body: Passes
    """FLOPs of each position."""
    head: Passes
    """FLOPs of each position that the head is applied to."""
    attention: tuple[tuple[int | None, Passes], ...]
    """Per kind of layer: window in tokens (None without one), and FLOPs of each query-key pair in all its layers."""
    head_is_labelled_only: bool

    def of_documents(self, lengths: Mapping[int, int], *, labels: float, padding: float = 0.0) -> Passes:
        """FLOPs of documents.

        Args:
            lengths: tokens of a document -> how many such documents.
            labels: number of labelled tokens in all documents.
            padding: number of computed positions beside their tokens.
        """
        rows = sum(length * count for length, count in lengths.items()) + padding
        total = self.body * rows + self.head * (labels if self.head_is_labelled_only else rows)
        for window, each in self.attention:
            total += each * sum(pairs(length, window) * count for length, count in lengths.items())
        return total

    def per_token(self, lengths: Mapping[int, int], *, padding_ratio: float) -> TokenFlops:
        """Means over documents of these lengths; `padding_ratio` is the share of padding in the computed positions."""
        tokens = sum(length * count for length, count in lengths.items())
        padding = tokens * padding_ratio / (1 - padding_ratio)
        with_head = replace(self, head=Passes()) if self.head_is_labelled_only else self
        total = with_head.of_documents(lengths, labels=0, padding=padding)
        useful = with_head.of_documents(lengths, labels=0).useful
        label = self.head if self.head_is_labelled_only else Passes()
        return TokenFlops(useful / tokens, total.computed / tokens, label.useful, label.computed)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ModelFlops:
        """From `dataclasses.asdict`, through JSON."""
        attention = tuple((window, Passes(**each)) for window, each in values["attention"])
        return cls(Passes(**values["body"]), Passes(**values["head"]), attention, bool(values["head_is_labelled_only"]))


@dataclass(frozen=True)
class TokenFlops:
    """Mean FLOPs of a token, and the additional FLOPs of a labelled one."""

    useful: float
    computed: float
    useful_of_label: float
    computed_of_label: float

    def useful_flops(self, tokens: float, labels: float) -> float:
        return self.useful * tokens + self.useful_of_label * labels

    def computed_flops(self, tokens: float, labels: float) -> float:
        return self.computed * tokens + self.computed_of_label * labels


def pairs(length: int, window: int | None = None) -> int:
    """Pairs of a query and a visible key, itself included, in a document of `length` tokens."""
    visible = length if window is None else min(window, length)
    return length * visible - visible * (visible - 1) // 2


def histogram(lengths: Sequence[int]) -> dict[int, int]:
    """Tokens of a document -> how many such documents."""
    counts: dict[int, int] = {}
    for each in lengths:
        counts[int(each)] = counts.get(int(each), 0) + 1
    return counts
