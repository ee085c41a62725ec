"""What a `raise` statement says of its exception, for logs that end within the code that IPython shows."""

from __future__ import annotations

import re
from collections.abc import Sequence

NUMBERED = re.compile(r"(?:-+>|\s)\s*(?P<line>\d+)(?P<code>(?: .*)?)$")
"""A line of code in a traceback of IPython; an arrow points at the one that was executed."""
OPEN = re.compile(r"\s*raise (?P<type>[A-Z]\w*)\($")
"""A statement whose text stands in the next line."""
_RAISE = re.compile(r"\s*raise (?P<type>[A-Z]\w*)\((?P<rest>.*)")
_LITERAL = re.compile(r"[frbFRB]{0,2}(?P<text>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')")
PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_MOST_LINES = 6
_LEAST_WORDS = 3


def raised_by(code: Sequence[str]) -> tuple[str, str]:
    """The type and the text of the exception that the last `raise` among lines of code makes; empty if there is none.

    Args:
        code: lines as they stand in a file, of which the last one may be cut off.
    """
    begin = next((index for index in reversed(range(len(code))) if _RAISE.match(code[index])), None)
    if begin is None or not (statement := _RAISE.match(code[begin])):
        return "", ""
    said = ""
    for line in (statement["rest"], *code[begin + 1 : begin + _MOST_LINES]):
        literal = _LITERAL.match(line.strip())
        if literal is None:
            if line.strip():
                break
            continue
        said += literal["text"][1:-1].replace("\\n", " ")
    text = " ".join(PLACEHOLDER.sub("…", said).split())
    return statement["type"], text if len(text.split()) >= _LEAST_WORDS else ""
