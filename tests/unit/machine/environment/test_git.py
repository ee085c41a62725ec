"""Clones and merges in real repositories."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from ascendtune.core.errors import AscendtuneError
from ascendtune.machine.environment.checkout import GitCheckout, MergeConflicts
from ascendtune.machine.environment.clone import clone
from ascendtune.machine.environment.git import checked_url, last_line, start_git_with_progress
from git_helpers import commit, git
from loopback import serving_on_loopback


def _tree(place: Path) -> tuple[str, str, str]:
    return git(place, "status", "--porcelain"), git(place, "rev-parse", "HEAD"), git(place, "branch", "-v")


def test_upstream_is_merged_on_a_branch_of_its_own_and_main_stays(world: Path) -> None:
    work = world / "work"
    main = git(work, "rev-parse", "main")
    news = commit(world / "upstream", c="new\n")
    merged = GitCheckout.find(work).sync_upstream(str(world / "upstream"))
    assert (merged.branch, merged.previous_checkout, merged.commits) == ("sync/upstream-main", "main", 1)
    assert git(work, "rev-parse", "main") == main and git(work, "remote", "get-url", "upstream")
    assert git(work, "merge-base", "--is-ancestor", news, "HEAD") == ""
    assert git(world / "origin", "rev-parse", "main") == main, "nothing is pushed"
    assert GitCheckout.find(work).sync_upstream().commits == 0


def test_conflicts_are_listed_and_the_same_call_continues(world: Path) -> None:
    work = world / "work"
    commit(work, a="one\nours\nthree\n", b="ours\n")
    git(work, "push", "-q", "origin", "main")
    commit(world / "upstream", a="one\ntheirs\nthree\n")
    (world / "upstream/b.txt").unlink()
    git(world / "upstream", "commit", "-qam", "without b")
    repository = GitCheckout.find(work)
    for _ in range(2):
        with pytest.raises(MergeConflicts) as caught:
            repository.sync_upstream(str(world / "upstream"))
        assert caught.value.code == "merge-conflicts"
        found = {each.path: each for each in caught.value.conflicts}
        assert found["b.txt"].kind == "changed here, deleted there" and found["b.txt"].hunks == ()
        (hunk,) = found["a.txt"].hunks
        assert (hunk.line, hunk.ours, hunk.theirs) == (2, ("ours",), ("theirs",))
    git(work, "add", "-A")
    with pytest.raises(AscendtuneError) as refused:
        repository.sync_upstream()
    assert refused.value.code == "merge-markers-left"
    (work / "a.txt").write_text("one\nboth\nthree\n")
    git(work, "add", "a.txt")
    assert repository.sync_upstream().commits == 2
    assert git(work, "status", "--porcelain") == "" and (work / "a.txt").read_text() == "one\nboth\nthree\n"


def test_abort_returns_to_the_commit_before(world: Path) -> None:
    work = world / "work"
    commit(work, a="ours\n")
    git(work, "push", "-q", "origin", "main")
    git(work, "checkout", "-q", "--detach")
    at = git(work, "rev-parse", "HEAD")
    commit(world / "upstream", a="theirs\n")
    with pytest.raises(MergeConflicts):
        GitCheckout.find(work).sync_upstream(str(world / "upstream"))
    GitCheckout.find(work).abort()
    assert git(work, "rev-parse", "HEAD") == at and git(work, "status", "--porcelain") == ""
    with pytest.raises(AscendtuneError) as caught:
        GitCheckout.find(work).abort()
    assert caught.value.code == "nothing-to-merge"


@pytest.mark.parametrize("kind", ["changed", "staged", "merging"])
def test_tree_with_changes_is_left_as_it_is(world: Path, kind: str) -> None:
    work = world / "work"
    if kind == "merging":
        git(work, "branch", "other", "HEAD~1")
        commit(work, a="x\n")
        git(work, "checkout", "-q", "other")
        commit(work, a="y\n")
        subprocess.run(["git", "-C", str(work), "merge", "main"], check=False, capture_output=True)
    else:
        (work / "a.txt").write_text("precious\n")
        if kind == "staged":
            git(work, "add", "a.txt")
    before = _tree(work)
    for call in (
        partial(GitCheckout.find(work).sync_upstream, str(world / "upstream")),
        partial(GitCheckout.find(work).merge_pull_request, 1),
    ):
        with pytest.raises(AscendtuneError) as caught:
            call()
        assert caught.value.code == "tree-not-clean"
    assert _tree(work) == before


def test_detached_head_is_named_and_can_be_returned_to(world: Path) -> None:
    work = world / "work"
    git(work, "checkout", "-q", "--detach", "HEAD~1")
    commit(world / "upstream", c="new\n")
    merged = GitCheckout.find(work).sync_upstream(str(world / "upstream"))
    assert merged.previous_checkout == git(work, "rev-parse", "--short", "main~1") and merged.commits == 1


def test_upstream_whose_address_was_wrong_can_be_given_again(world: Path) -> None:
    work = world / "work"
    config = (work / ".git/config").read_bytes()
    with pytest.raises(AscendtuneError) as caught:
        GitCheckout.find(work).sync_upstream(str(world / "upstraem"))
    assert caught.value.code == "hub-unreachable" and (work / ".git/config").read_bytes() == config
    (work / "a.txt").write_text("dirty\n")
    with pytest.raises(AscendtuneError):
        GitCheckout.find(work).sync_upstream(str(world / "upstream"))
    assert (work / ".git/config").read_bytes() == config
    git(work, "checkout", "-q", ".")
    assert GitCheckout.find(work).sync_upstream(str(world / "upstream")).commits == 0


def test_remote_that_cannot_be_reached_is_not_said_to_lack_a_pull_request(world: Path) -> None:
    work = world / "work"
    git(work, "remote", "set-url", "origin", str(world / "nowhere"))
    with pytest.raises(AscendtuneError) as caught:
        GitCheckout.find(work).merge_pull_request(7)
    assert caught.value.code == "hub-unreachable"


@pytest.mark.parametrize("ref", ["refs/pull/7/head", "refs/merge-requests/7/head"])
def test_pull_request_is_merged_on_a_branch_of_its_own(world: Path, ref: str) -> None:
    work, origin = world / "work", world / "origin"
    git(work, "checkout", "-q", "-b", "feature")
    head = commit(work, feature="f\n")
    git(work, "push", "-q", "origin", f"HEAD:{ref}")
    git(work, "checkout", "-q", "main")
    git(work, "branch", "-D", "feature")
    merged = GitCheckout.find(work).merge_pull_request(7)
    assert (merged.branch, merged.previous_checkout, merged.commits) == ("merge/pr-7", "main", 1)
    assert git(work, "rev-parse", "HEAD^2") == head
    assert GitCheckout.find(work).merge_pull_request(7).commits == 0
    git(work, "checkout", "-q", "main")
    assert GitCheckout.find(work).merge_pull_request(7).previous_checkout == "main"
    assert "merge/pr-7" not in git(origin, "branch")
    with pytest.raises(AscendtuneError) as caught:
        GitCheckout.find(work).merge_pull_request(8)
    assert caught.value.code == "hub-revision-missing"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({}, "option-missing"),
        ({"upstream": "nowhere"}, "unknown-name"),
        ({"upstream": "ext::sh -c x/y"}, "invalid-value"),
        ({"upstream": "origin", "branch": "--exec=x"}, "invalid-value"),
        ({"upstream": "origin", "branch": "absent"}, "unknown-name"),
        ({"upstream": "https://127.0.0.1:9/x.git"}, "hub-unreachable"),
    ],
)
def test_wrong_names_are_told_and_nothing_is_changed(world: Path, words: dict[str, str], code: str) -> None:
    before = _tree(world / "work")
    with pytest.raises(AscendtuneError) as caught:
        GitCheckout.find(world / "work").sync_upstream(**words)
    assert caught.value.code == code and _tree(world / "work") == before


def test_directory_without_a_checkout_is_told(tmp_path: Path) -> None:
    with pytest.raises(AscendtuneError) as caught:
        GitCheckout.find(tmp_path)
    assert caught.value.code == "not-a-git-checkout"


@pytest.mark.parametrize(
    "url",
    [
        "--upload-pack=touch x", "-u", "ext::sh -c 'touch x'", "fd::3", "https://", "ssh://-oProxyCommand=x/y",
        "git@-oProxyCommand=x:y", "-oProxyCommand=x@y:z", "relative/path", "https://a b", "ftp://x/y", "http::https://x",
        "javascript:x", "",
    ],
)  # fmt: skip
def test_address_that_is_an_option_or_a_helper_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(AscendtuneError) as caught:
        clone(url, tmp_path / "x")
    assert caught.value.code == "invalid-value" and not (tmp_path / "x").exists()


def test_usual_addresses_are_taken() -> None:
    for url in ("https://github.com/a/b.git", "git@github.com:a/b.git", "ssh://git@h:22/a", "/srv/a", "file:///srv/a"):
        assert checked_url(url) == url


class _Behind(SimpleHTTPRequestHandler):
    """Serves DIRECTORY/NAME.git for /https://HOST/NAME.git, as a proxy of whole addresses does."""

    def translate_path(self, path: str) -> str:
        return super().translate_path("/" + path.partition("127.0.0.1:9/")[2])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def proxy(world: Path) -> Iterator[str]:
    git(world, "clone", "-q", "--bare", "upstream", "repo.git")
    git(world / "repo.git", "update-server-info")
    with serving_on_loopback(partial(_Behind, directory=str(world))) as endpoint:
        yield endpoint


