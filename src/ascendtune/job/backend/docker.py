"""`docker run`, as a script: one container per node, the same script on each."""

from __future__ import annotations

import csv
import io
import shlex
from pathlib import Path

from ascendtune.job.backend.submission import (
    GRACE_SECONDS,
    HEADER,
    MASTER_PORT,
    SHARED_MEMORY_GIB,
    Submission,
    in_container,
)

BY_HAND = {
    "NODE_RANK": "${NODE_RANK:?0, 1, …}",
    "MASTER_ADDR": "${MASTER_ADDR:?the address of node 0}",
    "MASTER_PORT": f"${{MASTER_PORT:-{MASTER_PORT}}}",
}
"""No scheduler assigns node ranks here: the user does, in the environment."""


def write(submission: Submission, root: Path = Path("/")) -> str:
    """The script that starts the container and returns.

    Args:
        root: where the host's files are looked for.
    """
    lines = ["#!/usr/bin/env bash", f"# {HEADER}: {submission.places}."]
    if submission.nodes > 1:
        lines += [
            "# On every node, with the same files at the same places:",
            f"#   NODE_RANK=0 MASTER_ADDR=<address of node 0> bash {submission.name}.docker.sh",
        ]
    lines += [f"# Follow: docker logs -f {submission.name}   Stop with a checkpoint: docker stop {submission.name}"]
    lines += ["# The same command again resumes.", "set -euo pipefail"]
    if written := [str(mount.path) for mount in submission.mounts if mount.writable]:
        lines += [f"mkdir -p {shlex.join(written)}"]
    lines += [
        "# A container that has ended is in the way of its successor; one that runs is not removed.",
        f"docker rm {submission.name} >/dev/null 2>&1 || true",
        " \\\n  ".join(["exec docker run", *_options(submission, root), shlex.quote(submission.image)])
        + " \\\n  "
        + shlex.join(in_container(submission, {})),
    ]
    return "\n".join(lines) + "\n"


def _options(submission: Submission, root: Path) -> list[str]:
    needs = submission.needs
    options = [
        "--detach",
        f"--name {submission.name}",
        # Collects orphaned processes and passes SIGTERM on; without it the program is process 1, which ignores signals.
        "--init",
        f"--stop-timeout {GRACE_SECONDS}",
        "--security-opt no-new-privileges",
        f"--shm-size {SHARED_MEMORY_GIB}g",
        f"--workdir {shlex.quote(str(submission.directory))}",
    ]
    if submission.nodes > 1:
        options += ["--network host", f"--env NNODES={submission.nodes}"]
        options += [f'--env {name}="{value}"' for name, value in BY_HAND.items()]
    if needs.docker_driver:
        devices = ",".join(submission.device_ids)
        options += [f"--gpus {shlex.quote(_csv(f'device={devices}'))}"]
    options += [f"--device {shlex.quote(path)}" for path in needs.device_files(submission.device_ids)]
    options += [f"--ulimit {name}={limit}" for name, limit in needs.ulimits.items()]
    options += [_mount(path, writable=False) for path in needs.mounts(root)]
    options += [_mount(str(mount.path), writable=mount.writable) for mount in submission.mounts]
    options += [f"--env {shlex.quote(f'{name}={value}')}" for name, value in submission.variables.items()]
    return options + [f"--env {name}" for name in submission.inherited]


def _mount(path: str, *, writable: bool) -> str:
    # Not --volume, which makes an empty directory of a path that is not there.
    fields = ["type=bind", f"source={path}", f"target={path}", *(() if writable else ("readonly",))]
    return f"--mount {shlex.quote(_csv(*fields))}"


def _csv(*fields: str) -> str:
    """One record of comma-separated values (RFC 4180), as Docker reads them."""
    record = io.StringIO()
    csv.writer(record, lineterminator="").writerow(fields)
    return record.getvalue()
