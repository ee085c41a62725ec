"""What stands below an exception and belongs to its message: fields of pydantic, the marked line of a Triton kernel,
the shapes of accelerate's processes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

_FIELD = re.compile(r"(?! )[\w.-]+(?: -> [\w.-]+)*$")
_OF_FIELD = re.compile(r"\s*\S.*[\[(]type=\w+")
_OF_WHOLE = re.compile(r"\s*(?:Value error|Assertion failed), (?P<reason>.*?)(?: \[type=\w+.*)?$")
"""What a check of the whole configuration raised, below a message of pydantic."""
_READ_MORE = "For further information visit"
_MOST_FIELDS = 3
_OF_KERNEL = re.compile(r"\bat \d+:\d+:(?=\s|$)")
"""Of a message of Triton, below which the source of the kernel stands up to its faulty line."""
_OF_PYTEST = re.compile(r"E(?= {2,}|$)")
_MARK = re.compile(r"\s*\^\s*$")
_OF_SHAPES = "due to shape mismatches"
_SHAPE = re.compile(r"\s*- (?P<process>Process \d+): (?P<shape>[\[({].{0,80})")
_OPERATION = re.compile(r"\s*Operation: `(?:[\w.]+\.)?(?P<name>\w+)`")
_MOST_SHAPES = 4


def refused_fields(below: list[str]) -> Iterator[tuple[str, str]]:
    """The fields that pydantic refuses, each with the reason that stands below its name: as words to append to the
    message, and as a line of the log."""
    rows = [line for line in below if line.strip() and not line.lstrip().startswith(_READ_MORE)][: 2 * _MOST_FIELDS]
    if rows and (whole := _OF_WHOLE.match(rows[0])):
        yield f": {whole['reason']}", rows[0].strip()
        return
    between = ": "
    for name, reason in zip(rows[::2], rows[1::2], strict=False):
        if not (_FIELD.match(name.rstrip()) and _OF_FIELD.match(reason)):
            return
        said = f"{name.strip()}: {reason.strip()}"
        yield f"{between}{said}", said
        between = "; "


def fault_of_kernel(message: str, below: list[str]) -> tuple[str, str]:
    """The message of Triton with the reason and the marked line of the kernel's source that stand below it, and the
    line of the log that has the reason; empty where the log lacks them."""
    place = _OF_KERNEL.search(message)
    lines = [_OF_PYTEST.sub(" ", line) for line in below]
    at = next((index for index, line in enumerate(lines) if index and _MARK.match(line)), None)
    if place is None or at is None:
        return "", ""
    reason = next(filter(None, map(str.strip, lines[at + 1 :])), "")
    return (f"{message[: place.end()]} {reason} (`{lines[at - 1].strip()}`)", reason) if reason else ("", "")


def shapes_of_processes(message: str, below: list[str]) -> str:
    """What accelerate lists of a collective whose tensors differ: its name, and the shape of each process."""
    if _OF_SHAPES not in message:
        return ""
    operation = next((match["name"] for match in map(_OPERATION.match, below) if match), "")
    shapes = (f"{match['process']}: {match['shape'].strip()}" for match in map(_SHAPE.match, below) if match)
    listed = ", ".join(islice(shapes, _MOST_SHAPES))
    return f"{operation}: {listed}" if operation and listed else ""
