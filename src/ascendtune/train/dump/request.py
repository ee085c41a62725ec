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


@dataclass(frozen=True)
class RecordRequest:
    """Where a recording goes, and of which steps it has dumps.

    Attributes:
        steps: such as "1-3,10".
        content: "statistics" or "tensors".
        is_child: a process is recorded that a recorded process has started.
    """

    directory: str
    steps: str
    content: str
    is_child: bool = False

    def prepare(self) -> None:
        """Make the directory.

        Raises:
            InputError: it holds a recording, or `steps` names no steps.
        """
        try:
            self.ranges()
        except Contradiction as error:
            raise InputError(error.what, code=error.code, remedy=error.remedy) from error
        path = Path(self.directory)
        if any((path / name).exists() for name in ("recorded.json", "metrics.jsonl", "dump")):
            raise InputError(
                "this directory holds a recording or a run",
                code="path-exists",
                remedy="give another directory, or remove this one",
                where=path,
            )
        path.mkdir(parents=True, exist_ok=True)

    def ranges(self) -> list[range]:
        """The steps that are dumped, from 1."""
        return steps_in(self.steps)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RecordRequest:
        return cls(**json.loads(text))
