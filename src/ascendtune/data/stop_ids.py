"""Adds the tokens at which generation stops to generation_config.json: other programs know no others."""

from __future__ import annotations

from pathlib import Path

from ascendtune.core.errors import RecipeError
from ascendtune.core.foreign_json import read_json_object
from ascendtune.core.records import write_json
from ascendtune.data.template import ChatTemplate
from ascendtune.data.tokenizer import Tokenizer


def add_stop_ids(directory: Path) -> None:
    """Add the tokens that end a turn of the chat template to `eos_token_id` of the model in `directory`.

    A base model has its end of text there; a chat template that it is trained with may end turns with another token, at
    which the trained model would not stop in other programs.
    """
    path = directory / "generation_config.json"
    if not path.is_file():
        return
    try:
        tokenizer = Tokenizer.load(directory)
        stops = ChatTemplate.load("auto", tokenizer).stop_ids
        content = read_json_object(path)
    except RecipeError:
        # Without a template, or with files that only other programs can use, there is nothing to add.
        return
    listed = content.get("eos_token_id")
    present = listed if isinstance(listed, list) else [] if listed is None else [listed]
    if new := [each for each in stops if each not in present]:
        write_json(path, {**content, "eos_token_id": [*present, *new]})
