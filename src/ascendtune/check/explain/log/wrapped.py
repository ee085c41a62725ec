"""Lines that a terminal broke at its width before the log was copied from it."""

from __future__ import annotations

import re

from ascendtune.check.explain.log.frame import is_python_frame
from ascendtune.check.explain.log.line import without_colours

_NARROWEST = 60
_LEAST_JOINTS = 2
"""One line of the greatest length may end there by chance."""
_SHOWN = 8
"""Characters that lines of one format have in common at their beginning."""
_DIGITS = re.compile(r"\d")
_BEGINS = re.compile(
    r"\s*(?:Traceback \(|File \"|(?:\w+\.)*\w+(?:Error|Exception)\b|\[?\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d|[IWEF]\d{4} |"
    r"\[(?:rank|default|trainer)\d|(?:#033|\x1b)\[|\[\d{1,2}m|\((?:\w+ )?(?:pid|rank)|>>> |\W{4,}$|"
    r"\W*(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b)"
)
"""Beginnings of lines that do not continue the line above."""
_ORNAMENT = re.compile(r"\s*([|+=*#│╭╰┃║-]).*[|+=*#│╮╯┃║-]\s*$")
"""Lines of tables, boxes and rules, which have equal lengths."""


_CUT_FRAME = re.compile(rb'^[ \t]*File ?[ \n]"[^"\n]+", ?[ \n]line ?[ \n]\d+, in ?[ \n][\w<>.]+$', re.MULTILINE)
"""A frame broken between words, as editors and mail programs do."""


def unwrapped(block: bytes) -> bytes:
    """Join the broken lines of `block`; empty lines replace their other pieces.

    A terminal breaks lines at the same column: many are as long as the longest one, and continue on the next.
    """
    block = _CUT_FRAME.sub(_in_one_piece, block)
    lines = block.split(b"\n")
    texts = [line.decode(errors="replace") for line in lines]
    joints = _joints(texts)
    if not joints and (b"\x1b" in block or b"[0m" in block):
        joints = _joints(without_colours(block).decode(errors="replace").split("\n"))
    if not joints:
        return block
    whole: list[bytes] = []
    first = 0
    for index, line in enumerate(lines):
        if index - 1 in joints:
            whole[first] += line
            whole.append(b"")
        else:
            first = index
            whole.append(line)
    return b"\n".join(whole)


def _in_one_piece(frame: re.Match[bytes]) -> bytes:
    """Join a frame on its first line; empty lines replace its other lines."""
    return re.sub(rb" ?\n", b" ", frame[0]) + b"\n" * frame[0].count(b"\n")


def _joints(lines: list[str]) -> frozenset[int]:
    """Indices of the lines that continue on the next one; none if the log does not look broken."""
    width = max(map(len, lines), default=0)
    if width < _NARROWEST:
        return frozenset()
    full = [index for index, line in enumerate(lines[:-1]) if len(line) == width and not line.endswith("  ")]
    joints = frozenset(index for index in full if _goes_on(lines[index], lines[index + 1]))
    # Repeated lines have equal lengths as well.
    different = {_DIGITS.sub("0", lines[index]) for index in joints}
    return joints if len(different) >= _LEAST_JOINTS and 2 * len(joints) > len(full) else frozenset()


def _goes_on(line: str, below: str) -> bool:
    is_alike = _DIGITS.sub("0", line[:_SHOWN]) == _DIGITS.sub("0", below[:_SHOWN])
    is_above_code = below.startswith("  ") and is_python_frame(line)
    return bool(below.strip()) and not (is_alike or is_above_code or _BEGINS.match(below) or _ORNAMENT.match(line))
