"""Uploads one offline run of wandb by wandb's own client, without the rows that the server has.

    python -m ascendtune.train.report.wandb_upload PARENT_PID FILE [PROJECT]

The client (0.31) sends all rows of a file, after those that the server has. So the server is queried first; if it has
some rows of this file, the client gets a copy without them. The output line that begins with ANSWER has the fields of
`Uploaded` as JSON. The process ends with its parent, and so does wandb's core process, which sends.
"""

from __future__ import annotations

import importlib
import json
import runpy
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ascendtune.core.end_with_parent import end_with_parent
from ascendtune.core.files import open_regular
from ascendtune.core.locks import try_lock
from ascendtune.train.report.wandb_file import count_arrived, destination, rows, without_rows

NOT_INSTALLED, IN_USE = 80, 81
"""Exit codes."""
ANSWER = "ascendtune: uploaded "
"""wandb may print lines before it and, when the interpreter exits, after it."""
_ANSWER_SECONDS = 30
_COPY = ".ascendtune-rest-"
"""Prefix of a directory in the run's directory, with the copy for the client."""


def main(arguments: list[str]) -> int:
    """Upload the run; return the client's exit code, or one of those above."""
    parent, name, *project = arguments
    end_with_parent(int(parent))
    file = Path(name)
    # Some network file systems lock only files that are open for writing.
    with file.open("r+b") as locked:
        if not try_lock(locked.fileno(), file):
            return IN_USE
        return _upload(file, project[0] if project else None)


def _upload(file: Path, project: str | None) -> int:
    try:
        wandb: Any = importlib.import_module("wandb")
    except ModuleNotFoundError:
        return NOT_INSTALLED
    _remove_copies(file.parent)
    with open_regular(file, follow_links=False) as opened:
        content = opened.read()
    file_rows = rows(content)
    arrived = _count_arrived(wandb, file, content, project)
    arguments = ["sync", "--include-online", "--include-synced", *([f"--project={project}"] if project else [])]
    if not arrived:
        code = _run_client([*arguments, str(file)])
    else:
        with _copy_of(file, without_rows(content, arrived)) as copy:
            code = _run_client([*arguments, str(copy)])
            if copy.with_name(f"{file.name}.synced").exists():
                file.with_name(f"{file.name}.synced").touch()
    sys.stderr.flush()
    sys.stdout.write(f"\n{ANSWER}{json.dumps({'rows': len(file_rows), 'arrived': arrived})}\n")
    return code


def _count_arrived(wandb: Any, file: Path, content: bytes, project: str | None) -> int | None:
    """Number of the file's rows that the server has, None if its newest are not from this file."""
    entity, recorded_project = destination(content)
    public: Any = importlib.import_module("wandb.apis.public")
    api = wandb.Api(timeout=_ANSWER_SECONDS)
    run_id = file.name[len("run-") : -len(".wandb")]
    path = f"{entity or api.default_entity}/{project or recorded_project or 'uncategorized'}/{run_id}"
    try:
        run = api.run(path)
    except Exception as error:
        # The client wraps it in another error.
        if not isinstance(getattr(error, "exc", error), public.RunNotFoundError):
            raise
        return 0
    summary, last_step = dict(run.summary_metrics), run.lastHistoryStep
    if last_step < 0:
        return 0
    step, time = summary.get("_step"), summary.get("_timestamp")
    if not isinstance(step, int | float) or not isinstance(time, int | float):
        return None
    return count_arrived(rows(content), summary_step=int(step), summary_time=time, last_step=last_step)


@contextmanager
def _copy_of(file: Path, content: bytes) -> Iterator[Path]:
    """Context with other content of a run's file, beside links to all other files of its directory."""
    with tempfile.TemporaryDirectory(prefix=_COPY, dir=file.parent) as directory:
        for each in file.parent.iterdir():
            if not each.name.startswith((file.name, _COPY)):
                Path(directory, each.name).symlink_to(each)
        state = file.with_name(f"{file.name}.syncstate")
        if state.is_file() and not state.is_symlink():
            # The first step of the client, for a run that was resumed offline.
            shutil.copyfile(state, Path(directory, state.name))
        copy = Path(directory, file.name)
        copy.write_bytes(content)
        yield copy


def _remove_copies(directory: Path) -> None:
    """Remove the directories of uploads that were killed. The caller has the lock."""
    for each in directory.glob(f"{_COPY}*"):
        if not each.is_symlink():
            shutil.rmtree(each, ignore_errors=True)


def _run_client(arguments: list[str]) -> int:
    """Run wandb's command line in this process; return its exit code."""
    sys.argv = ["wandb", *arguments]
    try:
        runpy.run_module("wandb", run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
            return 1
        return ended.code or 0
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.exit(code)
