"""Hosts whose login shell prints before the program does."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from ascendtune.check.nodes.query import query_nodes
from ascendtune.job.nodes.cluster_spec import ClusterSpec, TargetHost
from ascendtune.job.nodes.gather import query_hosts

_SSH = """#!/bin/sh
printf '%b' {banner}
for word; do command=$word; done
exec sh -c "$command"
"""
_HOSTS = (TargetHost("node-of-a-test"),)


@pytest.fixture(params=["'Welcome'", "'\\0033]0;node\\0007'", "'{\"a\": 1'", "'Welcome\\n[[]]\\n3\\n'"])
def talkative(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ssh that starts the command on this machine, below a line of a login shell that has no end."""
    (tmp_path / "ssh").write_text(_SSH.format(banner=request.param))
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


@pytest.mark.usefixtures("talkative")
def test_a_job_s_host_is_understood_behind_a_banner() -> None:
    found = query_hosts(ClusterSpec(_HOSTS, nproc=1))
    assert (found.names, found.nproc) == (("node-of-a-test",), (1,))


@pytest.mark.usefixtures("talkative")
def test_the_doctor_s_host_is_understood_behind_a_banner() -> None:
    look = {"env": {}, "directory": str(Path.cwd()), "codes": [], "facts": False, "ports": False, "language": "en"}
    found = query_nodes(_HOSTS, look, limit_seconds=60)
    assert list(found.answers) == ["node-of-a-test"], json.dumps(found.silent, default=str)
