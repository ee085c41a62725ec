"""The request to record another training. Free of torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ascendtune.core.config import Contradiction
from ascendtune.core.errors import InputError
from ascendtune.recipe.sections import steps_in

VARIABLE = "ASCENDTUNE_RECORD"
"""Environment variable with the request, as JSON, for `train.recording.script`."""
PROGRAM = "ascendtune.train.recording.script"
METRICS = "metrics.jsonl"
RESUMED = ".resumed"
"""Created by the training that continues a recording: no other one of the same command is recorded then."""


@dataclass(frozen=True)
class RecordRequest:
    """Directory and content of a recording.

    Attributes:
        steps: steps to dump, such as "1-3,10".
        content: "statistics" or "tensors".
        is_child: whether the recorded process was started by a recorded process.
        resumes: whether the training continues the recording in the directory, if there is one.
    """

    directory: str
    steps: str
    content: str
    is_child: bool = False
    resumes: bool = False

    def prepare(self) -> None:
        """Create the directory.

        Raises:
            InputError: it contains a recording and this one does not continue it, or `steps` is invalid.
        """
        try:
            self.ranges()
        except Contradiction as error:
            raise InputError(error.what, code=error.code, remedy=error.remedy) from error
        path = Path(self.directory)
        names = ("run.json",) if self.resumes else ("recorded.json", METRICS, "dump")
        if any((path / name).exists() for name in names):
            raise InputError(
                "this directory contains a recording or a run",
                code="path-exists",
                remedy="give another directory, or remove this one; to continue the recording of a resumed training: "
                "ascendtune align record --resume",
                where=path,
            )
        (path / RESUMED).unlink(missing_ok=True)
        path.mkdir(parents=True, exist_ok=True)

    def ranges(self) -> list[range]:
        """The steps to dump, from 1."""
        return steps_in(self.steps)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RecordRequest:
        return cls(**json.loads(text))
