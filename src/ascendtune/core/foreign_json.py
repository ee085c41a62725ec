"""JSON files that other programs wrote: regular files of bounded size and depth. Every error names file and field."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeGuard

from ascendtune.core.errors import RecipeError, read_fault
from ascendtune.core.files import NotRegular, open_regular

LFS_POINTER = b"version https://git-"
"""Beginning of a file in a clone of a hub's repository whose content Git LFS has not downloaded."""
_MOST_BYTES = 32 << 20
_DEEPEST = 64
_LARGEST = sys.float_info.max
_SHOWN_CHARACTERS = 40
_SHOWN_NAMES = 3


class _Unfit(ValueError):
    """Valid JSON with content that such a file must not contain."""


@contextmanager
def open_foreign(path: Path) -> Iterator[BinaryIO]:
    """A regular file, open for reading. A pipe or a device is refused, and opening one never blocks.

    Raises:
        RecipeError: not a regular file, or absent.
        MachineError: permission is denied, or the disk fails.
    """
    try:
        with open_regular(path) as file:
            yield file
    except NotRegular as error:
        what = f"{path.name} is not a regular file"
        raise RecipeError(what, code="not-a-regular-file", remedy=remedy_for_damaged(path), where=path) from error
    except OSError as error:
        fault = RecipeError(
            f"{path.name} cannot be read: {error.strerror}", code="file-unreadable", remedy="check the file", where=path
        )
        raise read_fault(error, path) or fault from error


def read_regular_file(path: Path, most_bytes: int = _MOST_BYTES) -> bytes:
    """The content of a regular file of bounded size.

    Args:
        most_bytes: a larger file is refused before it is read.

    Raises:
        RecipeError: not a regular file, too large, absent, or a pointer in place of the content.
        MachineError: permission is denied, or the disk fails.
    """
    with open_foreign(path) as file:
        content = file.read(most_bytes + 1)
    if content.startswith(LFS_POINTER):
        raise RecipeError(
            f"{path.name} is a Git LFS pointer, not the file's content",
            code="git-lfs-pointer",
            remedy=remedy_for_damaged(path, "run `git lfs pull` in its directory"),
            where=path,
        )
    if len(content) > most_bytes:
        raise RecipeError(
            f"{path.name} is larger than {most_bytes >> 20} MiB, the limit for this file",
            code="file-too-large",
            remedy=remedy_for_damaged(path),
            where=path,
        )
    return content


def read_json_file(path: Path, most_bytes: int = _MOST_BYTES) -> Any:
    """The content of a JSON file.

    Raises:
        RecipeError: not a regular file, too large, not JSON, nested too deeply, a key that occurs twice with different
            values, or text that is not valid Unicode.
        MachineError: permission is denied, or the disk fails.
    """
    return parsed_json(read_regular_file(path, most_bytes), path)


def read_json_object(path: Path, most_bytes: int = _MOST_BYTES) -> dict[str, Any]:
    """`read_json_file` for a file that contains an object.

    Raises:
        RecipeError: as `read_json_file`, or the content is not an object.
        MachineError: permission is denied, or the disk fails.
    """
    content = read_json_file(path, most_bytes)
    if not isinstance(content, dict):
        raise RecipeError(
            f"{path.name} contains {kind_of(content)}, not an object",
            code="not-an-object",
            remedy=remedy_for_damaged(path),
            where=path,
        )
    return content


def parsed_json(content: bytes, path: Path) -> Any:
    """JSON from bytes, under the same limits.

    Args:
        path: where the bytes came from, for the message.

    Raises:
        RecipeError: see `read_json_file`.
    """
    try:
        parsed = json.loads(content.decode(), object_pairs_hook=_without_contradictions)
        _require_shallow_unicode(parsed)
    except _Unfit as error:
        raise RecipeError(
            f"{path.name}: {error}", code="invalid-json", remedy=remedy_for_damaged(path), where=path
        ) from error
    except RecursionError as error:
        raise RecipeError(
            f"{path.name} is nested too deeply", code="json-too-deep", remedy=remedy_for_damaged(path), where=path
        ) from error
    except ValueError as error:
        raise RecipeError(
            f"{path.name} is not readable as JSON: {error}",
            code="invalid-json",
            remedy=remedy_for_damaged(path),
            where=path,
        ) from error
    return parsed