def test_clone_falls_back_through_proxies_and_origin_is_the_repository(world: Path, proxy: str) -> None:
    url = "https://127.0.0.1:9/repo.git"
    address, is_same = clone(url, world / "got", proxies=["http://127.0.0.1:9", proxy])
    assert address == f"{proxy}/{url}" and is_same is None, "the repository itself does not answer"
    assert git(world / "got", "remote", "get-url", "origin") == url
    assert git(world / "got", "rev-parse", "HEAD") == git(world / "upstream", "rev-parse", "HEAD")
    with pytest.raises(AscendtuneError) as caught:
        clone(url, world / "got")
    assert caught.value.code == "path-exists"
    with pytest.raises(AscendtuneError) as caught:
        clone(url, world / "none")
    assert caught.value.code == "hub-unreachable" and not (world / "none").exists()
    assert caught.value.remedy == "check the address, or try a proxy: --proxy or --via URL"
    with pytest.raises(AscendtuneError) as caught:
        clone(url, world / "none", proxies=["http://127.0.0.1:9"])
    assert caught.value.remedy == "check the address, or try another proxy: --via URL"
    assert "no proxy was tried" not in caught.value.what


def test_progress_of_git_is_passed_on_while_it_runs(tmp_path: Path) -> None:
    seen = list[tuple[str, int, int]]()

    def progress(phase: str, done: int, total: int) -> None:
        seen.append((phase, done, total))
        (tmp_path / "seen").touch()

    script = (
        "printf 'Receiving objects:  50%% (5/10)\\r' >&2; until [ -e \"$1\" ]; do sleep 0.05; done; echo fatal: x >&2"
    )
    done = start_git_with_progress(["sh", "-c", f"{script}; exit 3", "sh", str(tmp_path / "seen")], 60, progress)
    assert seen[0] == ("receiving objects", 5, 10)
    assert (done.exit_code, done.timed_out, last_line(done)) == (3, False, "fatal: x")


