"""`ascendtune code` over real repositories, from the command line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ascendtune.cli import main as command_line


def main(*words: str) -> object:
    """The exit code of the command line."""
    with pytest.raises(SystemExit) as left:
        command_line.main(["code", *words])
    return left.value.code


def git(place: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(place), *words], check=True, capture_output=True, text=True).stdout.strip()


def commit(place: Path, name: str, content: str) -> None:
    (place / name).write_text(content)
    git(place, "add", "-A")
    git(place, "commit", "-qm", name)


def test_fork_follows_upstream_and_a_pull_request_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "a@example.org")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "upstream").mkdir()
    git(tmp_path / "upstream", "init", "-q", "-b", "main")
    commit(tmp_path / "upstream", "train.py", "lr = 1\n")
    git(tmp_path, "clone", "-q", "--bare", "upstream", "fork.git")

    assert main("clone", "--upload-pack=x") == 2
    assert main("clone", "ext::sh") == 2 and "invalid-value" in capfd.readouterr().err
    assert main("clone", str(tmp_path / "fork.git")) == 0
    work = tmp_path / "fork"
    assert "fork: cloned from" in capfd.readouterr().out

    commit(work, "train.py", "lr = 2\n")
    git(work, "push", "-q", "origin", "main")
    commit(tmp_path / "upstream", "train.py", "lr = 3\n\x1b[31m\n")
    upstream = ("sync-upstream", "--repo", "fork", "--upstream", str(tmp_path / "upstream"))
    assert main(*upstream) == 1
    shown = capfd.readouterr()
    assert "train.py: both changed it\n  line 1\n    - lr = 2\n    + lr = 3\n" in shown.out
    assert "merge-conflicts" in shown.err and "1 file is in conflict: train.py" in shown.err and "\x1b" not in shown.out
    (work / "train.py").write_text("lr = 2.5\n")
    assert main(*upstream) == 1
    assert "train.py: both changed it\n  has no conflict markers (any more): git add it" in capfd.readouterr().out
    git(work, "add", "train.py")
    assert main(*upstream) == 0
    assert "to publish: git push origin sync/upstream-main:main" in capfd.readouterr().out

    git(work, "push", "-q", "origin", "HEAD:refs/pull/5/head")
    git(work, "checkout", "-q", "main")
    command = ("merge-pr", "5", "--repo", "fork", "--remote", "origin")
    assert main(*command, "--test", "grep -q 2.5 train.py && echo tests ran") == 0
    shown = capfd.readouterr()
    assert "tests ran" in shown.out and "to publish: git push origin merge/pr-5" in shown.out
    assert main(*command, "--test", "exit 3") == 1
    assert "tests-failed" in capfd.readouterr().err
    assert main("merge-pr", "5", "--repo", "fork", "--abort") == 2
    assert git(tmp_path / "fork.git", "branch", "--format=%(refname:short)") == "main", "nothing was pushed"
