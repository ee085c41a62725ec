"""Lines of a log that together are one message."""

from __future__ import annotations

import re
from itertools import takewhile

from ascendtune.check.explain.log import go_panic, level

LONGEST_TEXT = 2000
"""Bytes of a line that are read."""
_SAYS_WHERE = re.compile(
    r"^CMake Error\b.*:\s*$|:\d+\)?\]?:\s*$|\bfollowing error: .*:\s*$|\bis invalid because:\s*$|"
    r"\bNo solution found when resolving .*:\s*$|^Last error:\s*$|stderr: Auto-detected mode as '\w+'\s*$|"
    r" \w*[a-z](?:Error|Exception):\s*$|\bBackendCompilerFailed: backend='\w+' raised:\s*$"
)
_LEAST_BROKEN = 40
"""Characters of a line from which on it may have been broken at the width of a window."""
_IS_WHOLE = re.compile(r"[.!?:;]\s*$")
_GOES_ON = re.compile(r"\s?[a-z(]")
_CODED_CLAUSE = re.compile(r"\bE[A-Z1-9]\d{4}\)?:(?:.*,)?\s*$")
"""A reason of CANN that goes on in the next lines."""
_ENDS_CODED = re.compile(
    r"\[(?:FUNC|FILE|THREAD):|TraceBack \(most recent|Solution\b|Possible Cause|\[(?:ERROR|INFO|WARNING)\]"
)
_MOST_CODED = 6
"""Lines of such a reason: whoever copied it broke it at the width of a page."""
_CHECKED = re.compile(r"\b(?:ASSERT(?:ION)?|CHECK) FAILED: \S")
"""The condition that does not hold, or its number; what it means stands in the next line."""
_PLACE_OF_CHECK = re.compile(r"\s*(?:, )?func \w|\S+\.so\(|[#\[(]")
_OF_VALIDATOR = re.compile(r"\s*(?:Value error|Assertion failed), ")
_TYPE_OF_PYDANTIC = "[type="
"""Behind the words of a validator."""
_OF_PYDANTIC = re.compile(r"\berror: .*\b\d+ validation errors? for \w+\s*$")
_OF_FIELD = re.compile(r"\s+\S.*[\[(]type=\w+")
NO_SOLUTION = "No solution found when resolving"
"""Of uv, above a tree of reasons."""
_BECAUSE = "Because "
_OF_TREE = re.compile(r"^(?:\d+\.\d+ )?[\s|│╰─▶`>-]+|\{[^{}]*\}")
"""Ornament of uv's tree of reasons: branches before a line (with the time that Docker's build prints before them), and
conditions in braces behind a package's name."""
_LONGEST_REASON = 600
_CMAKE = "CMake Error"
_BOX_OF_ERROR, _BOX_SIDE = "╭─ Error ─".encode(), "│".encode()
_LONGEST_BOX = 8
_RULE_OF_MPI = "-" * 74
_EXCERPT = 20
"""Lines of a log that somebody cut out: what a program in it refused is what its reader asks about."""


def text_of(line: bytes) -> str:
    """What is read of a line."""
    return line[:LONGEST_TEXT].decode(errors="replace")


def boxed_error(lines: list[bytes], index: int) -> str:
    """The error of a command line that typer draws in a box, at the box's first line; empty for any other line."""
    if not index or not lines[index - 1].startswith(_BOX_OF_ERROR) or not lines[index].startswith(_BOX_SIDE):
        return ""
    rows = takewhile(lambda row: row.startswith(_BOX_SIDE), lines[index : index + _LONGEST_BOX])
    return "Error: " + " ".join(row.decode(errors="replace").strip("│ \r") for row in rows)


def refusal(texts: list[str], said: list[str], last_lines: int) -> tuple[int, str]:
    """Where nothing calls itself an error: Open MPI's help at the end, or what a program in an excerpt refuses.

    Args:
        texts: the last lines of a log.
        said: the same without their prefixes.
        last_lines: as many lines at the end may stand behind Open MPI's help.

    Returns:
        The index of its first line, and its words; empty if there is none.
    """
    index, words = _help_text(said, last_lines)
    if words or len(texts) > _EXCERPT:
        return index, words
    for index, each in enumerate(said):
        if level.program_refuses(texts[index], each) and not any(map(level.went_on, said[index + 1 :])):
            return index, each
    last = next((index for index in range(len(said) - 1, -1, -1) if said[index].strip()), 0)
    while last and (level.is_hint(said[last]) or not said[last].strip()):
        last -= 1
    if said and (level.is_last_refusal(texts[last], said[last]) or _is_above_hint(texts, said, last)):
        return last, said[last]
    return 0, ""


def _is_above_hint(texts: list[str], said: list[str], index: int) -> bool:
    """Whether a line with words of failure is the last but for hints where to read on."""
    return index + 1 < len(said) and level.are_last_words(texts[index], said[index])


