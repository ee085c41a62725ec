"""Running git: without questions, without the helpers that an address could name, and its errors in one line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.mask import without_secrets
from ascendtune.core.process import Finished, run

NETWORK_SECONDS, QUICK_SECONDS = 3600.0, 60.0
GIVE_UP_SLOW = ("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=30")
"""A server that sends less than 1000 bytes a second for 30 s is given up."""
_OF_ANOTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY")
"""A hook of git has these variables in its environment: they win over the directory that a command names."""
_URL = re.compile(
    r"(https?|ssh|git|file)://[^\s\x00-\x1f]+|\w[\w.-]*@\w[\w.-]*:[^\s\x00-\x1f:][^\s\x00-\x1f]*|/[^\x00-\x1f]+"
)


def checked_url(url: str) -> str:
    """The URL, if it is one that git fetches without running a program of its choice.

    Raises:
        InputError: an option, a helper such as ext::, or something else.
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
    env = dict(os.environ if environment is None else environment)
    for name in _OF_ANOTHER_REPOSITORY:
        env.pop(name, None)
    env |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "GIT_ALLOW_PROTOCOL": "https:http:ssh:git:file"}
    done = run(argv, timeout_seconds=seconds, env=env)
    if done.exit_code == 127:
        raise MachineError("git is not installed", code="program-missing", remedy="install git")
    return done


def last_line(done: Finished) -> str:
    lines = [line for line in (done.error or done.output).splitlines() if line.strip()]
    named = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines
    return without_secrets(named[0][:300]) if named else f"exit code {done.exit_code}"
