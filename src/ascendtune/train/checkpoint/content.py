"""The interface of the content of checkpoints: weights and optimizer state, written and read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

from ascendtune.core.errors import MachineError


class CheckpointContent(ABC):
    """Weights and optimizer state of a run, in one of the forms that checkpoints have."""

    form: ClassVar[str]
    """For state.json: only the same form can be read."""
    on_any_ranks: ClassVar[bool]
    """Whether another number of ranks can read it."""

    @abstractmethod
    def size_bytes(self) -> int:
        """What `write` will take on the disk, all ranks together; about."""

    @abstractmethod
    def write(self, directory: Path) -> Future[Any]:
        """Copy everything now, and write this rank's part; done when every rank's is written."""

    @abstractmethod
    def read(self, directory: Path) -> None:
        """Put back what `write` wrote.

        Raises:
            MachineError: it is damaged.
            InputError: it belongs to another model.
        """


def damaged(directory: Path, why: object) -> MachineError:
    """The error for a checkpoint that cannot be read."""
    return MachineError(
        f"the checkpoint is damaged: {str(why) or type(why).__name__}",
        code="checkpoint-damaged",
        remedy="delete this directory; the run goes on from the one before, or with checkpoint.resume: never",
        where=directory,
    )


def causes_of(error: BaseException) -> list[BaseException]:
    """The error and what it came from, also on other ranks."""
    found = [error]
    while (cause := found[-1].__cause__ or found[-1].__context__) is not None and cause not in found:
        found.append(cause)
    failures = getattr(error, "failures", None)  # DCP's CheckpointException: rank -> (exception, traceback)
    if isinstance(failures, dict):
        found += [each[0] for each in failures.values()]
    return found