def test_git_that_does_not_end_in_time_is_ended() -> None:
    done = start_git_with_progress(["sleep", "600"], 0.1, lambda *_: None)
    assert (done.exit_code, done.timed_out) == (124, True)


def test_clone_of_a_path_needs_no_proxy(world: Path) -> None:
    assert clone(str(world / "upstream"), world / "got") == (str(world / "upstream"), True)


def test_password_in_an_address_reaches_no_proxy(world: Path) -> None:
    asked = list[str]()

    class Recording(_Behind):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    with serving_on_loopback(Recording) as endpoint, pytest.raises(AscendtuneError) as caught:
        clone("https://me:sekret@127.0.0.1:9/repo.git", world / "got", proxies=[endpoint])
    assert asked == [] and caught.value.code == "hub-unreachable"
    assert "sekret" not in str(caught.value) and "neither a user name nor a password" in caught.value.what
    assert caught.value.remedy == (
        "check the address; to use a proxy, give the https address without user name and password"
    )


def test_tags_named_like_branches_do_not_change_what_is_merged(world: Path) -> None:
    work = world / "work"
    for name in ("origin/main", "upstream/main", "sync/upstream-main", "main"):
        git(work, "tag", name, "HEAD~1")
    news = commit(world / "upstream", c="new\n")
    merged = GitCheckout.find(work).sync_upstream(str(world / "upstream"))
    assert (merged.branch, merged.previous_checkout, merged.commits) == ("sync/upstream-main", "main", 1)
    assert git(work, "merge-base", "--is-ancestor", news, "HEAD") == "" and (work / "mine.txt").exists()
    assert GitCheckout.find(work).sync_upstream().commits == 0


