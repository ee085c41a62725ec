"""Repositories as a contributor has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from git_helpers import commit, git


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`upstream`, a fork `origin` with a commit of its own, and a checkout `work` of the fork."""
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "A")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@example.org")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (tmp_path / "gitconfig").write_text("[init]\n\tdefaultBranch = main\n")
    upstream = tmp_path / "upstream"
    upstream.mkdir()
    git(upstream, "init", "-q")
    commit(upstream, a="one\ntwo\nthree\n", b="b\n")
    git(tmp_path, "clone", "-q", "--bare", str(upstream), "origin")
    git(tmp_path, "clone", "-q", str(tmp_path / "origin"), "work")
    commit(tmp_path / "work", mine="mine\n")
    git(tmp_path / "work", "push", "-q", "origin", "main")
    return tmp_path
