"""Loss curves: the numbers that a training recorded, step by step, and two curves at the same steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ascendtune.core.errors import DataError

Floats = NDArray[np.float64]
_MOST_STEPS = 2**53
"""Above it a float does not hold every whole number."""
_COLUMNS = ("loss", "grad_norm", "learning_rate", "labelled_tokens")


@dataclass(frozen=True)
class Curve:
    """One record per entry, in the order of the steps.

    Attributes:
        steps: (records,) int64, strictly increasing.
        losses, grad_norms, learning_rates: (records,) float64, NaN where not recorded or not finite.
        is_token_mean: a record of several steps is the mean over their labelled tokens, not over the steps.
        labelled_tokens: (records,) float64, NaN where not recorded.
        batch_hashes: (records,) names of the rows of the last step of a record; None where not recorded.
        resolution: half a unit of the last digit that losses were written with; 0 at full precision.
    """

    steps: NDArray[np.int64]
    losses: Floats
    grad_norms: Floats
    learning_rates: Floats
    labelled_tokens: Floats
    batch_hashes: tuple[str | None, ...]
    resolution: float
    is_token_mean: bool = False

    @classmethod
    def of_records(
        cls, records: Iterable[Mapping[str, Any]], names: Mapping[str, str], *, rounded: bool, source: str
    ) -> Curve:
        """A curve from dictionaries.

        Args:
            names: `step` and `loss`, and any of `grad_norm`, `learning_rate`, `labelled_tokens` and `batch_hash`, to
                the key in a record. A record without step or loss, such as an evaluation, is left out. Of records of
                the same step, as after a resume, the last counts.
            rounded: losses were rounded to decimal places when they were written, so their digits are counted.
            source: the file, for messages.

        Raises:
            DataError: no record has a step and a loss.
        """
        kept = [record for record in records if names["step"] in record and names["loss"] in record]
        columns = {
            name: np.array([_number(record.get(key)) for record in kept], dtype=np.float64)
            for name, key in names.items()
            if name != "batch_hash"
        }
        hashes = [record.get(names.get("batch_hash", "")) for record in kept]
        resolution = _resolution([record[names["loss"]] for record in kept]) if rounded else 0.0
        return cls.of_columns(columns, hashes, resolution=resolution, source=source)

    @classmethod
    def of_columns(
        cls, columns: Mapping[str, Floats], batch_hashes: Sequence[str | None], *, resolution: float, source: str
    ) -> Curve:
        """A curve from arrays.

        Args:
            columns: (records,) float64 by name, as in `of_records`. A record whose step is not a whole number is left
                out. Of records of the same step the last counts.
            batch_hashes: one per record.

        Raises:
            DataError: no record has a step.
        """
        columns = {name: np.where(np.isfinite(each), each, np.nan) for name, each in columns.items()}
        is_step = (columns["step"] >= 0) & (columns["step"] < _MOST_STEPS) & (columns["step"] % 1 == 0)
        columns = {name: each[is_step] for name, each in columns.items()}
        batch_hashes = [each for each, kept in zip(batch_hashes, is_step.tolist(), strict=True) if kept]
        steps = columns["step"].astype(np.int64)
        if not len(steps):
            raise no_records(source)
        # np.unique finds the first of equal steps.
        unique, from_the_end = np.unique(steps[::-1], return_index=True)
        last = len(steps) - 1 - from_the_end
        missing = np.full(len(unique), np.nan)
        values = {name: columns[name][last] if name in columns else missing for name in _COLUMNS}
        hashes = tuple(batch_hashes[each] for each in last.tolist())
        return cls(
            unique,
            values["loss"],
            values["grad_norm"],
            values["learning_rate"],
            values["labelled_tokens"],
            hashes,
            resolution,
        )

    @classmethod
    def empty(cls) -> Curve:
        """No record: of a side that has dumped tensors alone."""
        none = np.empty(0)
        return cls(np.empty(0, dtype=np.int64), none, none, none, none, (), 0.0)

    def is_sparse(self) -> bool:
        """Whether a record stands for several steps, as with `logging_steps` above 1."""
        gaps = np.diff(self.steps) if len(self.steps) > 1 else self.steps
        return bool(len(gaps) and np.median(gaps) > 1)


@dataclass(frozen=True)
class Pair:
    """The losses of two curves at the same steps.

    Attributes:
        steps: (records,) int64, the last step of each record.
        reference, candidate: (records,) float64 losses.
        reference_alone, candidate_alone: (other records,) int64, steps of one curve that were not compared, since the
            other curve has no loss for them.
    """

    steps: NDArray[np.int64]
    reference: Floats
    candidate: Floats
    reference_alone: NDArray[np.int64]
    candidate_alone: NDArray[np.int64]

    @property
    def difference(self) -> Floats:
        """(records,) float64: |candidate - reference| / max(|reference|, 1); NaN where one side has no number.

        A loss is a difference of logits, whose error does not shrink when the loss does: below 1 the difference is
        absolute.
        """
        scale = np.maximum(np.abs(self.reference), 1.0)
        return np.abs(self.candidate - self.reference) / scale

    @property
    def relative(self) -> Floats:
        """(records,) float64: |candidate - reference| / |reference|, as others' acceptance rules count it."""
        return np.abs(self.candidate - self.reference) / np.maximum(np.abs(self.reference), 1e-12)


