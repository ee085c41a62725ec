"""Converts PyYAML's errors to messages with a line and a remedy for common mistakes."""

from __future__ import annotations

import re

import yaml
from yaml.reader import ReaderError

from ascendtune.core.errors import RecipeError

FULL_WIDTH_COLON = "write ':' and a space, not the full-width colon '：'"
# A key with the colon of a Chinese keyboard, which YAML reads as a letter.
_KEY_WITH_FULL_WIDTH_COLON = re.compile(r"^\s*(- *)?[\w.-]+\s*：")

_TAGS_OF_YAML = "tag:yaml.org,2002:"
# JSON can escape all of them, and YAML these and more; a name or a path with one of them is a mistake or an attack.
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def syntax_fault(error: yaml.YAMLError, text: str, source: str) -> RecipeError:
    """The message for `text`, from the file `source`, that PyYAML cannot read."""
    language = "JSON" if source.endswith(".json") else "YAML"
    if isinstance(error, ReaderError):
        return _fault_of_character(error, text, source, language)
    if not isinstance(error, yaml.MarkedYAMLError):
        reason = " ".join(str(error).split())
        remedy = "check the file for stray characters"
        return RecipeError(f"not valid {language}: {reason}", code="invalid-yaml", remedy=remedy, where=source)
    mark = error.problem_mark or error.context_mark
    line = mark.line if mark else None
    problem = error.problem or error.context or ""
    if problem == "but found another document":
        problem = "a second document begins here"
    return RecipeError(
        f"not valid {language}: {problem}",
        code="invalid-yaml",
        remedy=_remedy(problem, text, line),
        where=source if line is None else f"{source}:{line + 1}",
    )


def _fault_of_character(error: ReaderError, text: str, source: str, language: str) -> RecipeError:
    character = error.character if isinstance(error.character, int) else ord(error.character)
    # UTF-16 without a mark, read as UTF-8, is text with a null byte beside each letter.
    remedy = "save the file as UTF-8 text" if character == 0 else "remove this character"
    return RecipeError(
        f"not valid {language}: it contains the character U+{character:04X}",
        code="invalid-yaml",
        remedy=remedy,
        where=f"{source}:{len(text[: error.position + 1].splitlines()) or 1}",
    )


def _remedy(problem: str, text: str, line: int | None) -> str:
    if "'\\t'" in problem:
        return "replace the tabs of this line by spaces"
    if "second document" in problem:
        return "keep one document in a file, and remove the line `---`"
    lines = text.splitlines()
    # A key without its colon is reported at the following line.
    around = lines[max(0, line - 1) : line + 1] if line is not None else []
    if any(map(_KEY_WITH_FULL_WIDTH_COLON.match, around)):
        return FULL_WIDTH_COLON
    return "check indentation, colons and quotes at this line"


def fault_of_text(text: str) -> str | None:
    """Text that a value must not contain: a description of the first that is found, or None."""
    if control := _CONTROL_CHARACTERS.search(text):
        return f"the control character U+{ord(control.group()):04X}"
    if control := _SURROGATES.search(text):
        return f"half a surrogate pair (U+{ord(control.group()):04X}), which is not a character"
    return None


def tag_as_written(tag: str) -> str:
    """`!!int` for `tag:yaml.org,2002:int`, as PyYAML expands it."""
    return tag.replace(_TAGS_OF_YAML, "!!", 1) if tag.startswith(_TAGS_OF_YAML) else tag