def _help_text(said: list[str], last_lines: int) -> tuple[int, str]:
    """The refusal that Open MPI, which calls nothing an error, prints between two lines of dashes as the last.

    Args:
        last_lines: as many lines at the end of `said` may stand behind it.

    Returns:
        The index of its first line, and its words; empty if there is none.
    """
    rules = [index for index, each in enumerate(said) if each.rstrip() == _RULE_OF_MPI]
    if len(rules) < 2 or len(said) - rules[-1] > last_lines:
        return 0, ""
    first, last = rules[-2:]
    words = " ".join(filter(None, map(str.strip, said[first + 1 : last])))
    return first + 1, words if level.is_refusal(words) else ""


def may_be_broken(said: str) -> bool:
    """Whether a line is long enough to have been broken, and does not end a sentence or a clause."""
    return len(said) >= _LEAST_BROKEN and _IS_WHOLE.search(said) is None


def may_go_on(said: str, rest: str) -> bool:
    """Whether `rest` may be the other piece of a broken line: a terminal begins it at its margin, uv, which wraps what
    a build prints at words, below the first piece."""
    margin = said[: len(said) - len(said.lstrip(" │|"))]
    return _GOES_ON.match(rest.removeprefix(margin)) is not None


def begins_warning(text: str) -> bool:
    """Whether a line calls the next one, which holds the message, a warning."""
    return text.rstrip().endswith(":") and level.is_warning(text)


def goes_far(said: str) -> bool:
    """Whether the message of a line stands many lines further down: reasons of uv and CANN, frames of Go."""
    return (
        NO_SOLUTION in said
        or _OF_VALIDATOR.match(said) is not None
        or go_panic.is_panic(said)
        or _CODED_CLAUSE.search(said) is not None
    )


def with_message(said: str, below: list[str]) -> str:
    """An error line that says only where it happened, and the next one, which says what."""
    message = next(filter(None, map(str.strip, below)), "")
    if said.startswith(_CMAKE):
        # Its message is an indented paragraph, a name may stand below a blank line.
        paragraph = takewhile(lambda each: not each.strip() or each[0].isspace(), below)
        message = " ".join(filter(None, map(str.strip, paragraph)))
    if _OF_PYDANTIC.search(said) and len(below) > 1 and _OF_FIELD.match(below[1]):
        # A command line refuses a value that is checked by pydantic: the field, and what is wrong with it.
        return f"{said.rstrip()}: {below[0].strip()}: {below[1].strip()}"
    if _CODED_CLAUSE.search(said):
        message = _coded_paragraph(below) or message
    if go_panic.is_panic(said) and (frame := go_panic.frame_in(said, below)):
        return f"{said.rstrip()} {frame}"
    if NO_SOLUTION in said:
        tree = " ".join(_OF_TREE.sub("", each).strip() for each in takewhile(str.strip, below))
        tree = _OF_TREE.sub("", tree)
        reason = tree[max(0, tree.find(_BECAUSE)) :]
        return f"{said.rstrip()} {reason[:_LONGEST_REASON]}" if _BECAUSE in tree else said
    if _CHECKED.search(said) and below and below[0].strip() and not _PLACE_OF_CHECK.match(below[0]):
        return f"{said.rstrip()}: {below[0].strip()}"
    if _OF_VALIDATOR.match(said) and _TYPE_OF_PYDANTIC not in said:
        return _whole_refusal(said, below)
    # An error that ends with a colon has its reason in the indented line below.
    is_indented = bool(below) and below[0][:1].isspace() and not level.is_aside(below[0])
    is_reason = is_indented and said.rstrip().endswith(":") and level.is_error(said, said)
    goes_on = is_reason or _SAYS_WHERE.search(said) or _CODED_CLAUSE.search(said)
    return f"{said.rstrip()} {message}" if message and goes_on else said


def _whole_refusal(said: str, below: list[str]) -> str:
    """What a validator of pydantic says, with its other lines, where whoever copied it broke it at a page's width."""
    words = [each.removeprefix("E ").strip() for each in below[:_MOST_CODED]]
    last = next((index for index, each in enumerate(words) if _TYPE_OF_PYDANTIC in each), None)
    return said if last is None else " ".join([said.rstrip(), *words[: last + 1]])


def _coded_paragraph(below: list[str]) -> str:
    """The lines below a reason of CANN that belong to it: up to the end of its sentence, or the place in the source."""
    found: list[str] = []
    for each in below[:_MOST_CODED]:
        if not each.strip() or _ENDS_CODED.match(each.strip()) or level.is_error(each, each):
            break
        found.append(each.strip())
        if each.rstrip().endswith((".", "!")):
            break
    return " ".join(found)