def paired(reference: Curve, candidate: Curve) -> Pair:
    """Losses of the steps that both have recorded.

    Where one side recorded means over several steps and the other every step, the other's steps are averaged over the
    same windows: without weights, as transformers' Trainer does, or by labelled tokens, as our runs do.
    """
    if reference.is_sparse() and not candidate.is_sparse():
        return _over_windows(reference, candidate)
    if candidate.is_sparse() and not reference.is_sparse():
        pair = _over_windows(candidate, reference)
        return Pair(pair.steps, pair.candidate, pair.reference, pair.candidate_alone, pair.reference_alone)
    steps, at_reference, at_candidate = np.intersect1d(
        reference.steps, candidate.steps, assume_unique=True, return_indices=True
    )
    return Pair(
        steps,
        reference.losses[at_reference],
        candidate.losses[at_candidate],
        np.delete(reference.steps, at_reference),
        np.delete(candidate.steps, at_candidate),
    )


def _over_windows(sparse: Curve, dense: Curve) -> Pair:
    """Losses of `sparse`, and as the candidate the means of `dense` over the same windows, where it has all steps.

    A step of `dense` in a window that is not compared, or after the last one, is alone.
    """
    ends = np.searchsorted(dense.steps, sparse.steps, side="right")
    begins = np.searchsorted(dense.steps, np.concatenate(([0], sparse.steps[:-1])), side="right")
    lengths = np.diff(sparse.steps, prepend=0)
    # A single NaN would propagate into every later sum.
    is_number = np.isfinite(dense.losses)
    by_tokens = sparse.is_token_mean and bool(np.isfinite(dense.labelled_tokens).all())
    weights = np.where(is_number, dense.labelled_tokens if by_tokens else 1.0, 0.0)
    sums, totals, numbers = (
        np.concatenate(([0.0], np.cumsum(each)))
        for each in (np.where(is_number, dense.losses, 0.0) * weights, weights, is_number)
    )
    is_whole = (numbers[ends] - numbers[begins] == lengths) & (totals[ends] > totals[begins])
    means = (sums[ends] - sums[begins])[is_whole] / (totals[ends] - totals[begins])[is_whole]
    # The window of each step; one more for the steps after the last window.
    window = np.searchsorted(sparse.steps, dense.steps, side="left")
    is_alone = ~np.append(is_whole, False)[window]
    return Pair(sparse.steps[is_whole], sparse.losses[is_whole], means, sparse.steps[~is_whole], dense.steps[is_alone])


def no_records(source: str | Path) -> DataError:
    """The error for a file without losses."""
    return DataError(
        "no record with a step and a loss was found",
        code="no-training-records",
        remedy="give a run directory, trainer_state.json, trainer_log.jsonl, TensorBoard events or a CSV",
        where=source,
    )


def _number(value: Any) -> float:
    if isinstance(value, bool) or value is None:
        return np.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def _resolution(values: Sequence[Any]) -> float:
    """Half a unit of the last decimal place: the most places that any of the values shows."""
    exponents = [Decimal(repr(value)).as_tuple().exponent for value in values if isinstance(value, float)]
    places = max((-each for each in exponents if isinstance(each, int)), default=0)
    return 0.5 * 10.0**-places if places < 12 else 0.0
