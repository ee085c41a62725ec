"""Messages of several lines."""

from __future__ import annotations

import re
from itertools import takewhile

from ascendtune.check.explain.log import go_panic, level

LONGEST_TEXT = 2000
"""Bytes that are read of a line."""
_SAYS_WHERE = re.compile(
    r"^CMake Error\b.*:\s*$|:\d+\)?\]?:\s*$|\bfollowing error: .*:\s*$|\bis invalid because:\s*$|"
    r"\bNo solution found when resolving .*:\s*$|^Last error:\s*$|stderr: Auto-detected mode as '\w+'\s*$|"
    r" \w*[a-z](?:Error|Exception):\s*$|\bBackendCompilerFailed: backend='\w+' raised:\s*$"
)
_LEAST_BROKEN = 40
"""Characters; shorter lines were not broken at the width of a window."""
_IS_WHOLE = re.compile(r"[.!?:;]\s*$")
_GOES_ON = re.compile(r"\s?[a-z(]")
_CODED_CLAUSE = re.compile(r"\bE[A-Z1-9]\d{4}\)?:(?:.*,)?\s*$")
"""A CANN reason that continues on the next lines."""
_ENDS_CODED = re.compile(
    r"\[(?:FUNC|FILE|THREAD):|TraceBack \(most recent|Solution\b|Possible Cause|\[(?:ERROR|INFO|WARNING)\]"
)
_MOST_CODED = 6
"""Most lines of such a reason, which was broken at the width of a page when it was copied."""
_CHECKED = re.compile(r"\b(?:ASSERT(?:ION)?|CHECK) FAILED: \S")
"""The condition that is not met, or its number; the next line explains it."""
_PLACE_OF_CHECK = re.compile(r"\s*(?:, )?func \w|\S+\.so\(|[#\[(]")
_OF_VALIDATOR = re.compile(r"\s*(?:Value error|Assertion failed), ")
_TYPE_OF_PYDANTIC = "[type="
"""After the message of a validator."""
_OF_PYDANTIC = re.compile(r"[Ee]rror: (?:.*\b)?\d+ validation errors? for \w+\s*$")
_OF_FIELD = re.compile(r"\s+\S.*[\[(]type=\w+")
NO_SOLUTION = "No solution found when resolving"
"""uv's line above a tree of reasons."""
_BECAUSE = "Because "
_OF_TREE = re.compile(r"^(?:\d+\.\d+ )?[\s|│╰─▶`>-]+|\{[^{}]*\}")
"""Ornament of uv's tree of reasons: branches before a line (after the time that Docker's build prints), and
conditions in braces after a package's name."""
_LONGEST_REASON = 600
_CMAKE = "CMake Error"
_BOX_OF_ERROR, _BOX_SIDE = "╭─ Error ─".encode(), "│".encode()
_LONGEST_BOX = 8
_RULE_OF_MPI = "-" * 74
_EXCERPT = 20
"""Most lines of an excerpt: a refusal anywhere in it is probably the failure that its reader asks about."""


def text_of(line: bytes) -> str:
    """The part of a line that is read."""
    return line[:LONGEST_TEXT].decode(errors="replace")


def boxed_error(lines: list[bytes], index: int) -> str:
    """The error that typer draws in a box, if the line is the box's first one; else empty."""
    if not index or not lines[index - 1].startswith(_BOX_OF_ERROR) or not lines[index].startswith(_BOX_SIDE):
        return ""
    rows = takewhile(lambda row: row.startswith(_BOX_SIDE), lines[index : index + _LONGEST_BOX])
    return "Error: " + " ".join(row.decode(errors="replace").strip("│ \r") for row in rows)


def refusal(texts: list[str], messages: list[str], last_lines: int) -> tuple[int, str]:
    """Find a refusal in a log without errors: Open MPI's help at its end, or a program's refusal in an excerpt.

    Args:
        texts: the last lines of a log.
        messages: the same without their prefixes.
        last_lines: most lines after Open MPI's help.

    Returns:
        Index of its first line, and its text; (0, "") if there is none.
    """
    index, words = _help_text(messages, last_lines)
    if words or len(texts) > _EXCERPT:
        return index, words
    for index, each in enumerate(messages):
        if level.program_refuses(texts[index], each) and not any(map(level.went_on, messages[index + 1 :])):
            return index, each
    last = next((index for index in range(len(messages) - 1, -1, -1) if messages[index].strip()), 0)
    while last and (level.is_hint(messages[last]) or not messages[last].strip()):
        last -= 1
    if messages and (level.is_last_refusal(texts[last], messages[last]) or _is_above_hint(texts, messages, last)):
        return last, messages[last]
    return 0, ""


