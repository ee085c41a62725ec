"""The innermost reason of a failed CANN call: torch_npu prints it below the place and the number of the call.

A block is read from its call on: the number's meaning, "Inner Error!" and the frames ("Check … failed", "do tiling
failed") only pass the failure on. The first other line is the message of the operator, HCCL or the runtime.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_PLACE = re.compile(r"(?:\[\w+\] ?)?\S*[\w.)]:\S*\.\w*:\d+,?")
"""A message that contains only a place in C++: "function:file.cpp:7"."""
_CALL = re.compile(r"(?:NPU|OPS|ACL|HCCL|DIST) (?:function )?error\b|\bcall aclnn\w+ failed")
_CODE = r"E[A-Z1-9]\d{4}"
PROCESS = r"\[PID: ?[\dxX*.]+\]"
TIME = r"[\dxX*]{4}-[\dxX*]{2}-[\dxX*]{2}-[\dxX*:.]+"
"""Process and time of a CANN message. A published log may have crosses or stars in place of the digits."""
_PREFIX = re.compile(
    rf"(?:\.{{3}} ?)?(?:{PROCESS} ?)?(?:{TIME} ?)?"
    rf"(?P<code>(?:[A-Za-z_/]+\()?{_CODE}\)?)?:? *(?:{PROCESS} ?)?(?:{TIME} ?|\.{{3}} ?)?:? *"
    rf"(?:\({_CODE}\): *)?"
)
"""Code, process and time before a reason, in the orders of several CANN versions."""
_PLACES_BEHIND = re.compile(r"\.?\s*\[(?:FUNC|FILE|LINE|THREAD):.*")
_PASSED_ON = re.compile(
    r"\[(?:FUNC|FILE|LINE|ERROR|Error)\b|.*\bERR\d{5} |Inner Error|TraceBack \(most recent|"
    r"Check \S.* failed|.*\bdo tiling failed|\w*Tiling\w* failed|Tiling\d?\w* |Kernel \w+ failed|.*failed, ?reason=|"
    r".*runtime result = |The argument is invalid\.?$|"
    r"Solution|Possible Cause|Rectify|Check (?:the|whether|that) |Try again|.*\boperator name is |"
    r".*(?:fails? to invoke|failed to (?:call|invoke|execute)) |call \S+ failed|\[[\w:~<>]+\]\[[\w.]+:\d+\]$",
    re.IGNORECASE,
)
"""Lines of a block without a reason."""
_REFUSES = re.compile(
    r"\b(?:must|should|shall|only supports?|(?:not|un)\s?support(?:ed)?|(?:do|does|is|are) not|isn't|inval?id|invaild|"
    r"too (?:large|small|many|big|long)|exceeds?|equal|no more than|at (?:least|most)|greater than|less than|"
    r"mismatch\w*|cannot|can't|illegal|out of (?:range|memory)|expect(?:ed|s)?|exhausted|insufficient|missing|wrong|"
    r"differ\w*)\b",
    re.IGNORECASE,
)
"""Words of a reason without a code and without a place in the source after it."""
_OTHER_LOG = re.compile(r"\W*(?:INFO|DEBUG|WARN(?:ING)?)\b|\s*File \"|\s*(?:[a-z_]\w*\.)*[A-Z]\w*Error: ")
_ENDS_BLOCK = re.compile(r"Traceback \(most recent call last\)|\s*(?:INFO|DEBUG)\b")
_RUNTIME_CALL = re.compile(r"(?P<call>\w+) execut\w+ failed, ?reason=\[?(?P<reason>[^\]\[]+)")
_OF_RUNTIME = re.compile(r"rt[A-Z]\w+: ")
_LEAST_WORDS = 3
_LONGEST = 130
_CLAUSE = re.compile(r"(?<=[,;]) (?=\S)|(?<=[.!?]) (?=[A-Z])")


def is_place(message: str) -> bool:
    """Whether a message contains only a place in C++; the error is on the next line."""
    return _PLACE.fullmatch(message.strip()) is not None


def is_call(text: str) -> bool:
    """Whether a line reports a failed CANN call, with a number at most as the reason."""
    return _CALL.search(text) is not None


def is_of_runtime(reason: str) -> bool:
    """Whether a reason is only the final state of a runtime call, "rtCall: task timeout"."""
    return _OF_RUNTIME.match(reason) is not None


def reason_in(lines: Sequence[str]) -> str:
    """First reason in the lines below a call, else that of a runtime call; empty if there is none."""
    of_runtime = ""
    for line in lines:
        reason = line.strip()
        if _ENDS_BLOCK.match(reason):
            break
        if not of_runtime and (call := _RUNTIME_CALL.search(reason)) is not None:
            of_runtime = shortened(f"{call['call']}: {call['reason']}")
        prefix = _PREFIX.match(reason)
        words = reason[prefix.end() :] if prefix else reason
        if _PASSED_ON.match(words) or _CALL.search(reason) or _OTHER_LOG.match(reason):
            continue
        has_place = _PLACES_BEHIND.search(words) is not None
        words = _PLACES_BEHIND.sub("", words)
        is_reason = bool(prefix and prefix["code"]) or has_place or _REFUSES.search(words)
        if is_reason and len(words.split()) >= _LEAST_WORDS:
            return shortened(words)
    return of_runtime


def shortened(reason: str) -> str:
    """Shorten a reason to fit into a headline: the last clauses are kept, which contain the values."""
    reason = reason.strip(" .!")
    while len(reason) > _LONGEST and (clause := _CLAUSE.search(reason)) is not None:
        reason = reason[clause.end() :]
    return reason if len(reason) <= _LONGEST else ""
