"""Loss curves: the numbers that a training recorded for each step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ascendtune.core.errors import DataError

Floats = NDArray[np.float64]
Reading = Literal["steps", "tokens", "single"]
"""Meaning of a record of several steps: the mean over the steps, the mean over their labelled tokens, pairs or answers,
or the loss of the last step."""
_MOST_STEPS = 2**53
"""Above it a float cannot represent every integer."""
_COLUMNS = ("loss", "grad_norm", "learning_rate", "labelled_tokens", "groups")


@dataclass(frozen=True)
class Curve:
    """One record per entry, in the order of the steps.

    Attributes:
        steps: (records,) int64, strictly increasing.
        losses, grad_norms, learning_rates: (records,) float64, NaN if not recorded or not finite.
        readings: possible meanings of a record of several steps; more than one if the log does not specify it.
        labelled_tokens: (records,) float64, NaN if not recorded.
        groups: (records,) float64, number of pairs or answers if the loss is a mean over these; NaN if not recorded.
        batch_hashes: (records,) hashes of the rows of a record's last step; None if not recorded.
        resolution: half a unit of the last digit of the written losses; 0 at full precision.
        resumed_at: first steps of later attempts, as far as recorded.
        is_whole: whether each record is known to cover all steps since the previous one, the first from step 1 on.
    """

    steps: NDArray[np.int64]
    losses: Floats
    grad_norms: Floats
    learning_rates: Floats
    labelled_tokens: Floats
    groups: Floats
    batch_hashes: tuple[str | None, ...]
    resolution: float
    readings: tuple[Reading, ...] = ("steps", "tokens", "single")
    is_whole: bool = False
    resumed_at: tuple[int, ...] = ()

    @classmethod
    def of_records(
        cls, records: Iterable[Mapping[str, Any]], names: Mapping[str, str], *, rounded: bool, source: str
    ) -> Curve:
        """A curve from dictionaries.

        Args:
            names: keys in a record by `step` and `loss`, and any of `grad_norm`, `learning_rate`, `labelled_tokens`,
                `groups`, `batch_hash`, `tokens` (of the record) and `tokens_seen` (since step 1). A record without step
                or loss, such as an evaluation, is omitted. Of records of the same step, as after a resume, the last
                counts.
            rounded: whether losses were written with few decimal places; the places are then counted.
            source: path of the file, for messages.

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
            columns: (records,) float64 by name, as in `of_records`, and `attempt`. A record whose step is not an
                integer is omitted. Of records of the same step the last counts.
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
            raise no_records_error(source)
        # np.unique finds the first of equal steps.
        unique, from_the_end = np.unique(steps[::-1], return_index=True)
        last = len(steps) - 1 - from_the_end
        missing = np.full(len(unique), np.nan)
        values = {name: columns[name][last] if name in columns else missing for name in _COLUMNS}
        hashes = tuple(batch_hashes[each] for each in last.tolist())
        of_record, tokens_seen = (
            columns[name][last[0]] if name in columns else np.nan for name in ("tokens", "tokens_seen")
        )
        return cls(
            unique,
            values["loss"],
            values["grad_norm"],
            values["learning_rate"],
            values["labelled_tokens"],
            values["groups"],
            hashes,
            resolution,
            is_whole=bool(of_record == tokens_seen),
            resumed_at=tuple(unique[1:][np.diff(columns["attempt"][last]) > 0].tolist())
            if "attempt" in columns
            else (),
        )

    @classmethod
    def empty(cls) -> Curve:
        """A curve without records, for a side that dumped only tensors."""
        none = np.empty(0)
        return cls(np.empty(0, dtype=np.int64), none, none, none, none, none, (), 0.0)

    @property
    def weights(self) -> Floats:
        """(records,) float64: weights of the mean, pairs or answers if recorded, otherwise labelled tokens.

        NaN if unknown.
        """
        return self.groups if np.isfinite(self.groups).any() else self.labelled_tokens

    def has_equal_groups(self) -> bool:
        """Whether all steps have the same number of pairs or answers, as far as recorded."""
        of_step = self.groups / np.diff(self.steps, prepend=0)
        return not np.isfinite(of_step).any() or bool(np.ptp(of_step) == 0)

    def is_sparse(self) -> bool:
        """Whether a record covers several steps, as with `logging_steps` above 1."""
        if self.is_whole:
            return bool((np.diff(self.steps, prepend=0) > 1).any())
        gaps = np.diff(self.steps) if len(self.steps) > 1 else self.steps
        return bool(len(gaps) and np.median(gaps) > 1)


def no_records_error(source: str | Path) -> DataError:
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
    """Half a unit of the last decimal place; the places are the largest number in any of the values."""
    exponents = [Decimal(repr(value)).as_tuple().exponent for value in values if isinstance(value, float)]
    places = max((-each for each in exponents if isinstance(each, int)), default=0)
    return 0.5 * 10.0**-places if places < 12 else 0.0
