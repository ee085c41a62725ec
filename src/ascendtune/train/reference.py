"""Log-probabilities under the reference model: computed once, before the first step, and kept in the run directory.

A reference never changes, so its answer to a row never does: no second model stays in memory while the policy trains,
and further epochs cost nothing. Only rows that the run will see are computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ascendtune.core.errors import MachineError, translated_disk_errors
from ascendtune.core.files import write_atomically
from ascendtune.core.log import say
from ascendtune.data.plan import Sequence_, share_of_rank
from ascendtune.data.store import TokenDataset
from ascendtune.train.batch import BatchMaker, DeviceBatch, idle
from ascendtune.train.precision import Precision
from ascendtune.train.strategy.base import Strategy

LogProbs = Callable[[DeviceBatch], torch.Tensor]
"""(documents,) summed log-probabilities of a micro-batch."""

_SAY_SECONDS = 10.0


def reference_log_probs(
    path: Path,
    dataset: TokenDataset,
    global_batches: Iterable[list[Sequence_]],
    *,
    batches: BatchMaker,
    per_device: int,
    strategy: Strategy,
    precision: Precision,
    reference: Callable[[], AbstractContextManager[LogProbs]],
) -> NDArray[np.float32]:
    """(rows,) fp32, NaN where no batch has the row. Every rank calls it.

    Args:
        path: the file that keeps them; what it holds already is not computed again.
        global_batches: the batches of the run, in its order: the same rows meet in a micro-batch as in training, so
            that rounding is the same and the first loss is the closed form of its kind.
        reference: makes the reference model ready while the context lasts; entered only when something is missing.

    Raises:
        MachineError: the file is damaged or cannot be written.
    """
    found = _read(path, len(dataset))
    strategy.barrier()
    missing = [each for each in global_batches if np.isnan(found[_rows_of(each, dataset)]).any()]
    if not missing:
        return found
    with reference() as log_probs, torch.no_grad(), precision.autocast():
        computed = _compute(log_probs, missing, dataset, batches, per_device, strategy)
    known = ~np.isnan(computed)
    found[known] = computed[known]
    if strategy.is_main:
        _write(path, found)
    strategy.barrier()
    return found


def _compute(
    log_probs: LogProbs,
    global_batches: list[list[Sequence_]],
    dataset: TokenDataset,
    batches: BatchMaker,
    per_device: int,
    strategy: Strategy,
) -> NDArray[np.float32]:
    """(rows,) NaN where no batch has the row; the same on all ranks."""
    device = strategy.device.torch_device
    values = torch.zeros(len(dataset), dtype=torch.float32, device=device)
    last_said = time.monotonic()
    for done, sequences in enumerate(global_batches):
        for share in share_of_rank(
            sequences, rank=strategy.rank, world_size=strategy.world_size, per_device=per_device
        ):
            if share:
                for rows, batch in batches.parts(share):
                    values[torch.tensor(rows, device=device)] = log_probs(batch)
            else:
                # A rank without work must still take part in the collectives.
                for _, batch in batches.parts(sequences[:1]):
                    log_probs(idle(batch))
        if strategy.is_main and time.monotonic() - last_said > _SAY_SECONDS:
            last_said = time.monotonic()
            say(f"reference log-probabilities: {done + 1:,} of {len(global_batches):,} batches")
    strategy.all_reduce(values)
    seen = np.zeros(len(dataset), bool)
    for sequences in global_batches:
        seen[_rows_of(sequences, dataset)] = True
    return np.where(seen, values.cpu().numpy(), np.float32(np.nan))


def _rows_of(sequences: list[Sequence_], dataset: TokenDataset) -> list[int]:
    size = dataset.group_size
    return [group * size + within for sequence in sequences for group in sequence for within in range(size)]


def _read(path: Path, rows: int) -> NDArray[np.float32]:
    if not path.exists():
        return np.full(rows, np.nan, np.float32)
    content = np.fromfile(path, "<f4")
    if len(content) != rows:
        raise MachineError(
            f"the reference log-probabilities are damaged: {len(content):,} values for {rows:,} rows",
            remedy="delete this file: they are computed again",
            where=path,
        )
    return content.astype(np.float32, copy=False)


def _write(path: Path, values: NDArray[np.float32]) -> None:
    with translated_disk_errors(path, "writing reference log-probabilities"):
        write_atomically(path, values.astype("<f4").tobytes())
