"""For scripts of your own: record a training so that `ascendtune align` can compare it. Free of torch until used."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ascendtune.core.mask import command_without_secrets
from ascendtune.train.recording.request import RecordRequest

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def record(
    model: nn.Module,
    *,
    steps: int | str = "1-3",
    directory: str | Path = "recorded",
    content: Literal["statistics", "tensors"] = "statistics",
) -> Iterator[None]:
    """Record the training of `model` inside this context; the loop stays as it is.

    Losses and gradient norms of all steps are written, and of `steps` activations, gradients and parameters. On several
    ranks each one opens the context, before its first step.

    Args:
        model: as the loop calls it: alone, or in DistributedDataParallel, or after `fully_shard`.
        steps: such as "1-3,10"; a step is one `optimizer.step()`.
        directory: what `ascendtune align` reads; it must not hold a recording.
        content: statistics of tensors, or the tensors beside them.

    Raises:
        InputError: the directory holds a recording, or `steps` names no steps.
    """
    from ascendtune.train.recording.recording import Recording

    request = RecordRequest(str(directory), str(steps), content)
    if int(os.environ.get("RANK", "0")) == 0:
        request.prepare()
    with Recording(request, command_without_secrets([sys.executable, *sys.argv])).active(model):
        yield
