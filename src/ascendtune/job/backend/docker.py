"""`docker run`, as a script: one container per node, the same script on each node."""

from __future__ import annotations

import csv
import io
import shlex
from pathlib import Path

from ascendtune.job.backend.submission import Submission, in_container
from ascendtune.job.backend.template import Code, fill_script


def write(submission: Submission, root: Path = Path("/")) -> str:
    """The script that starts the container and returns.

    No scheduler assigns node ranks here: the user sets them in the environment.

    Args:
        root: root of the paths at which the host's files are looked up.
    """
    needs = submission.needs
    devices = ",".join(submission.device_ids)
    values = {
        **submission.values,
        "written": Code(shlex.join(str(mount.path) for mount in submission.mounts if mount.writable)),
        "gpus": [_csv(f"device={devices}")] if needs.docker_driver else [],
        "device_files": needs.device_files(needs.file_numbers(submission.device_ids, root)),
        "ulimits": [f"{name}={limit}" for name, limit in needs.ulimits.items()],
        "mounts": [
            *(_mount(path, writable=False) for path in needs.mounts(root)),
            *(_mount(str(mount.path), writable=mount.writable) for mount in submission.mounts),
        ],
        "variables": [f"{name}={value}" for name, value in submission.variables.items()],
        "inherited": submission.inherited,
        "command": Code(shlex.join(in_container(submission, {}))),
    }
    return fill_script("docker.sh", values)


def _mount(path: str, *, writable: bool) -> str:
    return _csv("type=bind", f"source={path}", f"target={path}", *(() if writable else ("readonly",)))


def _csv(*fields: str) -> str:
    """One record of comma-separated values (RFC 4180), as Docker parses them."""
    record = io.StringIO()
    csv.writer(record, lineterminator="").writerow(fields)
    return record.getvalue()
