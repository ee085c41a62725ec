"""Exceptions that a logger wrote as fields of a JSON object, instead of a traceback's text.

structlog (`dict_tracebacks`), ecs-logging, Sentry's events, AWS Powertools and logging-json name the type, the message
and the frames; python-json-logger may write a traceback as an array of its lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ascendtune.check.explain.traceback.trace import HEADER

SIGNS = (b'"exc_type"', b'"stack_trace"', b'"stacktrace"', b'"stack"', b'last):"')
"""Every line with such an exception contains one of them."""
_TYPES, _MESSAGES = ("exc_type", "type", "kind", "name"), ("exc_value", "value", "message")
_STACKS = ("frames", "stacktrace", "stack_trace", "stack")
_FILES, _LINES = ("filename", "file", "abs_path"), ("lineno", "line")
_FUNCTIONS, _CODE = ("name", "function"), ("statement", "context_line", "code")
_FRAME = '  File "'
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"
_DEEPEST = 5


def may_have_fields(line: bytes) -> bool:
    return line.lstrip()[:1] == b"{" and any(sign in line for sign in SIGNS)


def traceback_of_fields(text: str) -> list[str]:
    """Lines of the traceback as Python prints it; none if `text` is not a JSON object with an exception."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return next(filter(None, map(_written, _within(fields, _DEEPEST))), [])


def _within(value: Any, depth: int) -> Iterator[Any]:
    """`value`, and the objects and arrays in it."""
    yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner if depth else ():
        if isinstance(each, dict | list):
            yield from _within(each, depth - 1)


def _written(value: Any) -> list[str]:
    if isinstance(value, list):
        if value and all(isinstance(each, str) for each in value):
            return list(value) if HEADER in value[0] else []
        return _chain(value)
    return _one(value) if isinstance(value, dict) else []


def _chain(values: list[Any]) -> list[str]:
    """structlog's array: the caught exception, followed by the chain of those that it was raised from."""
    written: list[str] = []
    for each in reversed(values):
        if not isinstance(each, dict) or "exc_type" not in each or not (lines := _one(each)):
            return []
        written += lines
        if each is not values[0]:
            written += ["", _CAUSE if each.get("is_cause") else _CONTEXT, ""]
    return written


def _one(fields: dict[str, Any]) -> list[str]:
    type_, message = _first(fields, _TYPES), _first(fields, _MESSAGES)
    stack = next((fields[name] for name in _STACKS if fields.get(name)), None)
    frames = stack.get("frames") if isinstance(stack, dict) else stack
    if not isinstance(type_, str) or not isinstance(message, str) or not frames:
        return []
    if isinstance(frames, str):
        rows = frames.rstrip().splitlines() if frames.startswith(_FRAME) else []
    else:
        rows = [row for frame in frames for row in _frame(frame)] if isinstance(frames, list) else []
    notes = [each for each in fields.get("exc_notes") or () if isinstance(each, str)]
    return [HEADER, *rows, *f"{type_}: {message}".splitlines(), *notes] if rows else []


def _frame(frame: Any) -> Iterator[str]:
    if not isinstance(frame, dict) or not isinstance(file := _first(frame, _FILES), str):
        return
    yield f'{_FRAME}{file}", line {_first(frame, _LINES) or 0}, in {_first(frame, _FUNCTIONS) or "<module>"}'
    if isinstance(code := _first(frame, _CODE), str) and code.strip():
        yield f"    {code.strip()}"


def _first(fields: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name) not in (None, "")), None)