def _is_above_hint(texts: list[str], messages: list[str], index: int) -> bool:
    """Whether a line with words of failure is followed only by hints."""
    return index + 1 < len(messages) and level.are_last_words(texts[index], messages[index])


def _help_text(messages: list[str], last_lines: int) -> tuple[int, str]:
    """Open MPI's last help text between two lines of dashes, if it is a refusal; it is not marked as an error.

    Args:
        last_lines: most lines of `messages` after it.

    Returns:
        Index of its first line, and its text; empty if there is none.
    """
    rules = [index for index, each in enumerate(messages) if each.rstrip() == _RULE_OF_MPI]
    if len(rules) < 2 or len(messages) - rules[-1] > last_lines:
        return 0, ""
    first, last = rules[-2:]
    words = " ".join(filter(None, map(str.strip, messages[first + 1 : last])))
    return first + 1, words if level.is_refusal(words) else ""


def may_be_broken(message: str) -> bool:
    """Whether a line is long enough to have been broken, and does not end a sentence or a clause."""
    return len(message) >= _LEAST_BROKEN and _IS_WHOLE.search(message) is None


def may_go_on(message: str, rest: str) -> bool:
    """Whether `rest` may be the second piece of a broken line: a terminal starts it at the margin; uv, which wraps the
    output of a build at words, starts it below the first piece."""
    margin = message[: len(message) - len(message.lstrip(" │|"))]
    return _GOES_ON.match(rest.removeprefix(margin)) is not None


def begins_warning(text: str) -> bool:
    """Whether a line announces a warning whose message is on the next line."""
    return text.rstrip().endswith(":") and level.is_warning(text)


def goes_far(message: str) -> bool:
    """Whether the message of a line is many lines further down: reasons of uv and CANN, frames of Go."""
    return (
        NO_SOLUTION in message
        or _OF_VALIDATOR.match(message) is not None
        or go_panic.is_panic(message)
        or _CODED_CLAUSE.search(message) is not None
    )


def with_message(line: str, below: list[str]) -> str:
    """An error line that contains only the place, joined with the message in the lines below it."""
    message = next(filter(None, map(str.strip, below)), "")
    if line.startswith(_CMAKE):
        # Its message is an indented paragraph; a name may follow a blank line.
        paragraph = takewhile(lambda each: not each.strip() or each[0].isspace(), below)
        message = " ".join(filter(None, map(str.strip, paragraph)))
    if _OF_PYDANTIC.search(line) and len(below) > 1 and _OF_FIELD.match(below[1]):
        # A command line, or a person's sentence, names the model: the field, then the reason.
        return f"{line.rstrip()}: {below[0].strip()}: {below[1].strip()}"
    if _CODED_CLAUSE.search(line):
        message = _coded_paragraph(below) or message
    if go_panic.is_panic(line) and (frame := go_panic.frame_in(line, below)):
        return f"{line.rstrip()} {frame}"
    if NO_SOLUTION in line:
        tree = " ".join(_OF_TREE.sub("", each).strip() for each in takewhile(str.strip, below))
        tree = _OF_TREE.sub("", tree)
        reason = tree[max(0, tree.find(_BECAUSE)) :]
        return f"{line.rstrip()} {reason[:_LONGEST_REASON]}" if _BECAUSE in tree else line
    if _CHECKED.search(line) and below and below[0].strip() and not _PLACE_OF_CHECK.match(below[0]):
        return f"{line.rstrip()}: {below[0].strip()}"
    if _OF_VALIDATOR.match(line) and _TYPE_OF_PYDANTIC not in line:
        return _whole_refusal(line, below)
    # The reason of an error that ends with a colon is in the indented line below.
    is_indented = bool(below) and below[0][:1].isspace() and not level.is_aside(below[0])
    is_reason = is_indented and line.rstrip().endswith(":") and level.is_error(line, line)
    goes_on = is_reason or _SAYS_WHERE.search(line) or _CODED_CLAUSE.search(line)
    return f"{line.rstrip()} {message}" if message and goes_on else line


def _whole_refusal(line: str, below: list[str]) -> str:
    """Join the message of a pydantic validator that was broken at a page's width when it was copied."""
    words = [each.removeprefix("E ").strip() for each in below[:_MOST_CODED]]
    last = next((index for index, each in enumerate(words) if _TYPE_OF_PYDANTIC in each), None)
    return line if last is None else " ".join([line.rstrip(), *words[: last + 1]])


def _coded_paragraph(below: list[str]) -> str:
    """Lines that continue a CANN reason: up to the end of its sentence, or the place in the source."""
    paragraph: list[str] = []
    for each in below[:_MOST_CODED]:
        if not each.strip() or _ENDS_CODED.match(each.strip()) or level.is_error(each, each):
            break
        paragraph.append(each.strip())
        if each.rstrip().endswith((".", "!")):
            break
    return " ".join(paragraph)
