"""The hash of everything that prepared tokens depend on: any change prepares them again. Imports no heavy library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ascendtune.core.files import digest_of_file, expanded
from ascendtune.data.files import data_files
from ascendtune.data.spec import DataSection, DatasetSpec, Task

# The files that `Tokenizer.load` reads, besides those in `additional_chat_templates`.
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)

# Batches are made later, and the number of processes does not change the tokens; nor does their display.
_KEYS_WITHOUT_EFFECT = {"packing", "processes"}
_MODULES_WITHOUT_EFFECT = {"collate.py", "inspect.py", "inspect_packed.py", "plan.py", "workers.py"}
_LIBRARIES = ("tokenizers", "jinja2")


@dataclass(frozen=True)
class TokenInputs:
    """Everything that determines the tokens."""

    section: DataSection
    model_directory: Path
    """The directory of the tokenizer."""
    locations: Sequence[tuple[DatasetSpec, Path]]
    """Every data set of the section, and its location on this machine."""
    task: Task
    new_tokens: Sequence[str]
    seed: int
    """Seed for the choice of rows by a weight, `eval_fraction` or `eval_rows`."""

    def location_of(self, spec: DatasetSpec) -> Path:
        return next(path for other, path in self.locations if other is spec)


def fingerprint(inputs: TokenInputs) -> str:
    """A hexadecimal name of the tokens that result from the inputs.

    Raises:
        DataError: a data set does not exist.
    """
    section, model_directory, locations = inputs.section, inputs.model_directory, inputs.locations
    templates = sorted(model_directory.glob("additional_chat_templates/*.jinja"))
    tokenizer = {
        str(path.relative_to(model_directory)): digest_of_file(path)
        for path in (*(model_directory / name for name in _TOKENIZER_FILES), *templates)
        if path.is_file()
    }
    template = expanded(section.template)
    drawn = section.eval_fraction > 0 or section.eval_rows or any(spec.weight % 1 for spec, _ in locations)
    everything: dict[str, Any] = {
        "task": inputs.task,
        "section": section.model_dump(mode="json", exclude=_KEYS_WITHOUT_EFFECT),
        # The name of a file is included, because its suffix may decide the format.
        "files": [[(file.name, digest_of_file(file)) for file in data_files(spec, path)] for spec, path in locations],
        "tokenizer": tokenizer,
        "template": digest_of_file(template) if template.is_file() else None,
        "new_tokens": list(inputs.new_tokens),
        "seed": inputs.seed if drawn else None,
        "code": _code_version(),
        "libraries": {name: version(name) for name in _LIBRARIES},
    }
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:32]


def _code_version() -> str:
    room = Path(__file__).parent
    files = sorted(file for pattern in ("*.py", "*.jinja") for file in room.rglob(pattern))
    hashed = hashlib.sha256()
    for file in files:
        if file.name not in _MODULES_WITHOUT_EFFECT:
            hashed.update(f"{file.relative_to(room)}\0".encode())
            hashed.update(file.read_bytes())
    return hashed.hexdigest()
