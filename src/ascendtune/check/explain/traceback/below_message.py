"""Lines below an exception that belong to its message: fields of pydantic, the marked line of a Triton kernel, the
shapes of accelerate's processes, marks of PyYAML, MindSpore's line of the model and its sections."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import dropwhile, islice

from ascendtune.check.explain.log.frame import is_own

_FIELD = re.compile(r"(?! )[\w.-]+(?: -> [\w.-]+)*$")
_OF_FIELD = re.compile(r"\s*\S.*[\[(]type=\w+")
_OF_WHOLE = re.compile(r"\s*(?:Value error|Assertion failed), (?P<reason>.*?)(?: \[type=\w+.*)?$")
"""Error of a check of the whole configuration, below a message of pydantic."""
_READ_MORE = "For further information visit"
_MOST_FIELDS = 3
_OF_KERNEL = re.compile(r"\bat \d+:\d+:(?=\s|$)")
"""Place in a message of Triton; the kernel's source up to the faulty line follows below."""
_OF_PYTEST = re.compile(r"E(?= {2,}|$)")
_MARK = re.compile(r"\s*\^\s*$")
_OF_SHAPES = "due to shape mismatches"
_SHAPE = re.compile(r"\s*- (?P<process>Process \d+): (?P<shape>[\[({].{0,80})")
_OPERATION = re.compile(r"\s*Operation: `(?:[\w.]+\.)?(?P<name>\w+)`")
_MOST_SHAPES = 4
_MARK_OF_YAML = re.compile(r"\s+in \"[^\"]+\", line \d+")
_FAULT_OF_YAML = re.compile(r"(?:found|expected|could not|but|invalid) ")
"""PyYAML's line with the fault; above it is the place where the surrounding block begins."""
_MOST_MARKS = 4
"""Lines below an exception of PyYAML that are read."""
_OF_GRAPH = re.compile(r"\W*(?:\d+ )?In file (?P<file>[^\s:(]+)[:(](?P<line>\d+)")
"""A line of the model's code that MindSpore names below an exception of its graph mode."""
_SECTION = re.compile(r"- Dataset Pipeline Error Message:|Error details from previous import attempts:")
"""Heading of the error below an exception that lacks it: of MindSpore's data sets, of sgl_kernel."""
_RULE = re.compile(r"\W*$")
_SECTION_LEVEL = re.compile(r"^(?:\[ERROR\] |- )")


def refused_fields(below: list[str]) -> Iterator[tuple[str, str]]:
    """Fields that pydantic refuses, each with the reason below its name: as text to append to the message, and as a
    line of the log."""
    rows = [line for line in below if line.strip() and not line.lstrip().startswith(_READ_MORE)][: 2 * _MOST_FIELDS]
    if rows and (whole := _OF_WHOLE.match(rows[0])):
        yield f": {whole['reason']}", rows[0].strip()
        return
    between = ": "
    for name, reason in zip(rows[::2], rows[1::2], strict=False):
        if not (_FIELD.match(name.rstrip()) and _OF_FIELD.match(reason)):
            return
        refusal = f"{name.strip()}: {reason.strip()}"
        yield f"{between}{refusal}", refusal
        between = "; "


def fault_of_kernel(message: str, below: list[str]) -> tuple[str, str]:
    """Triton's message with the reason and the marked source line of the kernel from below it, and the log line with
    the reason; empty if the log lacks them."""
    place = _OF_KERNEL.search(message)
    lines = [_OF_PYTEST.sub(" ", line) for line in below]
    at = next((index for index, line in enumerate(lines) if index and _MARK.match(line)), None)
    if place is None or at is None:
        return "", ""
    reason = next(filter(None, map(str.strip, lines[at + 1 :])), "")
    return (f"{message[: place.end()]} {reason} (`{lines[at - 1].strip()}`)", reason) if reason else ("", "")


def shapes_of_processes(message: str, below: list[str]) -> str:
    """A collective whose tensors differ, by accelerate's list: its name, and the shape of each process."""
    if _OF_SHAPES not in message:
        return ""
    operation = next((match["name"] for match in map(_OPERATION.match, below) if match), "")
    shapes = (f"{match['process']}: {match['shape'].strip()}" for match in map(_SHAPE.match, below) if match)
    listed = ", ".join(islice(shapes, _MOST_SHAPES))
    return f"{operation}: {listed}" if operation and listed else ""


def marks_of_yaml(message: str, below: list[str]) -> Iterator[str]:
    """Lines below an exception of PyYAML that its message lacks: places in the file, and the fault there."""
    for line in below[:_MOST_MARKS]:
        text = line.strip()
        if text and text in message:
            continue
        if not (_MARK_OF_YAML.match(line) or _FAULT_OF_YAML.match(line)):
            return
        message = f"{message} {text}"
        yield line


def place_in_model(below: list[str]) -> tuple[str, int, str] | None:
    """(file, line, "") of the user's own code that MindSpore names below an exception of its graph mode."""
    places = filter(None, map(_OF_GRAPH.match, below))
    return next(((place["file"], int(place["line"]), "") for place in places if is_own(place["file"])), None)


def first_of_section(below: list[str]) -> str:
    """First line of the section that contains the error; empty if there is none."""
    section = dropwhile(lambda line: not _SECTION.match(line), below)
    return next((line.strip() for line in islice(section, 1, None) if not _RULE.match(line)), "")


def without_level(line: str) -> str:
    """Remove the level, or the bullet, at the beginning of a section's line."""
    return _SECTION_LEVEL.sub("", line)
