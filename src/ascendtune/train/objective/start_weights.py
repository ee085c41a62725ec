"""The weights of a model before its first step, which ASFT compares with, without a second model in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ascendtune.train.batch import DeviceBatch
from ascendtune.train.objective.head import HeadForm, labelled_logits, labelled_states
from ascendtune.train.objective.logit_chunks import autocast_operands


@dataclass(frozen=True)
class Anchor:
    """A second loss term of each position: `weight` · KL(q ‖ p), p of the model, q of its start weights."""

    weight: float
    output: Callable[[slice], torch.Tensor]
    """The head's output with the start weights for some of the labelled positions: (positions, vocabulary)."""


class StartWeights:
    """A copy of every trained weight of `model`, in its own dtype, taken when this object is created.

    Create it before a checkpoint is loaded, so that a resumed run compares with the same weights.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._saved = [(each, each.detach().clone()) for each in model.parameters() if each.requires_grad]

    def anchor(self, batch: DeviceBatch, head_form: HeadForm | None, weight: float) -> Anchor:
        """The term for the labelled positions of `batch`, from one forward pass without gradient or dropout."""
        model: Any = self._model
        with self._restored():
            if head_form is None:
                return _computed(labelled_logits(model, batch), weight)
            states, head = labelled_states(model, batch), model.get_output_embeddings()
            if type(head) is not nn.Linear:
                return _computed(head(states), weight)
            # Detached here, so that they keep the start weights when the parameters are switched back.
            hidden, matrix, bias = autocast_operands(states, head)
            matrix, bias = matrix.detach(), None if bias is None else bias.detach()
        return Anchor(weight, lambda part: nn.functional.linear(hidden[part], matrix, bias))

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """Context in which the model computes with the start weights, in evaluation mode.

        Storages are exchanged: weights that the graph of an earlier forward pass refers to are not overwritten.
        """
        trained = [each.data for each, _ in self._saved]
        was_training, caches = self._model.training, torch.is_autocast_cache_enabled()
        # Autocast caches casts by parameter, not by content.
        torch.set_autocast_cache_enabled(False)
        self._model.eval()
        for parameter, start in self._saved:
            parameter.data = start
        try:
            with torch.no_grad():
                yield
        finally:
            for (parameter, _), now in zip(self._saved, trained, strict=True):
                parameter.data = now
            self._model.train(was_training)
            torch.set_autocast_cache_enabled(caches)


def _computed(logits: torch.Tensor, weight: float) -> Anchor:
    return Anchor(weight, lambda part: logits[part])
