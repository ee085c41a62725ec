"""The weights that a model had before its first step: what ASFT compares with, without a second model in memory."""

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
    """A second term of the loss of each position: `weight` · KL(q ‖ p), p of the model, q of its start weights."""

    weight: float
    output: Callable[[slice], torch.Tensor]
    """(positions, vocabulary): what the head returned with the start weights, for some of the labelled positions."""


class StartWeights:
    """A copy of every trained weight of `model`, in its own dtype, as it is when this is made.

    Make it before a checkpoint is loaded: then a resumed run compares with the same weights.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._kept = [(each, each.detach().clone()) for each in model.parameters() if each.requires_grad]

    def anchor(self, batch: DeviceBatch, head_form: HeadForm | None, weight: float) -> Anchor:
        """The term for the labelled positions of `batch`: one forward pass without gradient and without dropout."""
        model: Any = self._model
        with self._restored():
            if head_form is None:
                return _computed(labelled_logits(model, batch), weight)
            states, head = labelled_states(model, batch), model.get_output_embeddings()
            if type(head) is not nn.Linear:
                return _computed(head(states), weight)
            # Detached here, so that they stay the start weights when the parameters change back.
            hidden, matrix, bias = autocast_operands(states, head)
            matrix, bias = matrix.detach(), None if bias is None else bias.detach()
        return Anchor(weight, lambda part: nn.functional.linear(hidden[part], matrix, bias))

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """The model computes with the start weights, in evaluation mode, while the context lasts.

        The storages change places: weights that the graph of an earlier forward pass holds are not written to.
        """
        trained = [each.data for each, _ in self._kept]
        was_training, caches = self._model.training, torch.is_autocast_cache_enabled()
        # Autocast keeps casts by parameter, not by its content.
        torch.set_autocast_cache_enabled(False)
        self._model.eval()
        for parameter, start in self._kept:
            parameter.data = start
        try:
            with torch.no_grad():
                yield
        finally:
            for (parameter, _), now in zip(self._kept, trained, strict=True):
                parameter.data = now
            self._model.train(was_training)
            torch.set_autocast_cache_enabled(caches)


def _computed(logits: torch.Tensor, weight: float) -> Anchor:
    return Anchor(weight, lambda part: logits[part])
