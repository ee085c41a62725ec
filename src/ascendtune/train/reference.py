"""Log-probabilities under the reference model: computed once, before the first step, and kept in the run directory.

A reference never changes, so its answer to a row never does: no second model stays in memory while the policy trains,
and further epochs cost nothing. Only rows that the run will see are computed. Batches are kept as a whole: after a stop
in the middle the others are computed as they would have been.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ascendtune.core.errors import MachineError, Stopped, translated_disk_errors
from ascendtune.core.files import write_atomically
from ascendtune.core.log import say
from ascendtune.core.units import format_duration
from ascendtune.data.plan import PackedSequence, share_of_rank
from ascendtune.data.store import TokenDataset
from ascendtune.train.batch import BatchMaker, DeviceBatch, dummy_batch
from ascendtune.train.objective.double_float import DoubleFloat
from ascendtune.train.precision import Precision
from ascendtune.train.stop_request import StopRequest, flags_of, signal_of
from ascendtune.train.strategy.base import Strategy

LogProbs = Callable[[DeviceBatch], DoubleFloat]
"""(documents,) summed log-probabilities of a micro-batch."""

_SAY_SECONDS = 10.0
_KEEP_SECONDS = 30.0
"""Between two writes: what a crash, which asks nobody, may cost."""


def reference_log_probs(
    path: Path,
    dataset: TokenDataset,
    global_batches: Iterable[list[PackedSequence]],
    *,
    batches: BatchMaker,
    per_device: int,
    strategy: Strategy,
    precision: Precision,
    reference: Callable[[], AbstractContextManager[LogProbs]],
    pulse: Callable[[], None],
    stop: StopRequest,
) -> NDArray[np.float64]:
    """(rows,) fp64, NaN where no batch has the row. Every rank calls it.

    Args:
        path: the file that keeps them; what it holds already is not computed again.
        global_batches: the batches of the run, in its order: the same rows meet in a micro-batch as in training, so
            that rounding is the same and the first loss is the closed form of its kind.
        reference: makes the reference model ready while the context lasts; entered only when something is missing.
        pulse: called before every batch, as a sign of life.
        stop: is looked at after every batch.

    Raises:
        MachineError: the file is damaged or cannot be written.
        Stopped: a signal came; what is computed is in the file.
    """
    wanted = list(global_batches)
    found = _read(path, len(dataset))
    strategy.barrier()
    missing = [each for each in wanted if np.isnan(found[_rows_of(each, dataset)]).any()]
    if not missing:
        return found
    if strategy.is_main and len(missing) < len(wanted):
        say(f"reference log-probabilities: {len(wanted) - len(missing):,} of {len(wanted):,} batches are there already")
    values = torch.zeros((2, len(dataset)), dtype=torch.float32, device=strategy.device.torch_device)
    new: list[int] = []
    begun = last_said = last_kept = time.monotonic()
    with reference() as log_probs, torch.no_grad(), precision.autocast():
        for done, sequences in enumerate(missing, 1):
            pulse()
            _compute(values, log_probs, sequences, batches, per_device, strategy)
            new += _rows_of(sequences, dataset)
            now = time.monotonic()
            asked, is_time = _agreed(stop.signal_number, now - last_kept > _KEEP_SECONDS, strategy)
            if asked or is_time or done == len(missing):
                _keep(path, found, values, new, strategy)
                new, last_kept = [], now
            if asked:
                raise _stopped(asked, len(wanted) - len(missing) + done, len(wanted), path)
            if strategy.is_main and now - last_said > _SAY_SECONDS:
                last_said = now
                left = format_duration((now - begun) / done * (len(missing) - done))
                say(f"reference log-probabilities: {done:,} of {len(missing):,} batches, {left} left")
    return found


def _compute(
    values: torch.Tensor,
    log_probs: LogProbs,
    sequences: list[PackedSequence],
    batches: BatchMaker,
    per_device: int,
    strategy: Strategy,
) -> None:
    """Put this rank's share of a global batch into `values`: (2, rows) fp32, the two parts of each sum."""
    for share in share_of_rank(sequences, rank=strategy.rank, world_size=strategy.world_size, per_device=per_device):
        if share:
            for rows, batch in batches.parts(share):
                values[:, torch.tensor(rows, device=values.device)] = torch.stack(log_probs(batch))
        else:
            # A rank without work must still take part in the collectives.
            for _, batch in batches.parts(sequences[:1]):
                log_probs(dummy_batch(batch))


def _agreed(signal_number: int, is_time: bool, strategy: Strategy) -> tuple[int, bool]:
    """The signal that reached any rank, and whether it is time to keep what there is, by the main rank's clock."""
    if strategy.world_size == 1:
        return signal_number, is_time
    *flags, due = strategy.sum([*flags_of(signal_number), float(is_time and strategy.is_main)])
    return signal_of(flags), due > 0


def _keep(path: Path, found: NDArray[np.float64], values: torch.Tensor, new: list[int], strategy: Strategy) -> None:
    """Bring the rows `new` of all ranks into `found` and into the file; `values` is empty after that."""
    strategy.all_reduce(values)
    # Summed on the host: not every device has fp64.
    found[new] = values.cpu().numpy().astype(np.float64).sum(axis=0)[new]
    values.zero_()
    if strategy.is_main:
        _write(path, found)
    # Nobody leaves before they are kept: the first rank to leave makes torchrun end the others.
    strategy.barrier()


def _stopped(number: int, done: int, wanted: int, path: Path) -> Stopped:
    return Stopped(
        f"stopped by {signal.Signals(number).name} before the first step; of the reference log-probabilities "
        f"{done:,} of {wanted:,} batches are kept",
        remedy="give the same command again to go on from there",
        signal_number=number,
        where=path,
    )


def _rows_of(sequences: list[PackedSequence], dataset: TokenDataset) -> list[int]:
    size = dataset.group_size
    return [group * size + within for sequence in sequences for group in sequence for within in range(size)]


def _read(path: Path, rows: int) -> NDArray[np.float64]:
    if not path.exists():
        return np.full(rows, np.nan)
    content = np.fromfile(path, "<f8")
    if len(content) != rows:
        raise MachineError(
            f"the reference log-probabilities are damaged: {len(content):,} values for {rows:,} rows",
            remedy="delete this file: they are computed again",
            where=path,
        )
    return content.astype(np.float64, copy=False)


def _write(path: Path, values: NDArray[np.float64]) -> None:
    with translated_disk_errors(path, "writing reference log-probabilities"):
        write_atomically(path, values.astype("<f8").tobytes())
