"""Tracebacks in one line of a log: with escaped line ends, in JSON or quoted by a program, or as fields
(exception_fields.py)."""

from __future__ import annotations

import json
import re

from ascendtune.check.explain.traceback import exception_fields
from ascendtune.check.explain.traceback.trace import HEADER

_SIGN = b"last):\\"
"""Part of every line with such a traceback, escaped once or several times."""
_LONGEST = 1 << 16
"""Bytes that are read of such a line."""
_ESCAPED = re.compile(r"\\+(n|t|r|[\"'])")
_MEANT = {"n": "\n", "t": "\t", "r": "", '"': '"', "'": "'"}
_CLOSING = re.compile(r"[\"'][\s)\]},]*$")


def traceback_in(line: bytes) -> list[str]:
    """Lines of the traceback in `line`, from its heading on; none if there is none."""
    of_fields = exception_fields.may_have_fields(line)
    if not (_SIGN in line or of_fields):
        return []
    text = line[:_LONGEST].decode(errors="replace").strip()
    if of_fields and (lines := exception_fields.traceback_of_fields(text)):
        return lines
    whole = _of_json(text) or text
    at = whole.find(HEADER)
    if at < 0:
        return []
    if whole is text:
        whole = _CLOSING.sub("", text)
    return _ESCAPED.sub(lambda escape: _MEANT[escape[1]], whole[at:]).splitlines()


def _of_json(text: str) -> str:
    """Value with a traceback in a JSON object; empty if there is none."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    values = fields.values() if isinstance(fields, dict) else ()
    return next((each for each in values if isinstance(each, str) and HEADER in each), "")
