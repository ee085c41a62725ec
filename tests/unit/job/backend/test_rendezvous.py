"""The node's rank in the environment in which an engine starts `ascendtune train`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import submissions
from ascendtune.job.backend import kubernetes, slurm
from ascendtune.job.nodes.manual_start import VARIABLES

_LOOK = (sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))")

# What the controllers set in the pod of the second node; sources in the modules of the kinds.
_SET_BY_CONTROLLERS = {
    "job": {"JOB_COMPLETION_INDEX": "1"},
    "volcano": {"VC_TASK_INDEX": "1", "VC_WORKER_HOSTS": "a-worker-0.a,a-worker-1.a", "VC_WORKER_NUM": "2"},
    "pytorchjob": {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a-master-0", "MASTER_PORT": "23456"},
    "trainjob": {
        "PET_NODE_RANK": "1",
        "PET_NNODES": "2",
        "PET_MASTER_ADDR": "a-node-0-0.a",
        "PET_MASTER_PORT": "29400",
    },
}
_NODE_0 = {
    "job": ("ascendtune-alpaca-0.ascendtune-alpaca", "29500"),
    "volcano": ("a-worker-0.a", "29500"),
    "pytorchjob": ("a-master-0", "23456"),
    "trainjob": ("a-node-0-0.a", "29400"),
}


@pytest.mark.parametrize("kind", kubernetes.KINDS)
@pytest.mark.parametrize("nodes", [1, 2])
def test_pods_get_the_rendezvous_variables_of_their_node(kind: str, nodes: int) -> None:
    plain = submissions.in_a_cluster(submissions.submission("npu", nodes))
    text = kubernetes.write(replace(plain, argv=_LOOK), kind, submissions.RECIPE)
    (*_, args) = _values(list(yaml.safe_load_all(text)), "args")
    found = _run(args, _SET_BY_CONTROLLERS[kind])
    if nodes == 1:
        assert "NNODES" not in found
    else:
        assert [found[name] for name in VARIABLES] == ["2", "1", *_NODE_0[kind]]


def test_slurm_tasks_get_the_rendezvous_variables_of_their_node(tmp_path: Path) -> None:
    # The script itself under bash; in place of srun and scontrol, what they do on the second node of two.
    _program(tmp_path, "scontrol", 'test "$3" = "node[7-8]" && printf "node7\\nnode8\\n"')
    _program(tmp_path, "srun", 'while [ "${1#--}" != "$1" ]; do shift; done; SLURM_NODEID=1 exec "$@"')
    script = slurm.write(replace(submissions.submission("cpu", 2, str(tmp_path)), argv=_LOOK))
    given = {
        "SLURM_JOB_NODELIST": "node[7-8]",
        "SLURM_JOB_ID": "30042",
        "SLURM_CPUS_PER_TASK": "2",
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    found = _run(["bash", "-c", script], given)
    assert [found[name] for name in VARIABLES] == ["2", "1", "node7", "20042"]


def _run(argv: list[str], env: dict[str, str]) -> dict[str, str]:
    path = {"PATH": os.environ["PATH"]}
    done = subprocess.run(argv, env={**path, **env}, capture_output=True, text=True, timeout=30, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _values(value: Any, key: str) -> list[Any]:
    """Everything that stands under `key`, however deep."""
    if isinstance(value, dict):
        here = [value[key]] if key in value else []
        return here + [found for inner in value.values() for found in _values(inner, key)]
    return [found for inner in value for found in _values(inner, key)] if isinstance(value, list) else []


def _program(place: Path, name: str, line: str) -> None:
    (place / name).write_text(f"#!/bin/bash\n{line}\n")
    (place / name).chmod(0o755)
