"""`ascendtune env caches`, `mount` and `permissions`: the machine for training."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ascendtune.cli.messages import confirm
from ascendtune.cli.options import AsJson, LanguageOption, Yes, several_of
from ascendtune.cli.terminal import in_language, print_findings, print_json, table
from ascendtune.core.errors import CheckFailed, InputError
from ascendtune.core.suggest import known_names
from ascendtune.core.units import format_bytes

if TYPE_CHECKING:
    from ascendtune.check.finding import Finding
    from ascendtune.machine.environment.caches import CacheEntry

_HOUR = 3600


def _names_of_caches() -> Iterable[str]:
    from ascendtune.machine.environment.caches import NAMES

    return NAMES


def caches(
    clean: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Remove entries of these caches, e.g. torch_extensions,triton.",
            autocompletion=several_of(_names_of_caches),
        ),
    ] = None,
    older_than: Annotated[
        float, typer.Option(metavar="HOURS", min=0, help="Only entries that have not changed for this time.")
    ] = 1.0,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """List the caches of compilers and downloads on this machine: place, size, age. Remove entries on request.

    \b
    ascendtune env caches
    ascendtune env caches --clean torch_extensions,kernel_meta
    ascendtune env caches --clean huggingface --older-than 720

    Only directories with these programs' names are listed and removed; links are not followed.
    """
    from ascendtune.machine.environment.caches import NAMES, find_entries, remove

    names = known_names(clean, NAMES, "cache") if clean else list(NAMES)
    found = find_entries(os.environ, Path.cwd(), names)
    chosen = [each for each in found if each.is_own and each.age_seconds >= older_than * _HOUR] if clean else []
    if not as_json:
        print(_cache_table(chosen if clean else found) or "nothing found")
    if clean and not as_json and len(chosen) < len(found):
        print(f"kept: {len(found) - len(chosen)} newer than {older_than:g} h, or of other users", file=sys.stderr)
    size = sum(each.size_bytes for each in chosen)
    is_removed = bool(chosen) and confirm(f"Remove these {len(chosen)} ({format_bytes(size)})?", yes=yes)
    if is_removed:
        for each in chosen:
            remove(each)
        print(f"removed {format_bytes(size)}", file=sys.stderr)
    if as_json:
        print_json([_cache_as_plain(each, is_removed and each in chosen) for each in found])


def _cache_as_plain(entry: CacheEntry, is_removed: bool) -> dict[str, Any]:
    from ascendtune.machine.environment.caches import describe

    content = {**asdict(entry), "content": describe(entry.cache), "removed": is_removed}
    del content["identity"]
    return content


def _cache_table(entries: list[CacheEntry]) -> str:
    from ascendtune.machine.environment.caches import describe

    if not entries:
        return ""
    rows = [
        [str(each.path), each.cache, format_bytes(each.size_bytes), _age(each.age_seconds), describe(each.cache)]
        for each in entries
    ]
    header = ["path", "cache", "size", "age", "content"]
    return table(header, rows, right=["size", "age"], spare=["content", "age"])


def _age(seconds: float) -> str:
    return f"{seconds / 86400:.0f} d" if seconds >= 2 * 86400 else f"{seconds / 3600:.0f} h"


def mount(
    action: Annotated[Literal["check"], typer.Argument(metavar="check", help="What to do.")],
    directories: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR", help="Directories (default: here).", show_default=False)
    ] = None,
    as_json: AsJson = False,
    lang: LanguageOption = None,
) -> int:
    """Show file system, mount options and measured speed of directories, and recommended changes.

    \b
    ascendtune env mount check /llmdir
    ascendtune env mount check /data/models /data/runs --json

    Writes an unnamed file of at most 32 MiB to each, for a second, and reads it back.
    """
    from ascendtune.check.doctor.storage import storage_of
    from ascendtune.check.doctor.system import System

    for each in directories or []:
        if not each.is_dir():
            raise InputError(
                "not a directory", code="not-a-directory", remedy="mount it, or check the path", where=each
            )
    places = [each.resolve() for each in directories or [Path.cwd()]]
    return _print_findings(lambda: list(storage_of(System(), places)), lang, as_json=as_json)


def permissions(
    mend: Annotated[bool, typer.Option("--fix", help="Show the commands that repair it, ask, and run them.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
    lang: LanguageOption = None,
) -> int:
    """Check who may open the NPUs, CANN, the Python environment and the caches; repair it on request.

    \b
    ascendtune env permissions
    ascendtune env permissions --fix

    These are `permissions` and `device_nodes` of `ascendtune doctor`. --fix runs the commands with `sudo -n`: if sudo
    asks for a password, run them yourself. Exit code 1: a failure was found.
    """
    from ascendtune.check.doctor.check import examine
    from ascendtune.check.doctor.system import System

    found: list[Finding] = []

    def look() -> list[Finding]:
        found.extend(examine(System(), ["permissions", "device_nodes"]).findings)
        return found

    code = _print_findings(look, lang, as_json=as_json)
    repairs = list(dict.fromkeys(each.repair for each in found if each.repair))
    if not mend or not repairs:
        return code
    print(*(shlex.join(each) for each in repairs), sep="\n", file=sys.stderr)
    if confirm("Run these commands?", yes=yes):
        _repair(repairs)
        return 0
    return code


def _repair(repairs: list[tuple[str, ...]]) -> None:
    from ascendtune.core.process import run

    for argv in repairs:
        done = run(["sudo", "-n", *argv[1:]], timeout_seconds=600)
        if done.exit_code != 0:
            message = " ".join((done.error or done.output).split())[:300]
            raise CheckFailed(
                f"{shlex.join(argv)} ended with code {done.exit_code}: {message}",
                code="repair-failed",
                remedy="run it yourself, in a shell where sudo may ask for the password",
            )
        print(f"done: {shlex.join(argv)}", file=sys.stderr)
    print("a new group counts from the next log-in on", file=sys.stderr)


def _print_findings(look: Callable[[], list[Finding]], lang: str | None, *, as_json: bool) -> int:
    """Print the findings of `look`, in the language of the user; returns the exit code."""
    from ascendtune.check.doctor.language import say
    from ascendtune.check.finding import exit_code

    with in_language(lang, as_json=as_json):
        findings = look()
        wrong = sum(each.status in ("failure", "warning") for each in findings)
        headline = say("no problem found")
        if wrong:
            headline = say("{count} {count:problem|problems} found", count=wrong)
        print_findings(headline, findings, as_json=as_json)
    return exit_code(findings)
