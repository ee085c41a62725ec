"""Environment variables that conflict, have no effect or slow training down; and shell files that set them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.system import System
from ascendtune.check.finding import Finding, ok, warning
from ascendtune.core.mask import without_secrets

ENVIRONMENT = "environment"

Env = Mapping[str, str]

_SLOW: dict[str, Callable[[str], bool]] = {
    "ASCEND_LAUNCH_BLOCKING": lambda value: value == "1",
    "CUDA_LAUNCH_BLOCKING": lambda value: value == "1",
    "ASCEND_GLOBAL_LOG_LEVEL": lambda value: value in ("0", "1"),
    "HCCL_ENTRY_LOG_ENABLE": lambda value: value == "1",
}
"""Debugging options that slow training down (vendor's documentation of each)."""


def _look_at_environment(system: System) -> Iterator[Finding]:
    env = system.env
    found = [*_slow(env), *_nameless(system)]
    if system.has_npus:
        found += [*_allocator(env), *_ranks(env), *_hccl(env), *_overflow(env), *_logs(env), *_ignored(env)]
    yield from found
    if not found:
        yield ok(ENVIRONMENT, say("no conflicting variables"))


def _warning(measured: str, expected: str, remedy: str) -> Finding:
    return warning(ENVIRONMENT, measured, expected=expected, remedy=remedy)


def _nameless(system: System) -> Iterator[Finding]:
    if system.user_name() is None and not (system.env.get("USER") or system.env.get("LOGNAME")):
        yield _warning(
            say("the user number {user} has no name: /etc/passwd has no entry for it", user=os.getuid()),
            say("an entry, or USER in the environment; torch's compiler cache, ssh and getpass fail without a name"),
            say("export USER=trainer LOGNAME=trainer"),
        )


def _slow(env: Env) -> Iterator[Finding]:
    for name, is_slow in _SLOW.items():
        if is_slow(env.get(name, "")):
            yield _warning(
                say("{name}={env} makes training slow", name=name, env=env[name]),
                say("set only for debugging"),
                say("unset {name}", name=name),
            )


def _allocator(env: Env) -> Iterator[Finding]:
    value = env.get("PYTORCH_NPU_ALLOC_CONF", "")
    options = dict(part.partition(":")[::2] for part in value.split(",") if part)
    clash = [name for name in ("max_split_size_mb", "garbage_collection_threshold") if name in options]
    if options.get("expandable_segments", "").lower() == "true" and clash:
        yield _warning(
            say("PYTORCH_NPU_ALLOC_CONF has expandable_segments:True and {clash}", clash=clash[0]),
            say("one of the two; several torch_npu releases reject both"),
            say("export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True"),
        )
    if value and env.get("PYTORCH_ALLOC_CONF"):
        yield _warning(
            say("PYTORCH_NPU_ALLOC_CONF and PYTORCH_ALLOC_CONF are both set"),
            say("one of them; torch_npu 26.2 raises an error for both"),
            say("unset PYTORCH_ALLOC_CONF"),
        )


def _ranks(env: Env) -> Iterator[Finding]:
    if env.get("RANK_TABLE_FILE"):
        yield _warning(
            say(
                "RANK_TABLE_FILE={value} is set: HCCL reads addresses from it, not from torchrun",
                value=env["RANK_TABLE_FILE"],
            ),
            say("unset; an outdated table is a frequent cause of EI0004 and EI0014"),
            say("unset RANK_TABLE_FILE"),
        )


def _hccl(env: Env) -> Iterator[Finding]:
    if env.get("HCCL_WHITELIST_DISABLE") == "0":
        yield from _whitelist(env.get("HCCL_WHITELIST_FILE"))
    if env.get("HCCL_INTRA_ROCE_ENABLE") == "1" and env.get("HCCL_INTRA_PCIE_ENABLE") == "1":
        yield _warning(
            say("HCCL_INTRA_ROCE_ENABLE=1 and HCCL_INTRA_PCIE_ENABLE=1"),
            say("one transport within a server; the documentation does not allow both"),
            say("export HCCL_INTRA_PCIE_ENABLE=0"),
        )


def _whitelist(file: str | None) -> Iterator[Finding]:
    """HCCL_WHITELIST_DISABLE=0 (the default is 1) admits only the addresses of the file."""
    if not file:
        yield _warning(
            say("HCCL_WHITELIST_DISABLE=0 without HCCL_WHITELIST_FILE: no peer is allowed"),
            say("both, or neither"),
            "unset HCCL_WHITELIST_DISABLE",
        )
    elif not os.access(file, os.R_OK):
        yield _warning(
            say("HCCL_WHITELIST_DISABLE=0, and the list {file} cannot be read: no peer is allowed", file=file),
            say("a readable file with the addresses of all nodes"),
            "unset HCCL_WHITELIST_DISABLE HCCL_WHITELIST_FILE",
        )


def _overflow(env: Env) -> Iterator[Finding]:
    if env.get("INF_NAN_MODE_ENABLE") == "0":
        yield _warning(
            say("INF_NAN_MODE_ENABLE=0: overflows become the largest number, and loss scaling does not detect them"),
            say("1, the default on 910B and A3, which reject 0 unless it is forced"),
            say("unset INF_NAN_MODE_ENABLE INF_NAN_MODE_FORCE_DISABLE"),
        )


def _logs(env: Env) -> Iterator[Finding]:
    # The second is the name from CANN 9.2 on.
    for name in ("ASCEND_SLOG_PRINT_TO_STDOUT", "ASCEND_LOG_PRINT_TO_STDOUT"):
        if env.get(name) == "1":
            yield _warning(
                say("{name}=1: CANN writes no log files (plog), which are needed for diagnosis", name=name),
                "unset",
                say("unset {name}", name=name),
            )


def _ignored(env: Env) -> Iterator[Finding]:
    ignored = [name for name in sorted(env) if name.startswith("NCCL_") or name == "PYTORCH_CUDA_ALLOC_CONF"]
    if ignored:
        yield _warning(
            say("{names}: not read on Ascend", names=", ".join(ignored)),
            say("HCCL_* and PYTORCH_NPU_ALLOC_CONF"),
            say("unset {names}", names=" ".join(ignored)),
        )


ENVIRONMENT_CHECK = Check(
    ENVIRONMENT,
    what="Checks the environment for conflicting variables, for debugging options, and for variables of another "
    "vendor's runtime.",
    why="Variables are copied between scripts and are kept after they are no longer needed. Most invalid values give "
    "no error. Exporting PYTORCH_NPU_ALLOC_CONF twice replaces the first value.",
    fix="Unset the variables in the finding. Keep settings in the job script, not in ~/.bashrc.",
    look=_look_at_environment,
)


SHELL_FILES = "shell_files"

_SYSTEM = ("/etc/environment", "/etc/profile", "/etc/bash.bashrc", "/etc/bashrc")
_OWN = (".bash_profile", ".bash_login", ".profile", ".bashrc", ".zshenv", ".zshrc")
_EXPORT = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(\S.*)$")
_SOURCE = re.compile(r"^\s*(?:source|\.)\s+['\"]?([^\s'\";&|]+set_env\.sh)")
_WATCHED = re.compile(r"(?:ASCEND|HCCL|PYTORCH|TORCH|CUDA|NCCL|GLOO|HF)_\w+|(?:https?|all|no)_proxy", re.IGNORECASE)
_SECRET = re.compile(r"TOKEN|KEY|SECRET", re.IGNORECASE)
_RELEASE = re.compile(r"/(?:ascend-toolkit|cann)[/-](\d[^/]*)/")

Line = tuple[str, int, str]
"""File, line number from 1, text."""


def _look_at_shell_files(system: System) -> Iterator[Finding]:
    lines = list(_lines(system))
    if not lines:
        return
    found = [*_twice(lines), *_sourced(system, lines)]
    yield from found
    if not found:
        files = len({file for file, _, _ in lines})
        yield ok(SHELL_FILES, say("{files} start files set no variable twice", files=files))


def _lines(system: System) -> Iterator[Line]:
    home = system.env.get("HOME", "")
    profiles = sorted(system.path("/etc/profile.d").glob("*.sh"))
    names = [*_SYSTEM, *(f"/etc/profile.d/{path.name}" for path in profiles)]
    for name in names:
        yield from ((name, number, text) for number, text in enumerate(system.text(name).splitlines(), 1))
    for name in _OWN if home else ():
        try:
            text = (Path(home) / name).read_text(errors="replace")
        except OSError:
            continue
        yield from ((f"~/{name}", number, line) for number, line in enumerate(text.splitlines(), 1))


def _twice(lines: list[Line]) -> Iterator[Finding]:
    """Report repeated exports. Values that contain `$NAME` extend the old one and are allowed; indented lines, such as
    branches of an `if`, are skipped."""
    places: dict[str, list[tuple[str, int, str]]] = {}
    for file, number, text in lines:
        found = None if text[:1].isspace() else _EXPORT.match(text)
        if found and _WATCHED.fullmatch(found[1]) and f"${found[1]}" not in found[2].replace("{", ""):
            places.setdefault(found[1], []).append((file, number, found[2].rstrip().strip("\"'")))
    for name, settings in places.items():
        if len({value for _, _, value in settings}) > 1:
            shown = "***" if _SECRET.search(name) else None
            yield warning(
                SHELL_FILES,
                say(
                    "{name} is set {count} times, with different values; the last one replaces the others",
                    name=name,
                    count=len(settings),
                ),
                expected=say("one line; values are not combined"),
                remedy=say("keep one line for {name} with all options, and open a new shell", name=name),
                evidence=tuple(
                    f"{file}:{number}: {shown or without_secrets(value)}" for file, number, value in settings
                ),
            )


def _sourced(system: System, lines: list[Line]) -> Iterator[Finding]:
    scripts = [(file, number, found[1]) for file, number, text in lines if (found := _SOURCE.match(text))]
    home = system.env.get("HOME", "")
    named = [(file, number, re.sub(r"^(~|\$\{?HOME\}?)(?=/)", lambda _: home, path)) for file, number, path in scripts]
    missing = [
        each for each in named if each[2].startswith("/") and "$" not in each[2] and not _exists(system, each[2])
    ]
    if missing:
        yield warning(
            SHELL_FILES,
            say("{gone} is sourced and does not exist", gone=missing[0][2]),
            expected=say("set_env.sh of a CANN that is installed"),
            remedy=say("correct or remove the line"),
            evidence=tuple(f"{file}:{number}: {path}" for file, number, path in missing),
        )
    releases = {found[1] for _, _, path in named if (found := _RELEASE.search(path))}
    if len(releases) > 1:
        yield warning(
            SHELL_FILES,
            say("every shell loads a mix of CANN {names}", names=" and ".join(sorted(releases))),
            expected=say("one release"),
            remedy=say("keep one line with set_env.sh"),
            evidence=tuple(f"{file}:{number}: {path}" for file, number, path in named),
        )


def _exists(system: System, path: str) -> bool:
    return system.path(path).exists() or Path(path).exists()


SHELL_FILES_CHECK = Check(
    SHELL_FILES,
    what="Reads /etc/environment, /etc/profile, /etc/profile.d and the start files in the home directory. Checks for "
    "variables of Ascend, CUDA, PyTorch, hubs and proxies that are set more than once with different values, and for "
    "set_env.sh scripts that do not exist or belong to two CANN releases.",
    why="A second export replaces the first. `PYTORCH_NPU_ALLOC_CONF=expandable_segments:True` followed by "
    "`PYTORCH_NPU_ALLOC_CONF=max_split_size_mb:256` leaves only the second, without a message. Two set_env.sh mix two "
    "releases of CANN in every shell.",
    fix="Keep one line for each variable and one set_env.sh. The check does not run the files, so it does not see "
    "variables that a script sets conditionally.",
    look=_look_at_shell_files,
)
