"""Exceptions read from their `raise` statement, for logs that end within the code that IPython prints."""

from __future__ import annotations

import re
from collections.abc import Sequence

NUMBERED = re.compile(r"(?:-+>|\s)\s*(?P<line>\d+)(?P<code>(?: .*)?)$")
"""A numbered line of code in a traceback of IPython; an arrow marks the executed one."""
OPEN = re.compile(r"\s*raise (?P<type>[A-Z]\w*)\($")
"""A statement whose message is on the next line."""
_RAISE = re.compile(r"\s*raise (?P<type>[A-Z]\w*)\((?P<rest>.*)")
_LITERAL = re.compile(r"[frbFRB]{0,2}(?P<text>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')")
PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_MOST_LINES = 6
_LEAST_WORDS = 3


def raised_by(code: Sequence[str]) -> tuple[str, str]:
    """Type and text of the exception of the last `raise` in lines of code; empty if there is none.

    Args:
        code: lines of a file; the last one may be cut off.
    """
    begin = next((index for index in reversed(range(len(code))) if _RAISE.match(code[index])), None)
    if begin is None or not (statement := _RAISE.match(code[begin])):
        return "", ""
    message = ""
    for line in (statement["rest"], *code[begin + 1 : begin + _MOST_LINES]):
        literal = _LITERAL.match(line.strip())
        if literal is None:
            if line.strip():
                break
            continue
        message += literal["text"][1:-1].replace("\\n", " ")
    text = " ".join(PLACEHOLDER.sub("…", message).split())
    return statement["type"], text if len(text.split()) >= _LEAST_WORDS else ""
