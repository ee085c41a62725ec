"""The real pip and git read the files that `ascendtune env mirrors` writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("preloaded")


def test_pip_and_git_follow_the_mirror_and_undo_ends_it(tmp_path: Path) -> None:
    overriding = ("PIP_INDEX_URL", "PIP_CONFIG_FILE", "GIT_CONFIG_GLOBAL", "XDG_CONFIG_HOME", "CONDARC", "HF_ENDPOINT")
    env = {name: value for name, value in os.environ.items() if name not in overriding}
    env |= {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "GIT_CONFIG_NOSYSTEM": "1"}

    def output(*argv: str) -> str:
        done = subprocess.run(argv, env=env, cwd=tmp_path, text=True, capture_output=True, timeout=120, check=False)
        return done.stdout.strip()

    def ascendtune(*words: str) -> str:
        return output(sys.executable, "-m", "ascendtune", "env", *words)

    repository = tmp_path / "repository"
    output("git", "init", str(repository))
    output("git", "-C", str(repository), "remote", "add", "origin", "https://github.com/volcengine/verl.git")
    ascendtune("mirrors", "use", "tuna", "--github-proxy", "https://gh-proxy.com", "--yes")
    assert output(sys.executable, "-m", "pip", "config", "get", "global.index-url") == (
        "https://pypi.tuna.tsinghua.edu.cn/simple"
    )
    address = ["git", "-C", str(repository), "remote", "get-url", "origin"]
    assert output(*address) == "https://gh-proxy.com/https://github.com/volcengine/verl.git"
    assert output(*address, "--push") == "https://github.com/volcengine/verl.git", "pushes go past the proxy"
    ascendtune("mirrors", "undo")
    assert output(*address) == "https://github.com/volcengine/verl.git"
    assert output(sys.executable, "-m", "pip", "config", "get", "global.index-url") == ""
