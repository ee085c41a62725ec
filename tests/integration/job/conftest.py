"""Jobs on two hosts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.rundir import RunDir
from cluster import Cluster, until

_START = """
import json, sys
from pathlib import Path
from ascendtune.cli.complain import complain
from ascendtune.core import log
from ascendtune.core.errors import AscendtuneError
from ascendtune.job.backend.ssh import start
from ascendtune.job.nodes.gather import Wanted
from ascendtune.job.nodes.hosts import hosts_of
from ascendtune.job.spec import JobSpec
log.set_up()
asked = json.loads(sys.argv[1])
spec = JobSpec(tuple(asked["argv"]), Path(asked["run"]), nproc=1, kind="cpu", max_restarts=asked["max_restarts"])
wanted = Wanted(hosts_of(asked["hosts"]), asked["nproc"], asked["min_nodes"], silence_seconds=10)
try:
    result = start(spec, wanted)
except AscendtuneError as error:
    complain(error)
    sys.exit(error.exit_code)
if result.error:
    complain(result.error)
sys.exit(result.exit_code)
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    run.create("", {}, {})
    return run


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start_nodes(cluster: Cluster) -> Start:
    def start(
        run: RunDir, how: str, *, hosts: str = "nodea,nodeb", errors: str = "strict", **asked: Any
    ) -> subprocess.Popen[str]:
        worker = Path(__file__).with_name("pretend_worker.py")
        job = {
            "argv": [sys.executable, str(worker), str(run), how],
            "run": str(run),
            "hosts": hosts,
            "nproc": 1,
            "max_restarts": 0,
            "min_nodes": None,
            **asked,
        }
        return subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(job)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors=errors,
            env=cluster.environment(),
        )

    return start


@pytest.fixture
def wait_until() -> Callable[..., None]:
    return until