def test_hooks_that_a_pull_request_brings_do_not_run(world: Path) -> None:
    work = world / "work"
    git(work, "config", "core.hooksPath", "hooks")
    (world / "upstream/hooks").mkdir()
    for name in ("post-merge", "post-checkout", "commit-msg"):
        hook = world / "upstream/hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch {world}/ran\n")
        hook.chmod(0o755)
    commit(world / "upstream", c="new\n")
    git(world / "upstream", "update-ref", "refs/pull/7/head", "HEAD")
    git(work, "remote", "add", "upstream", str(world / "upstream"))
    assert GitCheckout.find(work).merge_pull_request(7).commits == 1
    assert (work / "hooks/post-merge").exists() and not (world / "ran").exists()


def test_variables_of_another_repository_are_ignored(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(world / "upstream", c="new\n")
    before = git(world / "upstream", "branch", "-v")
    monkeypatch.setenv("GIT_DIR", str(world / "upstream/.git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(world / "upstream"))
    repository = GitCheckout.find(world / "work")
    assert repository.directory == world / "work"
    assert repository.sync_upstream(str(world / "upstream")).commits == 1
    monkeypatch.undo()
    assert git(world / "upstream", "branch", "-v") == before


def test_base_of_a_diff3_conflict_is_not_shown_as_ours(world: Path) -> None:
    work = world / "work"
    git(work, "config", "merge.conflictStyle", "diff3")
    commit(work, a="one\nours\nthree\n")
    git(work, "push", "-q", "origin", "main")
    commit(world / "upstream", a="one\ntheirs\nthree\n")
    with pytest.raises(MergeConflicts) as caught:
        GitCheckout.find(work).sync_upstream(str(world / "upstream"))
    (hunk,) = caught.value.conflicts[0].hunks
    assert (hunk.ours, hunk.theirs) == (("ours",), ("theirs",))


def test_lock_of_a_killed_git_is_named_with_its_remedy(world: Path) -> None:
    commit(world / "upstream", c="new\n")
    lock = world / "work/.git/index.lock"
    lock.touch()
    for _ in range(2):
        with pytest.raises(AscendtuneError) as caught:
            GitCheckout.find(world / "work").sync_upstream(str(world / "upstream"))
        assert caught.value.code == "git-failed" and "remove that file" in str(caught.value.remedy)
    lock.unlink()
    assert GitCheckout.find(world / "work").sync_upstream().commits == 1
