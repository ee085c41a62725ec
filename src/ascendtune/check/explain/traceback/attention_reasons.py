"""Reasons for which xformers found no attention operator: those of the operator that comes nearest."""

from __future__ import annotations

import re

_REFUSED = ("No operator found for `memory_efficient", "` does not support inputs")
"""Message of the dispatcher, and of an operator that the code itself chose."""
_OPERATOR = re.compile(r"\s*`(?P<name>[\w@.+-]+)` is not supported because:\s*(?P<reason>.*)")
_REASON = re.compile(r"\s+(?!query |key  |value )\S")
_GENERAL = re.compile(r"cutlass|fa\d|flshatt|ck[FB]")
"""Operators that accept most inputs; the others are for small heads, for decoding, or only for Triton."""
_NOT_BUILT = "wasn't buil"
_CAPABILITY = "your GPU has capability"


def refusal_in(message: str, below: list[str]) -> str:
    """Reasons of the operator that comes nearest, and the GPU's capability if another operator names it.

    Args:
        message: of the exception.
        below: the lines below it.

    Returns:
        "`OPERATOR` is not supported because: REASON, REASON; `OTHER`: REASON"; empty for other messages.
    """
    if not any(each in message for each in _REFUSED):
        return ""
    by_operator = _reasons(below)
    if not by_operator:
        return ""
    candidates = [name for name in by_operator if _GENERAL.match(name)] or list(by_operator)
    # An operator that is not in this build tells nothing about the inputs, unless none is.
    nearest = min(candidates, key=lambda name: (_is_not_built(by_operator[name]), len(by_operator[name])))
    reasons = by_operator[nearest]
    refusal = f"`{nearest}` is not supported because: {', '.join(reasons)}"
    if any(_CAPABILITY in each for each in reasons):
        return refusal
    everywhere = ((name, reason) for name, each in by_operator.items() for reason in each)
    other = next((f"; `{name}`: {reason}" for name, reason in everywhere if _CAPABILITY in reason), "")
    return refusal + other


def _reasons(below: list[str]) -> dict[str, list[str]]:
    """Reasons by operator, in the order of the message."""
    by_name: dict[str, list[str]] = {}
    name = ""
    for line in below:
        if operator := _OPERATOR.match(line):
            name = operator["name"]
            by_name[name] = [operator["reason"].strip()] if operator["reason"] else []
        elif name and _REASON.match(line):
            by_name[name].append(line.strip())
        elif name:
            break
    return {name: reasons for name, reasons in by_name.items() if reasons}


def _is_not_built(reasons: list[str]) -> bool:
    return any(_NOT_BUILT in each for each in reasons)
