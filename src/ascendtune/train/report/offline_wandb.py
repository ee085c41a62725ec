"""wandb's offline runs on this machine: finds new, unfinished, damaged and uploaded ones, and uploads them.

wandb leaves `run-ID.wandb.synced` beside an uploaded run.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ascendtune.core.errors import MachineError, translated_disk_errors
from ascendtune.core.files import open_regular, require_writable
from ascendtune.core.mask import without_secrets
from ascendtune.core.process import run
from ascendtune.train.report.wandb_file import HEADER, is_exit, messages
from ascendtune.train.report.wandb_upload import ANSWER, IN_USE, NOT_INSTALLED

State = Literal["new", "in_flight", "damaged", "uploaded"]

_ACTIVE_SECONDS = 300.0
"""wandb writes system metrics every 15 s: a file that has not changed for so long is not being written."""
_MOST_BYTES = 2 << 30
"""Larger files are not inspected."""
_UPLOAD_SECONDS = 6 * 3600.0
_FAILURE = re.compile(r"(\x1b\[\d*m)*wandb(\x1b\[\d*m)*: (\x1b\[\d*m)*ERROR\b")
"""Beginning of a line in which the client reports a failure. Runs and directories may contain its words, too."""
_TELLING = {"WANDB_SILENT": "false", "WANDB_QUIET": "false"}
_RETRIES = {
    f"WANDB_X_{kind}_RETRY_{name}": value
    for kind in ("FILE_STREAM", "FILE_TRANSFER", "GRAPHQL")
    for name, value in (("MAX", "8"), ("WAIT_MAX_SECONDS", "15"))
}
"""A server that is down is reported within two minutes; by default the client tries for hours."""


@dataclass(frozen=True)
class OfflineRun:
    """An offline run of wandb. `note`: a remark on its state, such as the byte at which a damaged file stops."""

    directory: Path
    run_id: str
    state: State
    size_bytes: int
    records: int
    note: str | None = None


def find_offline_runs(directories: list[Path]) -> list[OfflineRun]:
    """The offline runs at these paths: run directories of wandb, `wandb` directories, or this program's run directories
    that contain one. Sorted by name, which begins with the time.
    """
    paths = set[Path]()
    for directory in directories:
        for pattern in ("run-*.wandb", "offline-run-*/run-*.wandb", "wandb/offline-run-*/run-*.wandb"):
            paths |= {path for path in directory.glob(pattern) if not path.parent.is_symlink()}
    return [_inspected(path) for path in sorted(paths)]


@dataclass(frozen=True)
class Uploaded:
    """A completed upload. `arrived`: rows of the file that the server had before; None: the server's newest rows are
    not of this file.
    """

    rows: int
    arrived: int | None


def upload(offline_run: OfflineRun, env: Mapping[str, str], *, project: str | None = None) -> Uploaded:
    """Upload the rows of a run that the server does not have, by wandb's own client. The run keeps its id.

    The client is ended with this process.

    Args:
        project: used instead of the project that the run was recorded for.

    Raises:
        MachineError: the directory is not writable, wandb is not installed, another process is uploading the run, or
            the upload failed.
    """
    file = offline_run.directory.absolute() / f"run-{offline_run.run_id}.wandb"
    marker = file.with_name(f"{file.name}.synced")
    # Without the mark beside it the run would be uploaded again each time.
    require_writable(offline_run.directory)
    # -P: the working directory may contain a wandb.py, which must not be run.
    argv = [sys.executable, "-P", "-m", "ascendtune.train.report.wandb_upload", str(os.getpid()), str(file)]
    argv += [project] if project else []
    done = run(argv, timeout_seconds=_UPLOAD_SECONDS, env={**_RETRIES, **env, **_TELLING})
    lines = [line for line in f"{done.output}\n{done.error}".splitlines() if line.strip()]
    failures = [line for line in lines if _FAILURE.match(line)]
    answers = [line.removeprefix(ANSWER) for line in done.output.splitlines() if line.startswith(ANSWER)]
    if done.exit_code == 0 and not failures and answers and _is_uploaded(file):
        return Uploaded(**json.loads(answers[-1]))
    if done.exit_code == NOT_INSTALLED:
        raise MachineError("wandb is not installed", code="package-missing", remedy="pip install 'ascendtune[wandb]'")
    if done.exit_code == IN_USE:
        raise MachineError(
            "another process is uploading this run",
            code="run-in-use",
            remedy="wait until it has ended",
            where=offline_run.directory,
        )
    # The client writes its mark and exits with 0 even if the server refused the rows (0.31).
    with translated_disk_errors(marker, "removing the mark of an upload that failed"):
        marker.unlink(missing_ok=True)
    message = without_secrets(" ".join(dict.fromkeys(failures or lines[-1:])))
    raise MachineError(
        f"{offline_run.directory.name} was not uploaded: {message[:400]}",
        code="upload-failed",
        remedy="check the network and `ascendtune track login`, then run this again: uploaded runs are skipped",
        where=offline_run.directory,
    )


def _is_uploaded(path: Path) -> bool:
    """Whether wandb's mark is beside the file and not older than it."""
    try:
        return path.with_name(f"{path.name}.synced").stat().st_mtime >= path.stat().st_mtime
    except OSError:
        return False


def _inspected(path: Path) -> OfflineRun:
    run_id = path.name[len("run-") : -len(".wandb")]
    try:
        with open_regular(path, follow_links=False) as file:
            facts = path.stat()
            if facts.st_size > _MOST_BYTES:
                return OfflineRun(path.parent, run_id, "damaged", facts.st_size, 0, f"over {_MOST_BYTES >> 30} GiB")
            content = file.read(facts.st_size)
    except (OSError, MachineError) as error:
        return OfflineRun(path.parent, run_id, "damaged", 0, 0, f"cannot be read: {error}")
    count, ended, end, damage = 0, False, len(HEADER), None
    if not content.startswith(HEADER):
        damage = "not a file of wandb" if content else "empty"
    else:
        for message, position in messages(content):
            if message is None:
                damage = f"damaged at byte {position:,}"
                break
            count, end = count + 1, position
            ended = ended or is_exit(message)
    size, is_old = len(content), time.time() - facts.st_mtime > _ACTIVE_SECONDS
    if _is_uploaded(path):
        return OfflineRun(path.parent, run_id, "uploaded", size, count)
    if damage is not None:
        return OfflineRun(path.parent, run_id, "damaged", size, count, damage)
    if ended:
        return OfflineRun(path.parent, run_id, "new", size, count)
    if not is_old:
        return OfflineRun(path.parent, run_id, "in_flight", size, count, "it may still be written")
    if count == 0:
        return OfflineRun(path.parent, run_id, "damaged", size, count, "nothing was recorded")
    return OfflineRun(path.parent, run_id, "new", size, count, f"killed: it ends without an exit, at byte {end:,}")
