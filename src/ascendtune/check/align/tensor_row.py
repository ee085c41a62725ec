"""One tensor of a step and rank, reference beside candidate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ascendtune.check.align.dump import TensorKey, TensorStatistics
from ascendtune.check.align.tensor_noise import is_float

EMBEDDINGS = ("Embedding", "Gemma3TextScaledWordEmbedding", "VocabParallelEmbedding")
_STAGES = {
    "parameter_before": "start",
    "forward": "forward",
    "loss": "forward",
    "backward": "backward",
    "gradient": "backward",
    "parameter_after": "update",
}


@dataclass(frozen=True)
class TensorRow:
    """One tensor on both sides.

    Attributes:
        difference: relative, as defined in `tensor_noise.differences`; for updates, that of the change by the
            optimizer; NaN if the shapes differ.
        limit: largest difference that rounding explains.
        scale: candidate over reference of the L2 norms; for updates, of the samples.
    """

    step: int
    rank: int
    key: TensorKey
    reference: TensorStatistics
    candidate: TensorStatistics
    difference: float
    limit: float
    scale: float

    @property
    def exceeds_limit(self) -> bool:
        return self.difference > self.limit

    @property
    def is_of_norm(self) -> bool:
        """Whether the norms have the largest difference: then all elements differ by a small factor."""
        norms = self.reference.rms, self.candidate.rms
        return self.difference > 0 and self.difference == abs(norms[0] - norms[1]) / max(norms)

    @property
    def is_of_one_side(self) -> bool:
        """Whether only one side has a gradient of the parameter; the other one counts as 0."""
        return bool(self.reference.dtype) != bool(self.candidate.dtype)

    @property
    def stage(self) -> str:
        """The stage that this tensor is evidence for.

        Integer inputs of the model are its data, and so is the output of the embedding, whose weights are compared as
        parameters.
        """
        if self.key.phase == "parameter_before" and self.step > 1:
            # A difference before the first step was loaded; a later one was made by updates.
            return "update"
        if self.key.phase == "forward" and (not is_float(self.reference) or self.reference.kind in EMBEDDINGS):
            return "data"
        return _STAGES[self.key.phase]

    @property
    def excess(self) -> float:
        """Difference over limit; 0 if there is nothing to compare."""
        if not self.difference > 0:
            return 0.0
        return self.difference / self.limit if self.limit else math.inf
