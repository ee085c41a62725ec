"""Cloning a repository, through a proxy if its own address does not answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.mask import without_secrets
from ascendtune.machine.environment.checkout import GitCheckout
from ascendtune.machine.environment.git import (
    GIVE_UP_SLOW,
    NETWORK_SECONDS,
    checked_url,
    last_line,
    start_git,
    start_git_with_progress,
)
from ascendtune.machine.environment.mirrors import proxied

PROXIES = ("https://gh-proxy.com",)
"""Services that fetch the address that is appended to their own."""
_COMPARE_SECONDS = 20.0


def clone(
    url: str,
    directory: Path,
    *,
    proxies: Sequence[str] = (),
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> tuple[str, bool | None]:
    """Clone, from `url` itself, then through each proxy; the remote `origin` is `url` in any case.

    An address with a user name or a password is not sent to a proxy.

    Args:
        progress: called with git's phase, and the objects done and in all.

    Returns:
        The address that worked, and whether HEAD is the same as at `url` itself; None if `url` does not answer.

    Raises:
        InputError: the URL, or a directory with content.
        MachineError: no address works.
    """
    checked_url(url)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(
            "this exists",
            code="path-exists",
            remedy="choose another directory; if an interrupted clone left this one, remove it",
            where=directory,
        )
    may_use_proxy = url.startswith("https://") and "@" not in urlsplit(url).netloc
    addresses = [url, *(proxied(url, each) for each in proxies if may_use_proxy)]
    failures = []
    for address in addresses:
        argv = ["git", *GIVE_UP_SLOW, "clone", "--progress", "--no-recurse-submodules", "--", address, str(directory)]
        done = start_git_with_progress(argv, NETWORK_SECONDS, progress)
        if done.exit_code == 0:
            break
        failures.append(f"{without_secrets(address)}: {last_line(done)}")
    else:
        remedy = f"check the address, or try {'another proxy: ' if proxies else 'a proxy: --proxy or '}--via URL"
        if not may_use_proxy:
            remedy = "check the address; to use a proxy, give the https address without user name and password"
        if proxies and not may_use_proxy:
            failures.append(
                "no proxy was tried, because proxies are used only for https addresses that contain neither a user "
                "name nor a password"
            )
        raise MachineError(f"cannot clone: {'; '.join(failures)}", code="hub-unreachable", remedy=remedy)
    repository = GitCheckout(directory)
    repository.git("remote", "set-url", "--", "origin", url)
    if (found := repository.git("config", "--get", "remote.origin.url").strip()) != url:
        raise MachineError(
            f"origin is {without_secrets(found)}", code="file-differs", remedy="git remote set-url origin URL"
        )
    if address == url:
        return address, True
    named = start_git(["git", *GIVE_UP_SLOW, "ls-remote", "--", url, "HEAD"], _COMPARE_SECONDS)
    head = repository.git("rev-parse", "HEAD").strip()
    return address, named.output.startswith(head) if named.exit_code == 0 and named.output else None
