"""Histograms of the tensors that both sides dumped whole, for the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ascendtune.check.align.curve import Floats
from ascendtune.check.align.dump import Dump, RankDump, TensorKey, read_values
from ascendtune.check.align.dump_comparison import DumpComparison
from ascendtune.check.align.tensor_row import TensorRow

_BINS = 48
_MOST = 300
"""Number of tensors with a histogram; each takes two kilobytes of the page."""
_MOST_VALUES = 1 << 26
"""Number of values that are read for them, of both sides together; this takes some seconds."""


@dataclass(frozen=True, eq=False)
class Histogram:
    """Histogram of one tensor, for both sides.

    Attributes:
        edges: (bins + 1,) float64.
        reference, candidate: (bins,) counts.
    """

    edges: Floats
    reference: Floats
    candidate: Floats


def histograms_of(
    dumps: DumpComparison, reference: Dump | None, candidate: Dump | None
) -> Mapping[TensorKey, Histogram]:
    """Histograms of the shown rows: the first that differs, then those with the largest differences.

    Raises:
        DataError, RecipeError, MachineError: a file cannot be read.
    """
    if not dumps.rows or reference is None or candidate is None:
        return {}
    step, rank = dumps.rows[0].step, dumps.rows[0].rank
    files = [side.files.get(step, {}).get(rank) for side in (reference, candidate)]
    if files[0] is None or files[1] is None:
        return {}
    one, other = reference.read(files[0]), candidate.read(files[1])
    first = None if dumps.place is None or dumps.place.stage == "ranks" else dumps.place.row.key
    of_tensors: dict[TensorKey, Histogram] = {}
    left = _MOST_VALUES
    for row in sorted(dumps.rows, key=lambda row: (row.key != first, -row.excess))[:_MOST]:
        size = row.reference.numel + row.candidate.numel
        if size > left:
            continue
        left -= size
        if (histogram := _histogram(row, one, other)) is not None:
            of_tensors[row.key] = histogram
    return of_tensors


def _histogram(row: TensorRow, one: RankDump, other: RankDump) -> Histogram | None:
    values = read_values(one, row.reference), read_values(other, row.candidate)
    if values[0] is None or values[1] is None:
        return None
    finite = [each[np.isfinite(each)] for each in values if each is not None]
    edges = _edges(np.concatenate(finite))
    reference, candidate = (np.histogram(each, edges)[0].astype(np.float64) for each in finite)
    return Histogram(edges, reference, candidate)


def _edges(values: Floats) -> Floats:
    """(bins + 1,) float64, from the smallest to the largest of (values,), in strictly ascending order."""
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    # Bins narrower than the spacing of floats of this size would have equal edges.
    margin = max(0.5 if low == high else 0.0, 1e-12 * max(abs(low), abs(high)))
    return np.linspace(low - margin, high + margin, _BINS + 1)
