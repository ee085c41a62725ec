"""Splits a line into its program and its message, without the prefixes of programs and loggers."""

from __future__ import annotations

import re

from ascendtune.check.explain.event.event import Event

_LEAST_WORDS = 3
_LOGGER = re.compile(
    r"\W*(?:"
    r"\[?(?:ERROR|CRITICAL|FATAL)\]? [A-Z_]+ ?\([^)]*\) ?:[\d:. -]+\[[^\]]*\](?: \w+(?:\(\))?\])? "  # MindSpore
    r"|\[?(?:ERROR|CRITICAL|FATAL)\]? (?:[A-Z_]+ )?\[[^\]]*\] \w+(?:\(\))?\] "
    r"|\[?(?:ERROR|CRITICAL|FATAL)\]? ?[A-Z_]+ ?\([^)]*\) ?:[\d:. -]+\[[^\]]*\] ?\d*(?:\[[^\]]*\])* ?(?:\w+:)?"  # CANN
    r"|(?:\S+ \[\d+\] )?(?:\S+:\d+ )?NCCL WARN "
    r"|[EF](?:\d{4})?\d{4} \d\d:\d\d:\d\d(?:\.\d+)? +\d+ \S+\] "  # glog
    r"|\[[EF](?:\d{3,4} [\d:.]+)? ?\S+\.(?:cpp|cc):\d+\] (?:\[[^\]]*\] ?)*"  # c10
    r"|(?:\(raylet[^)]*\) )?\[[\d-]{10} [\d:,]+ [EC] \d+ \d+\] (?:\(\w+\) )?\S+:\d+: +(?:Check failed: )?"  # Ray
    r"|\[\d+\.\d+\] \[[\w.-]+:\d+:\d+\] +\S+:\d+ +UCX +(?:ERROR|FATAL) |\[[\w.-]+:\d+ *:\d+:\d+\] "  # UCX
    r"|(?:srun|slurmstepd(?:-\S+)?): error: (?:\S+: )?"
    r"|(?:\d{4}-\d\d-\d\d[ T-])?\d\d:\d\d:\d\d\S* (?:- )?(?:\S+ - )?(?:ERROR|CRITICAL|FATAL|[EF] \|)\W+"
    r"|\[?20\d\d-[^\]]{6,24}\] (?:\[[\w.]{1,20}\] )?(?:error|fatal): "  # slurmd
    r"|(?:ERROR|CRITICAL|FATAL|[Ee]rror|fatal)(?:: | - )"
    r")"
)
"""Prefixes of loggers: levels, times, processes, places in the source."""
_PROGRAM = re.compile(
    r"(?P<program>(?!(?:Fatal|Internal|Compile|Runtime|Python|Error|ERROR)\b)[A-Za-z][\w.+-]{1,30})(?:\[\d+\])?: "
    r"(?:(?:fatal|internal|compile) )?(?:error|fatal|ERROR|FATAL|critical)(?:: | - )(?P<message>.+)"
)
"""A message after the name of its program."""
_CMAKE = re.compile(r"(?P<program>CMake) Error at \S+:\d+ \(\w+\): *(?P<message>\S.*)")
_LOGFMT = re.compile(
    r"\blevel=\"?(?:error|fatal|panic|critical)\"?.*?\b(?:msg|message)=\"(?P<message>(?:[^\"\\]|\\.){8,})\""
)
_REASON_OF_LOGFMT = re.compile(r"\b(?:err|error|reason)=\"(?P<message>(?:[^\"\\]|\\.){4,})\"")
_BEFORE_MESSAGE = re.compile(
    r"(?:"
    r"\[?(?:ERROR|error|FATAL|Error)\]? (?=[\[<\d])|\[(?:ERROR|error|FATAL|CRITICAL)\]:? *"
    r"|\[?\d{4}[/-]\d\d[/-]\d\d[ T][\d:.,]+\]?Z? +(?:\d+ +)?(?:[EF] \| *)?"
    r"|\[ *\d+\.\d{3,}\] "  # the kernel's clock
    r"|[\w./-]+\.go:\d+:?\]? +|\S+\.cc:\d+ +NCCL WARN +|[\w.-]+:\d+:\d+ (?=\[\d+\])|NCCL WARN "
    r"|(?:\[?[\w./ -]{1,40}\])(?=\[|:? *[A-Za-z])(?:: *)?|<\w{3,40}> |C\+\+ exception with description \"|\*ERROR\* "
    r")"
)
"""Other prefixes of programs: levels, clocks, places, names of their parts."""
_LEAST_LEFT = 4
_NESTED = re.compile(r":\s+(?!(?<=`: )-?\d)")
"""Separator of the reasons in a message. A value after a quoted name (`name`: 7) is not a reason."""


def program_and_message(text: str) -> tuple[str, str]:
    """Program of a line, empty if it does not name one; and the message without its prefixes."""
    text = text.strip()
    if (match := _PROGRAM.match(text) or _CMAKE.match(text)) is not None and len(match["message"].split()) > 1:
        return match["program"], match["message"]
    if (fields := _LOGFMT.search(text)) is not None:
        reason = _REASON_OF_LOGFMT.search(text)
        return "", f"{fields['message']}: {reason['message']}" if reason else fields["message"]
    message = without_logger(text)
    while (before := _BEFORE_MESSAGE.match(message)) is not None:
        rest = message[before.end() :].strip()
        if len(rest.split()) < _LEAST_LEFT:
            break
        message = rest
    return "", message


def without_logger(text: str) -> str:
    """Remove a logger's prefix from a message; the whole text if little would be left."""
    match = _LOGGER.match(text)
    rest = text[match.end() :].strip() if match else text
    return rest if len(rest.split()) >= _LEAST_WORDS else text


def message_of(event: Event) -> str:
    """Message of an exception, or a line without a logger's prefix."""
    return event.message if event.trace is not None else without_logger(event.text)


def reasons_in(message: str) -> list[str]:
    """Reasons of a message "X: Y: Z", the outermost first."""
    return _NESTED.split(message)
