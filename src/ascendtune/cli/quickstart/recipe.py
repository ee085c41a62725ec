"""The recipe of the quickstart, as its reader should meet a first recipe: short, with a reason at each choice."""

from __future__ import annotations

import json
import re
from pathlib import Path

_TEXT = """\
name: sort-letters
run_dir: {runs}

model:
  path: {model}

data:
  train: {data}
  max_length: 1024  # short rows are packed up to it

optim:
  learning_rate: 2e-3  # high: the weights start random
  scheduler: cosine
  min_learning_rate_ratio: 0.05
  warmup_steps: 50
  beta2: 0.98
  max_steps: 450

precision: fp32
"""


def recipe_text(directory: Path) -> str:
    """The recipe for the quickstart's files in `directory`."""
    places = {"runs": "runs/{name}", "model": "base-model", "data": "train.jsonl"}
    return _TEXT.format(**{word: _scalar(str(directory / place)) for word, place in places.items()})


def _scalar(text: str) -> str:
    """As YAML: plain where that is safe, else in quotes."""
    return text if re.fullmatch(r"[\w./][\w./{}-]*", text) else json.dumps(text)
