"""Merges that stop half-way, and what stands in their way: the same call continues, nothing of the user's is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ascendtune.core.errors import AscendtuneError
from ascendtune.core.process import Finished
from ascendtune.machine.environment import clone as cloning
from ascendtune.machine.environment.checkout import GitCheckout, MergeConflicts
from ascendtune.machine.environment.clone import clone
from ascendtune.machine.environment.git import GIVE_UP_SLOW
from git_helpers import commit, git

pytestmark = pytest.mark.long

Call = Callable[[], object]


@pytest.fixture
def calls(world: Path) -> list[Call]:
    """Both merges; each would bring one commit, the pull request one that adds `feature.txt`."""
    work = world / "work"
    git(work, "checkout", "-q", "-b", "feature")
    commit(work, feature="theirs\n")
    git(work, "push", "-q", "origin", "HEAD:refs/pull/7/head")
    git(work, "checkout", "-q", "main")
    git(work, "branch", "-qD", "feature")
    commit(world / "upstream", feature="theirs\n")
    repository = GitCheckout.find(work)
    return [
        partial(repository.sync_upstream, str(world / "upstream")),
        partial(repository.merge_pull_request, 7, "origin"),
    ]


def _code(call: Call) -> str:
    with pytest.raises(AscendtuneError) as caught:
        call()
    return caught.value.code


@pytest.mark.parametrize("number", [0, 1], ids=["upstream", "pull request"])
def test_conflict_on_a_detached_head_is_continued(world: Path, calls: list[Call], number: int) -> None:
    work, call = world / "work", calls[number]
    commit(work, feature="ours\n")
    git(work, "push", "-q", "origin", "main")
    git(work, "checkout", "-q", "--detach")
    for _ in range(2):
        with pytest.raises(MergeConflicts) as caught:
            call()
        (conflict,) = caught.value.conflicts
        assert (conflict.path, conflict.kind) == ("feature.txt", "both added it")
    (work / "feature.txt").write_text("both\n")
    git(work, "add", "feature.txt")
    call()
    assert git(work, "status", "--porcelain") == "" and (work / "feature.txt").read_text() == "both\n"
    assert git(work, "rev-parse", "main") == git(work, "rev-parse", "HEAD^1"), "the branch itself stays where it was"


def test_abort_of_a_pull_request_returns_to_a_detached_head(world: Path, calls: list[Call]) -> None:
    work = world / "work"
    at = commit(work, feature="ours\n")
    git(work, "checkout", "-q", "--detach")
    with pytest.raises(MergeConflicts):
        calls[1]()
    GitCheckout.find(work).abort()
    assert git(work, "rev-parse", "HEAD") == at and git(work, "status", "--porcelain") == ""


@pytest.mark.parametrize("number", [0, 1], ids=["upstream", "pull request"])
def test_file_that_git_does_not_know_is_not_overwritten(world: Path, calls: list[Call], number: int) -> None:
    work, call = world / "work", calls[number]
    (work / "feature.txt").write_text("precious\n")
    assert _code(call) == "git-failed"
    assert (work / "feature.txt").read_text() == "precious\n"
    (work / "feature.txt").rename(world / "aside")
    call()
    assert (work / "feature.txt").read_text() == "theirs\n"


@pytest.mark.parametrize("number", [0, 1], ids=["upstream", "pull request"])
def test_rebase_in_progress_is_left_as_it_is(world: Path, calls: list[Call], number: int) -> None:
    work = world / "work"
    git(work, "checkout", "-q", "-b", "other", "HEAD~1")
    commit(work, c="c\n")
    subprocess.run(
        ["git", "-C", str(work), "rebase", "-q", "--exec", "false", "main"], check=False, capture_output=True
    )
    before = git(work, "rev-parse", "HEAD"), git(work, "branch", "-v"), (work / ".git/rebase-merge").exists()
    assert before[2] and _code(calls[number]) == "git-failed"
    assert (git(work, "rev-parse", "HEAD"), git(work, "branch", "-v"), (work / ".git/rebase-merge").exists()) == before


@pytest.mark.parametrize("number", [0, 1], ids=["upstream", "pull request"])
def test_call_that_was_killed_after_the_switch_is_repeated(world: Path, calls: list[Call], number: int) -> None:
    work = world / "work"
    name = ("sync/upstream-main", "merge/pr-7")[number]
    git(work, "switch", "-q", "--no-track", "-c", name, "origin/main")
    calls[number]()
    assert git(work, "symbolic-ref", "--short", "HEAD") == name and (work / "feature.txt").exists()


@pytest.mark.parametrize(("head", "is_same"), [("right", True), ("0" * 40, False), ("", None)])
def test_a_clone_from_a_proxy_is_compared_with_the_repository(
    head: str, is_same: bool | None, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = git(world / "upstream", "rev-parse", "HEAD")
    asked: list[list[str]] = []

    def start_git(argv: list[str], seconds: float) -> Finished:
        asked.append(argv)
        named = commits if head == "right" else head
        return Finished(tuple(argv), 0, f"{named}\tHEAD\n" if named else "", "")

    url = "https://127.0.0.1:9/repo.git"
    monkeypatch.setattr(cloning, "start_git", start_git)
    monkeypatch.setattr(cloning, "proxied", lambda *_: str(world / "upstream"))
    assert clone(url, world / "got", proxies=["https://proxy.example"]) == (str(world / "upstream"), is_same)
    assert asked == [["git", *GIVE_UP_SLOW, "ls-remote", "--", url, "HEAD"]]
    assert git(world / "got", "remote", "get-url", "origin") == url