def remedy_for_damaged(path: Path, otherwise: str = "copy or download it again") -> str:
    """The remedy for a file with wrong content. Hugging Face's cache links to stored contents, so a new download would
    link to the same content again."""
    if path.is_symlink() and path.parent.parent.name == "snapshots":
        return f"remove {path.resolve()}, and repeat the command: it is then downloaded again"
    return otherwise


def bad_field(path: Path, key: str, value: object, expected: str, remedy: str = "") -> RecipeError:
    """The error for a field with an invalid value.

    Args:
        expected: the valid values, as in "a whole number above 0".
    """
    return RecipeError(
        f"{path.name}: {key} is {shown_value(value)}, and must be {expected}",
        code="invalid-field",
        remedy=remedy or f"correct {key}, or copy {path.name} again from the source of the model",
        where=path,
    )


def shown_value(value: object) -> str:
    """A value from a file, shortened for a message."""
    if isinstance(value, dict | list):
        return kind_of(value)
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number of more than 64 bits"
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def shown_names(names: Iterable[str]) -> str:
    """The first few of many names: `a, b, c, … (12)`."""
    every = sorted(names)
    if len(every) <= _SHOWN_NAMES:
        return ", ".join(every)
    return f"{', '.join(every[:_SHOWN_NAMES])}, … ({len(every):,})"


def kind_of(value: object) -> str:
    """JSON's name for the type of a value, with its article."""
    if value is None:
        return "null"
    kinds = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return kinds[type(value)]


def value_at(values: Any, *keys: str) -> Any:
    """The value at a path of keys through nested objects; None if a key is missing."""
    for key in keys:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values


def object_of(value: Any) -> dict[str, Any]:
    """`value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def is_number(value: object, least: float = -_LARGEST, most: float = _LARGEST) -> TypeGuard[float]:
    """Whether `value` is a finite int or float in the range; false for true and false."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def is_text_list(value: object) -> bool:
    """Whether `value` is a list of texts."""
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


class FieldRule(NamedTuple):
    """Valid values of a field of a JSON object: a test of the value, and words for the message."""

    accepts: Callable[[Any], bool]
    expected: str


TEXT = FieldRule(lambda value: isinstance(value, str), "a text")
TEXT_LIST = FieldRule(is_text_list, "a list of texts")
FLAG = FieldRule(lambda value: isinstance(value, bool), "true or false")


def check_fields(
    path: Path,
    fields: Mapping[str, Any],
    rules: Mapping[FieldRule, Sequence[str]],
    prefix: str = "",
    *,
    never_null: str,
) -> None:
    """Raise RecipeError for a field whose value its rule does not accept; a field without a rule may have any value.

    Args:
        rules: rule -> names of fields.
        prefix: path of the object in the file, for the message.
        never_null: the one field that may not be null.
    """
    of_name = {name: rule for rule, names in rules.items() for name in names}
    for key, value in fields.items():
        rule = of_name.get(key) if value is not None or key == never_null else None
        if rule is not None and not rule.accepts(value):
            raise bad_field(path, prefix + key, value, rule.expected)


def first_line(error: BaseException) -> str:
    """The first sentence of a library's error message; the error's type where the message is empty."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    if lines[0].endswith(":") and len(lines) > 1:
        # A heading, as huggingface_hub writes it above the error of a field's validator.
        return re.sub(r"^\w+Error: ", "", lines[1].strip())
    # The text of a KeyError is the key only.
    return f"{type(error).__name__}: {lines[0]}" if isinstance(error, LookupError) else lines[0]


def _without_contradictions(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values and values[key] != value:
            raise _Unfit(f"the key {shown_value(key)} occurs twice with different values")
        values[key] = value
    return values


def _require_shallow_unicode(content: Any) -> None:
    """Raise for deep nesting, which libraries traverse recursively, and for text that cannot be encoded."""
    level, depth = [content], 0
    while level:
        if depth > _DEEPEST:
            raise _Unfit(f"nested more than {_DEEPEST} levels deep")
        below: list[Any] = []
        for each in level:
            if isinstance(each, str):
                _require_unicode(each)
            elif isinstance(each, dict):
                for key in each:
                    _require_unicode(key)
                below += each.values()
            elif isinstance(each, list):
                below += each
        level, depth = below, depth + 1


def _require_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _Unfit("a text contains half of a surrogate pair, which is not Unicode") from error
