"""The messages between the starting host and the nodes: one JSON object per line."""

from __future__ import annotations

import json
from typing import Any

from ascendtune.core.errors import AscendtuneError, error_of_json

ALIVE: dict[str, Any] = {"alive": True}
ALIVE_EVERY_SECONDS = 2.0

BEGIN = b"\n"
"""Sent before the first message: output of a login shell, such as a window's title, may not end with a newline."""


def encode(message: dict[str, Any]) -> bytes:
    """One line, with its newline. A newline in a text is escaped by JSON."""
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes | str) -> dict[str, Any] | None:
    """The message in a line; None if the line is not a message: login shells and libraries print, too."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def error_on(host: str, content: dict[str, Any]) -> AscendtuneError:
    """The error as it was on `host`, which it names; `content` is its `error_to_json`."""
    where = f"{host}:{content['where']}" if content.get("where") else host
    return error_of_json({**content, "what": f"{host}: {content['what']}", "where": where})
