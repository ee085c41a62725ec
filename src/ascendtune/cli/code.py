"""`ascendtune code`: repositories behind slow networks, and merges that leave pushing to the user."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascendtune.cli.messages import warn
from ascendtune.core.errors import CheckFailed
from ascendtune.core.mask import without_secrets
from ascendtune.core.units import count_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ascendtune.machine.environment.checkout import GitCheckout, MergeConflicts, MergeResult

Checkout = Annotated[Path, typer.Option("--repo", metavar="DIR", help="The checkout.")]
Abort = Annotated[bool, typer.Option("--abort", help="Abort the merge that has conflicts, and return.")]
_SHOWN_LINES = 8


def clone(
    url: Annotated[str, typer.Argument(metavar="URL", help="https://…, ssh://…, user@host:path or an absolute path.")],
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="Directory (default: the name).", show_default=False)
    ] = None,
    proxy: Annotated[bool, typer.Option("--proxy", help="If URL does not answer, try gh-proxy.com.")] = False,
    via: Annotated[
        list[str] | None, typer.Option(metavar="PROXY", help="If URL does not answer, try this proxy; repeatable.")
    ] = None,
) -> None:
    """Clone a repository, through a proxy if it does not answer; `origin` is URL in any case.

    \b
    ascendtune code clone https://github.com/volcengine/verl.git --proxy
    ascendtune code clone https://github.com/huggingface/trl.git trl --via https://gh-proxy.com

    After a proxy, HEAD is compared with that of URL itself, if it answers within 20 s.
    """
    from ascendtune.core.progress_bar import ProgressBar
    from ascendtune.machine.environment.clone import PROXIES
    from ascendtune.machine.environment.clone import clone as clone_repository
    from ascendtune.machine.environment.git import checked_url

    name = checked_url(url).rstrip("/").rpartition("/")[2].rpartition(":")[2].removesuffix(".git")
    target = directory or Path(name)
    with ProgressBar(sys.stderr) as progress:
        proxies = [*(via or []), *(PROXIES if proxy else ())]
        address, is_same = clone_repository(url, target, proxies=proxies, progress=progress.show)
    origin = "" if address == url else f"; origin is {without_secrets(url)}"
    print(f"{target}: cloned from {without_secrets(address)}{origin}")
    if is_same is None:
        warn("the repository itself does not answer: the proxy's content was not compared with it")
    elif not is_same:
        raise CheckFailed(
            "the proxy sent another commit than the repository names as HEAD",
            code="file-differs",
            remedy="do not run this code; the proxy may be out of date: git fetch origin, and look",
            where=target,
        )


def sync_upstream(
    upstream: Annotated[
        str | None, typer.Option(metavar="REMOTE|URL", help="Default: the remote called upstream or online.")
    ] = None,
    branch: Annotated[str | None, typer.Option(help="Branch of both (default: origin's default branch).")] = None,
    repo: Checkout = Path(),
    abort: Abort = False,
) -> None:
    """Merge the official repository into a work branch of your fork; list conflicts; push nothing.

    \b
    ascendtune code sync-upstream --upstream https://github.com/OpenRLHF/OpenRLHF.git
    ascendtune code sync-upstream
    ascendtune code sync-upstream --abort

    Fetches origin and upstream, creates the branch sync/upstream-BRANCH from origin's, and merges. After conflicts are
    resolved and added, the same command continues. A tree with uncommitted changes is refused. Exit code 1: conflicts.
    """
    from ascendtune.machine.environment.checkout import GitCheckout

    repository = GitCheckout.find(repo)
    if abort:
        print(f"back on {repository.abort()}")
        return
    merged = _listing_conflicts(lambda: repository.sync_upstream(upstream, branch))
    target = merged.branch.removeprefix("sync/upstream-")
    _print_result(merged, repository, f"git push origin {shlex.quote(f'{merged.branch}:{target}')}")


def merge_pr(
    number: Annotated[int, typer.Argument(metavar="N", min=1, help="Number of the pull or merge request.")],
    remote: Annotated[
        str | None, typer.Option(help="Remote that has it (default: upstream or online, else origin).")
    ] = None,
    base: Annotated[str | None, typer.Option(help="Branch to merge into (default: the current one).")] = None,
    test: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Then run this in the checkout: it runs the request's code.")
    ] = None,
    repo: Checkout = Path(),
    abort: Abort = False,
) -> int:
    """Merge a pull request into a work branch, run your tests, and leave pushing to you.

    \b
    ascendtune code merge-pr 1234
    ascendtune code merge-pr 1234 --test "pytest -q tests"
    ascendtune code merge-pr 1234 --abort

    GitHub, Gitee and GitLab. Exit code 1: conflicts, or the tests failed.
    """
    from ascendtune.machine.environment.checkout import GitCheckout

    repository = GitCheckout.find(repo)
    if abort:
        print(f"back on {repository.abort()}")
        return 0
    merged = _listing_conflicts(lambda: repository.merge_pull_request(number, remote, base))
    if test is not None:
        _require_passing(test, repository.directory)
    _print_result(merged, repository, f"git push origin {shlex.quote(merged.branch)}")
    return 0


def _require_passing(command: str, directory: Path) -> None:
    from ascendtune.core.process import Child

    argv = ["bash", "-c", f"cd {shlex.quote(str(directory))} && {command}"]
    if code := Child(argv, os.environ).wait():
        raise CheckFailed(
            f"the tests ended with code {code}",
            code="tests-failed",
            remedy="the merge is on the work branch; correct it there, or leave the branch",
            where=directory,
        )


def _listing_conflicts(merge: Callable[[], MergeResult]) -> MergeResult:
    from ascendtune.machine.environment.checkout import MergeConflicts

    try:
        return merge()
    except MergeConflicts as error:
        print("\n".join(_conflict_lines(error)))
        raise


def _conflict_lines(error: MergeConflicts) -> list[str]:
    lines = []
    for conflict in error.conflicts:
        lines.append(f"{conflict.path}: {conflict.kind}")
        if conflict.kind.startswith("both") and not conflict.hunks:
            lines.append("  has no conflict markers (any more): git add it when it is correct")
        for hunk in conflict.hunks:
            lines.append(f"  line {hunk.line}")
            for mark, side in (("-", hunk.ours), ("+", hunk.theirs)):
                lines += [f"    {mark} {line}" for line in side[:_SHOWN_LINES]]
                if len(side) > _SHOWN_LINES:
                    lines.append(f"    {mark} … {len(side) - _SHOWN_LINES} more lines")
    return lines


def _print_result(merged: MergeResult, repository: GitCheckout, push: str) -> None:
    if merged.commits:
        print(f"{repository.directory}: {count_of(merged.commits, 'commit')} merged into {merged.branch}")
        print(f"to publish: {push}")
    else:
        print(f"{repository.directory}: nothing new for {merged.branch}")
    if merged.previous_checkout != merged.branch:
        print(f"you were at {merged.previous_checkout}", file=sys.stderr)
