"""Runs git: without questions, without the helpers that an address could name, and with its errors in one line."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.mask import without_secrets
from ascendtune.core.process import Child, Finished, run

NETWORK_SECONDS, QUICK_SECONDS = 3600.0, 60.0
GIVE_UP_SLOW = ("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=30")
"""Give up on a server that sends less than 1000 bytes a second for 30 s."""
_OF_ANOTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY")
"""Variables in the environment of a git hook: they would override the directory that a command names."""
_PROGRESS = re.compile(r"(Receiving objects|Resolving deltas|Updating files): +\d+% \((\d+)/(\d+)\)")
_PROGRESS_SECONDS, _END_SECONDS, _TAIL_BYTES = 0.2, 10.0, 1 << 14
_URL = re.compile(
    r"(https?|ssh|git|file)://[^\s\x00-\x1f]+|\w[\w.-]*@\w[\w.-]*:[^\s\x00-\x1f:][^\s\x00-\x1f]*|/[^\x00-\x1f]+"
)


def checked_url(url: str) -> str:
    """The URL, if git fetches it without running a program that the URL chooses.

    Raises:
        InputError: it is an option, names a helper such as ext::, or is not a URL.
    """
    if not _URL.fullmatch(url) or "::" in url.partition("/")[0] or re.search("(://|@)-", url):
        raise InputError(
            f"not the address of a repository: {without_secrets(url)}",
            code="invalid-value",
            remedy="give https://HOST/OWNER/NAME.git, ssh://…, user@host:path or an absolute path",
        )
    return url


def start_git(argv: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> Finished:
    """Run git: without questions, in English, and with no helper that a URL could name."""
    done = run(argv, timeout_seconds=seconds, env=_safe(os.environ if environment is None else environment))
    if done.exit_code == 127:
        raise _not_installed()
    return done


def start_git_with_progress(argv: Sequence[str], seconds: float, progress: Callable[[str, int, int], None]) -> Finished:
    """`start_git` for a command with --progress and nothing on its stdout.

    Args:
        progress: called with the phase, and the objects done and in all.
    """
    if shutil.which("git") is None:
        raise _not_installed()
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "stderr"
        child = Child(argv, _safe(os.environ), stderr=log)
        deadline = time.monotonic() + seconds
        try:
            while (code := child.wait(_PROGRESS_SECONDS)) is None and time.monotonic() < deadline:
                if found := _PROGRESS.findall(_tail(log)):
                    phase, done, total = found[-1]
                    progress(phase.lower(), int(done), int(total))
        finally:
            # After a time-out or Ctrl-C: git removes the files that it has created.
            child.signal(signal.SIGTERM)
            if child.wait(_END_SECONDS) is None:
                child.signal(signal.SIGKILL)
        return Finished(tuple(argv), 124 if code is None else code, "", _tail(log), timed_out=code is None)


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return file.read().decode(errors="replace")


def _safe(environment: Mapping[str, str]) -> dict[str, str]:
    env = {name: value for name, value in environment.items() if name not in _OF_ANOTHER_REPOSITORY}
    return {**env, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "GIT_ALLOW_PROTOCOL": "https:http:ssh:git:file"}


def _not_installed() -> MachineError:
    return MachineError("git is not installed", code="program-missing", remedy="install git")


def last_line(done: Finished) -> str:
    lines = [line for line in (done.error or done.output).splitlines() if line.strip()]
    named = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines
    return without_secrets(named[0][:300]) if named else f"exit code {done.exit_code}"
