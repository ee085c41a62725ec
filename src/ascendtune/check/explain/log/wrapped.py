"""Lines that a terminal broke at its width before the log was copied from it."""

from __future__ import annotations

import re

from ascendtune.check.explain.log.frame import is_python_frame
from ascendtune.check.explain.log.line import without_colours

_NARROWEST = 60
_LEAST_JOINTS = 2
"""A single line of the greatest length ends there by chance."""
_SHOWN = 8
"""Characters at which lines of one format begin alike."""
_DIGITS = re.compile(r"\d")
_BEGINS = re.compile(
    r"\s*(?:Traceback \(|File \"|(?:\w+\.)*\w+(?:Error|Exception)\b|\[?\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d|[IWEF]\d{4} |"
    r"\[(?:rank|default|trainer)\d|(?:#033|\x1b)\[|\[\d{1,2}m|\((?:\w+ )?(?:pid|rank)|>>> |\W{4,}$|"
    r"\W*(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b)"
)
"""Beginnings of lines that do not continue the line above."""
_ORNAMENT = re.compile(r"\s*([|+=*#│╭╰┃║-]).*[|+=*#│╮╯┃║-]\s*$")
"""Lines of tables, boxes and rules, which are equally long."""


_CUT_FRAME = re.compile(rb'^[ \t]*File ?[ \n]"[^"\n]+", ?[ \n]line ?[ \n]\d+, in ?[ \n][\w<>.]+$', re.MULTILINE)
"""A frame that was broken between its words, as editors and mail do it."""


def unwrapped(block: bytes) -> bytes:
    """`block` with broken lines in one piece, each followed by empty lines in place of its other pieces.

    A terminal breaks lines at the same column: so many are as long as the longest one, and go on in the next.
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
    """The frame in its first line, and as many empty lines below it as it had more."""
    return re.sub(rb" ?\n", b" ", frame[0]) + b"\n" * frame[0].count(b"\n")


def _joints(lines: list[str]) -> frozenset[int]:
    """The lines that go on in the next one; none where the log does not look broken."""
    width = max(map(len, lines), default=0)
    if width < _NARROWEST:
        return frozenset()
    full = [index for index, line in enumerate(lines[:-1]) if len(line) == width and not line.endswith("  ")]
    joints = frozenset(index for index in full if _goes_on(lines[index], lines[index + 1]))
    # A line that is repeated is of one length, too.
    different = {_DIGITS.sub("0", lines[index]) for index in joints}
    return joints if len(different) >= _LEAST_JOINTS and 2 * len(joints) > len(full) else frozenset()


def _goes_on(line: str, below: str) -> bool:
    is_alike = _DIGITS.sub("0", line[:_SHOWN]) == _DIGITS.sub("0", below[:_SHOWN])
    is_above_code = below.startswith("  ") and is_python_frame(line)
    return bool(below.strip()) and not (is_alike or is_above_code or _BEGINS.match(below) or _ORNAMENT.match(line))
