"""Valid messages of a host to the starting host. Another version, another program or a stranger may answer there."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping
from typing import Any, get_args

from ascendtune.core.errors import MachineError
from ascendtune.core.foreign_json import is_number
from ascendtune.machine.visible import Kind

_MOST_DEVICES = 1024
"""Of one host, as for --devices."""
_LONGEST_TEXT = 1 << 16
"""Characters of a text that is shown as a whole: a reason, a version."""
_LONGEST_LIST = 1 << 16
LAST_SECOND = 1e11
"""Upper bound of seconds since the epoch."""
_ADDRESS = re.compile(r"[0-9A-Za-z][0-9A-Za-z.:%_-]{0,254}|::[0-9A-Fa-f:.]{0,40}")
"""A host name or an IP address; not an option of a program, which begins with a dash."""


def _is_whole(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT


def _is_output(value: Any) -> bool:
    return isinstance(value, str)


def _is_address(value: Any) -> bool:
    return isinstance(value, str) and _ADDRESS.fullmatch(value) is not None


def _or_null(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_valid(value)


def _are_versions(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_text(name) and _or_null(_is_text)(value[name]) for name in value)


def _are_ranks(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _LONGEST_LIST and all(map(_IS_RANK, value))


_IS_RANK = _is_whole(0, 1 << 31)
_ERROR: Mapping[str, Any] = {"what": _is_text, "code": _is_text, "remedy": _is_text, "exit_code": _is_whole(1, 255)}
_HANG = {**_ERROR, "kind": lambda value: value == "hang", "rank": _or_null(_IS_RANK), "odd_ranks": _are_ranks}

_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "hello": {
        "hello": {
            "machine": _is_text,
            "address": _or_null(_is_address),
            "client": _or_null(_is_address),
            "kind": lambda value: value in get_args(Kind),
            "devices": _is_whole(1, _MOST_DEVICES),
            "note": _or_null(_is_text),
            "time": lambda value: is_number(value, 0, LAST_SECOND),
            "versions": _are_versions,
        }
    },
    "refused": {"refused": {**_ERROR, "where": _or_null(_is_text)}},
    "endpoint": {"endpoint": {"address": _is_address, "port": _is_whole(1, 65535)}},
    "out": {"out": _is_output},
    "err": {"err": _is_output},
    "line": {"line": _is_output, "rank": _IS_RANK},
    "left_out": {"left_out": _is_whole(0, 1 << 62)},
    "asked": {"asked": lambda value: type(value) is int and value in (signal.SIGINT, signal.SIGTERM)},
    "ended": {"ended": _is_whole(-signal.NSIG + 1, 255), "hang": _or_null(lambda value: _fits(value, _HANG))},
}
"""Name of a message -> its fields, each with a test of its value; objects have tests of their fields."""


def checked(message: Mapping[str, Any], host: str) -> dict[str, Any] | None:
    """The fields of a host's message; None if it is not a message of an agent, as a line of a login shell.

    Raises:
        MachineError: a field is missing or has an invalid value.
    """
    name = next((each for each in _FIELDS if each in message), None)
    if name is None:
        return None
    if not _fits(message, _FIELDS[name]):
        raise invalid_answer(host)
    return {field: message.get(field) for field in _FIELDS[name]}


def invalid_answer(host: str) -> MachineError:
    """The error for an answer that this version does not understand."""
    return MachineError(
        f"{host} sends an answer that this version does not understand",
        code="host-of-other-version",
        remedy="install the same version of ascendtune on every node",
        where=host,
    )


def _fits(value: Any, rule: Any) -> bool:
    if isinstance(rule, Mapping):
        return isinstance(value, dict) and all(_fits(value.get(name), each) for name, each in rule.items())
    return bool(rule(value))
