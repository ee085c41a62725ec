"""Lines that a log collector wrapped in JSON objects: Docker, Fluent Bit, journald, Loki, cloud services."""

from __future__ import annotations

import json
import re

_BEGIN = b'{"'
_PEEKED = 1 << 12
_OF_STREAM = ("log", "textPayload", "MESSAGE", "line")
"""Fields with a line as the container wrote it."""
_OF_LOGGER = ("message", "msg", "event")
"""Fields that loggers of programs use as well, which write the level to another field."""
_FIELDS = re.compile(rb'"(?:%s)": ?"' % "|".join([*_OF_STREAM, *_OF_LOGGER]).encode())
_OF_RECORD = {"level", "levelname", "severity", "exception", "exc_info", "stack_info", "record", "stack"}
_OF_RECORD |= {"log.level", "error", "stack_trace", "stacktrace", "exc_text"}
_OF_TRACEBACK = re.compile(r"Traceback \(most recent|  File \"| {4}\S|(?:\w+\.)*[A-Z]\w*(?:Error|Exception): ")


_CHARACTER = rb'[^"\\\x00-\x1f]'
_OF_DOCKER = re.compile(
    rb'^\{"log":"(%b*)(?:\\[rn])+","stream":"std(?:out|err)"(?:,"attrs":\{"%b*":"%b*"\})?,"time":"%b*"\}$'
    % ((_CHARACTER,) * 4),
    re.MULTILINE,
)
"""A line as Docker writes it, without characters that JSON escapes: nearly all, and they need no parser."""
_decoded = json.JSONDecoder().raw_decode


def unwrapped_lines(block: bytes) -> bytes:
    """Replace JSON objects by the lines of the container in them; the number of lines stays the same."""
    if not block.startswith(_BEGIN) or _FIELDS.search(block[:_PEEKED]) is None:
        return block
    if _is_utf_8(block):
        block = _OF_DOCKER.sub(rb"\1", block)
    if not block.startswith(_BEGIN) and b"\n" + _BEGIN not in block:
        return block
    return b"\n".join(_message_of(line) if line.startswith(_BEGIN) else line for line in block.split(b"\n"))


def _is_utf_8(block: bytes) -> bool:
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


def _message_of(line: bytes) -> bytes:
    try:
        text = line.decode(errors="surrogatepass")
        fields, end = _decoded(text)
    except (ValueError, RecursionError):
        return line
    if text[end:].strip(" \t\r") or (message := _text_of(fields)) is None:
        return line
    # A progress bar is in the same object as the text after it.
    return message.rstrip("\r\n").rpartition("\r")[2].replace("\n", " ").encode(errors="replace")


def _text_of(fields: dict[str, object]) -> str | None:
    for name in _OF_STREAM:
        if isinstance(text := fields.get(name), str):
            return text
    is_record = not _OF_RECORD.isdisjoint(fields)
    for name in _OF_LOGGER:
        # A program that logs the captured output of another one writes its traceback line by line.
        if isinstance(text := fields.get(name), str) and (not is_record or _OF_TRACEBACK.match(text)):
            return text if "\n" not in text.strip() else None
    return None
