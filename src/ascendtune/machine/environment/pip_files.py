"""pip's configuration files: those that it reads, their settings, and changes of the index in the user's file."""

from __future__ import annotations

import configparser
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ascendtune.core.errors import MachineError
from ascendtune.machine.environment.user_files import config_home, home, read_if_readable, read_user_file

_INDEX = re.compile(r"^([ \t]*)index[-_]url[ \t]*[=:].*$", re.MULTILINE | re.IGNORECASE)
_SECTION = re.compile(r"^\[(.+?)\]", re.MULTILINE)


@dataclass(frozen=True)
class PackageIndex:
    """An index-url in a configuration file."""

    address: str
    section: str
    path: Path


def indexes(env: Mapping[str, str], root: Path = Path("/")) -> list[PackageIndex]:
    """Every index-url that pip reads; in one section the last counts, and a command's section before [global].

    Args:
        root: root of the path /etc.

    Raises:
        MachineError: a file cannot be read as pip's configuration.
    """
    return [
        PackageIndex(options["index-url"], section, path)
        for path in _files(env, root)
        for section, options in pip_settings(_content(path, env), path).items()
        if "index-url" in options
    ]


def _content(path: Path, env: Mapping[str, str]) -> str:
    return (read_user_file(path) if path == pip_file(env) else read_if_readable(path)) or ""


def _files(env: Mapping[str, str], root: Path) -> Iterator[Path]:
    """As in pip's configuration.py: those of the machine, of the user, of the Python environment, PIP_CONFIG_FILE."""
    given = env.get("PIP_CONFIG_FILE", "")
    if given == os.devnull:
        return
    for directory in reversed((env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")):
        yield root / directory.lstrip("/") / "pip/pip.conf"
    yield root / "etc/pip.conf"
    if not (given and Path(given).exists()):
        yield home(env) / ".pip/pip.conf"
        yield config_home(env) / "pip/pip.conf"
    yield Path(env.get("VIRTUAL_ENV") or env.get("CONDA_PREFIX") or sys.prefix) / "pip.conf"
    if given:
        yield Path(given)


def pip_file(env: Mapping[str, str]) -> Path:
    """The user's file that pip reads: PIP_CONFIG_FILE, the old path if that file exists, or the new one."""
    given = env.get("PIP_CONFIG_FILE", "")
    if given and given != os.devnull:
        return Path(given)
    old = home(env) / ".pip/pip.conf"
    new = config_home(env) / "pip/pip.conf"
    return old if old.exists() and not new.exists() else new


def pip_settings(text: str, path: Path) -> dict[str, dict[str, str]]:
    """Section -> option -> value, parsed as by pip."""
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise MachineError(
            f"pip cannot read its configuration: {error.message.splitlines()[0]}",
            code="invalid-ini",
            remedy="correct or remove it",
            where=path,
        ) from error
    return {
        section: {name.replace("_", "-"): value for name, value in parser.items(section)}
        for section in parser.sections()
    }


def _of_global(text: str) -> tuple[int, int] | None:
    """Begin and end of the lines of [global] in the text; None without that section."""
    sections = list(_SECTION.finditer(text))
    for number, section in enumerate(sections):
        if section[1].strip() == "global":
            end = sections[number + 1].start() if number + 1 < len(sections) else len(text)
            return section.end(), end
    return None


def with_index(text: str | None, index: str | None, path: Path) -> str | None:
    """pip.conf with another index-url in [global]; everything else is unchanged, including comments.

    Raises:
        MachineError: pip cannot read the file, or would read the changed file in another way.
    """
    expected = pip_settings(text or "", path)
    if index is not None:
        expected.setdefault("global", {})["index-url"] = index
    else:
        expected.get("global", {}).pop("index-url", None)
    after = _with_index_line(text, index)
    if pip_settings(after or "", path) != expected:
        raise MachineError(
            "this file sets index-url in a form that ascendtune cannot change",
            code="invalid-ini",
            remedy=f"write it by hand, on one line below [global]: index-url = {index or '…'}",
            where=path,
        )
    return after


def _with_index_line(text: str | None, index: str | None) -> str | None:
    place = _of_global(text or "")
    found = _INDEX.search(text or "", *place) if place else None
    line = f"index-url = {index}" if index else ""
    if text is not None and found:
        end = found.end() if index else found.end() + text.startswith("\n", found.end())
        return text[: found.start()] + (found[1] + line if index else "") + text[end:]
    if index is None:
        return text
    if text is None:
        return f"[global]\n{line}\n"
    if place:
        # A line that is indented more than the option above it would continue that option's value.
        following = re.compile(r"\n([ \t]*)[^\s#;\[]").search(text, *place)
        return f"{text[: place[0]]}\n{following[1] if following else ''}{line}{text[place[0] :]}"
    gap = "\n" if text and not text.endswith("\n") else ""
    return f"{text}{gap}[global]\n{line}\n"
