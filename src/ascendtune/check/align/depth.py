"""The number of blocks of a model, from the recorded names of its weights or from its config.json."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ascendtune.core.foreign_json import read_json_object
from ascendtune.hub.model_config import LAYERS

_NUMBERED = re.compile(r"(.*?)(?:^|\.)(0|[1-9][0-9]{0,5})\.")
"""Name up to its first number; a list inside a block (experts) adds a second number."""


def depth_of_names(parameters: Iterable[str]) -> int | None:
    """Length of the longest list of modules that is not inside another one; None if no name contains a number."""
    members: dict[str, set[str]] = defaultdict(set)
    for name in parameters:
        if match := _NUMBERED.match(name):
            members[match[1]].add(match[2])
    return max(map(len, members.values()), default=None)


def depth_of_config(model_directory: Any) -> int | None:
    """Number of layers in the model's config.json; None if the model is not on this machine."""
    depths = (section.get(key) for section in sections_of_config(model_directory) for key in LAYERS)
    return next((each for each in depths if type(each) is int and each > 0), None)


def sections_of_config(model_directory: Any) -> tuple[dict[str, Any], ...]:
    """config.json of a model, and the section of its decoder if there is one; empty if it is not on this machine."""
    config = Path(str(model_directory)) / "config.json"
    if not config.is_file():
        return ()
    content = read_json_object(config)
    text = content.get("text_config")
    return (content, text) if isinstance(text, dict) else (content,)
