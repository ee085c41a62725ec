"""What a recording of another training shall hold. Free of torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ascendtune.core.config import Contradiction
from ascendtune.core.errors import InputError
from ascendtune.recipe.sections import steps_in

VARIABLE = "ASCENDTUNE_RECORD"
"""Environment variable with the request, as JSON, for `train.dump.script`."""
PROGRAM = "ascendtune.train.dump.script"
METRICS = "metrics.jsonl"
RESUMED = ".resumed"
"""Made by the training that goes on with a recording: another one of the same command is not recorded."""


@dataclass(frozen=True)
class RecordRequest:
    """Where a recording goes, and of which steps it has dumps.

    Attributes:
        steps: such as "1-3,10".
        content: "statistics" or "tensors".
        is_child: a process is recorded that a recorded process has started.
        resumes: the training goes on with that of the recording in the directory, if there is one.
    """

    directory: str
    steps: str
    content: str
    is_child: bool = False
    resumes: bool = False

    def prepare(self) -> None:
        """Make the directory.

        Raises:
            InputError: it holds a recording and this one does not go on with it, or `steps` names no steps.
        """
        try:
            self.ranges()
        except Contradiction as error:
            raise InputError(error.what, code=error.code, remedy=error.remedy) from error
        path = Path(self.directory)
        known = ("run.json",) if self.resumes else ("recorded.json", METRICS, "dump")
        if any((path / name).exists() for name in known):
            raise InputError(
                "this directory holds a recording or a run",
                code="path-exists",
                remedy="give another directory, or remove this one; to go on with the recording of a training that was "
                "resumed: ascendtune align record --resume",
                where=path,
            )
        (path / RESUMED).unlink(missing_ok=True)
        path.mkdir(parents=True, exist_ok=True)

    def ranges(self) -> list[range]:
        """The steps that are dumped, from 1."""
        return steps_in(self.steps)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RecordRequest:
        return cls(**json.loads(text))
