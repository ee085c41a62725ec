"""Jobs on two hosts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from ascendtune.core.rundir import RunDir
from cluster import Cluster, until

# Minutes in earnest are moments here: on each host the watcher is one that loses patience soon.
_IMPATIENT = """
import sys
if "ascendtune.job.nodes.agent" in sys.orig_argv:
    from functools import partial
    from ascendtune.job.hang import watcher
    limits = watcher.Limits(least_seconds=3, first_steps_seconds=20)
    watcher.Watcher = partial(watcher.Watcher, limits=limits, look_every_seconds=0.1)
    watcher.StopMethods = partial(watcher.StopMethods, patience_seconds=1)
"""


@pytest.fixture
def impatient(tmp_path: Path) -> Path:
    """For PYTHONPATH."""
    (tmp_path / "sitecustomize.py").write_text(_IMPATIENT)
    return tmp_path


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    run.create("", {}, {})
    return run


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start_nodes(cluster: Cluster) -> Start:
    def start(
        run: RunDir,
        how: str,
        *,
        hosts: str = "nodea,nodeb",
        worker: str = "pretend_worker.py",
        errors: str = "strict",
        variables: Mapping[str, str] = MappingProxyType({}),
        err: Path | None = None,
        **asked: Any,
    ) -> subprocess.Popen[str]:
        job = {
            "argv": [sys.executable, str(Path(__file__).with_name(worker)), str(run), how],
            "run": str(run),
            "hosts": hosts,
            "nproc": 1,
            "max_restarts": 0,
            "min_nodes": None,
            "on_hang": "warn",
            "return_seconds": 0,
            "holds_interrupts": worker == "pretend_worker.py",
            **asked,
        }
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("start_nodes.py")), json.dumps(job)],
            stdout=subprocess.PIPE,
            stderr=err.open("w") if err else subprocess.PIPE,
            text=True,
            errors=errors,
            env={**cluster.environment(), **variables},
        )

    return start


@pytest.fixture
def wait_until() -> Callable[..., None]:
    return until
