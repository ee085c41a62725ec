"""Facts from the innermost frame of a traceback, its line of code, and the lines below the exception."""

from __future__ import annotations

import re

from ascendtune.check.explain.frame import posix

_NONE_HAS_NO = re.compile(r"'NoneType' object has no attribute '(\w+)'")
_NONE_NOT_SUBSCRIPTABLE = "'NoneType' object is not subscriptable"
_SUBSCRIPT = re.compile(r"^(?:[\w., ]+ = )?([A-Za-z_][\w.]*(?:\([^()]*\))?)\[[^\[\]]*\]$")
"""A line of code with one subscript and nothing else, of which it can be said what was None."""
_LOOK_UP = re.compile(r"(?<![\w.\])])(?P<table>[A-Za-z_][\w.]*)\[(?P<key>\w[\w.]*|'[^']*'|\"[^\"]*\")\]")
"""A look-up in a table that has a name."""

_PACKAGE = re.compile(r".*/(?:site|dist)-packages/([A-Za-z]\w*)")
_ANYBODYS = r"(?:train(?:ers?|ing)?|utils?|models?|data|common|core|scripts|tools|lib)/"
"""Directories below src/ that are parts of a project, and not packages."""
_SOURCE_TREE = re.compile(rf".*/(?:src/(?!{_ANYBODYS})(?=[a-z]\w*/)|(?P<name>[a-z]\w+)/(?=(?P=name)/))([a-z]\w*)/")
"""A package that runs from its source: below src/, or in a directory of its own name."""
_OF_MODULES = "__getattr__"
"""The method of torch's modules that says that they have no such attribute: who asked stands above it."""

_LISTING = ("state_dict", "Weights only", "variable ready only once", "No operator found")
"""Messages of torch that name what they are about some lines below."""
_LISTED = re.compile(
    r"\W*(?:\w+ error: )?(?:Unexpected key\(s\)|Unsupported (?:global: |class )|Parameter at index \d|"
    r"xFormers wasn't build|device=cpu)"
)


def package_in(frames: list[tuple[str, int, str]]) -> str:
    """The package of the innermost of `frames` (file, line, function); empty if it is not in one."""
    files = [posix(file) for file, _, function in frames if function != _OF_MODULES] or [""]
    match = _PACKAGE.match(files[-1]) or _SOURCE_TREE.match(files[-1])
    return match[match.re.groups] if match else ""


def none_in(code: str, message: str) -> str:
    """The expression in `code` that was None, by the exception's message; empty if it is not known."""
    attribute = _NONE_HAS_NO.search(message)
    if attribute is not None:
        used = re.search(rf"([A-Za-z_][\w.]*(?:\([^()]*\)|\[[^\[\]]*\])*)\.{attribute[1]}\b", code)
        used = used or re.search(rf"\bgetattr\(([A-Za-z_][\w.]*), [\"']{attribute[1]}[\"']", code)
        return used[1] if used else ""
    used = _SUBSCRIPT.search(code) if _NONE_NOT_SUBSCRIPTABLE in message else None
    return used[1] if used else ""


def table_in(code: str, message: str) -> str:
    """The table in `code` that lacks the key, which is the message of a KeyError; empty if it is not known.

    That is the one in which the key itself is looked up, else the only one of the line.
    """
    key = message.strip("'\"")
    tables = {each["table"]: each["key"].strip("'\"") for each in _LOOK_UP.finditer(code)}
    named = [table for table, used in tables.items() if used == key]
    if named:
        return named[0]
    return next(iter(tables)) if len(tables) == 1 else ""


def listed_in(message: str, below: list[str]) -> str:
    """The line below an exception that names what its message is about; empty if there is none."""
    if not any(each in message for each in _LISTING):
        return ""
    named = next((line.strip() for line in below if _LISTED.match(line)), "")
    return "" if named in message else named
