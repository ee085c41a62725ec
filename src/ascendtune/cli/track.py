"""`ascendtune track`: offline runs of wandb, event files of TensorBoard, and logging in."""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ascendtune.cli.complain import complain, notice, suggest_next, warn
from ascendtune.cli.options import AsJson
from ascendtune.core.errors import CheckFailed, InputError, MachineError

if TYPE_CHECKING:
    from ascendtune.train.report.event_import import ImportedRun
    from ascendtune.train.report.offline_wandb import OfflineRun

_LONGEST_NAME_BYTES = 200


def sync(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...", help="Offline runs, or directories with them (default: here).", show_default=False
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Upload offline runs of wandb; list which are new, in flight, damaged or uploaded.

    \b
    ascendtune track sync
    ascendtune track sync wandb/offline-run-20260101_120000-abcd1234
    ascendtune track sync /data/project --dry-run

    wandb's own client uploads. Run it again after an interruption: uploaded runs are passed over. Runs in flight and
    damaged runs are left alone. Exit code 1: a run is damaged, or was not uploaded.
    """  # fmt: skip
    from ascendtune.train.report.offline_wandb import find_offline_runs, upload

    places = runs or [Path.cwd()]
    for place in places:
        if not place.is_dir():
            raise InputError("no such directory", code="path-missing", remedy="check the path", where=place)
    found = find_offline_runs(places)
    outcomes: dict[Path, str] = {}
    if not found:
        print("no offline runs of wandb" if not as_json else "[]")
        return
    if not as_json:
        print(_table(found))
    for each in found:
        if each.state == "new" and not dry_run:
            try:
                upload(each, os.environ)
                outcomes[each.directory] = "uploaded"
                notice(f"uploaded {each.directory.name}")
            except MachineError as error:
                outcomes[each.directory] = error.code
                complain(error)
                if error.code == "package-missing":
                    break
    if as_json:
        print(json.dumps([_as_json(each, outcomes.get(each.directory)) for each in found], indent=2))
    failed = [name for name in outcomes.values() if name != "uploaded"]
    damaged = [each for each in found if each.state == "damaged"]
    if failed or damaged:
        raise CheckFailed(
            f"{len(failed)} runs were not uploaded, {len(damaged)} are damaged",
            code="upload-failed",
            remedy="run this again for the first; of a damaged one wandb may upload a part: wandb sync DIRECTORY",
        )


def _table(found: list[OfflineRun]) -> str:
    from ascendtune.cli.terminal import table
    from ascendtune.core.units import format_bytes

    rows = [
        [each.directory.name, each.state.replace("_", " "), format_bytes(each.size_bytes), str(each.records),
         each.note or ""]
        for each in found
    ]  # fmt: skip
    return table(["run", "state", "size", "records", "note"], rows, right=["size", "records"], spare=["note"])


def _as_json(found: OfflineRun, outcome: str | None) -> dict[str, Any]:
    return {
        "run": found.run_id, "directory": str(found.directory), "state": found.state, "size_bytes": found.size_bytes,
        "records": found.records, "note": found.note, "outcome": outcome,
    }  # fmt: skip


def import_events(
    log_directory: Annotated[Path, typer.Argument(metavar="LOGDIR", help="As for tensorboard --logdir.")],
    to: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the runs.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Import TensorBoard events of any program as runs, for `runs list`, `show` and `compare`.

    \b
    ascendtune track import logs/
    ascendtune track import output/runs --to runs/imported

    Each directory with event files becomes a run. Importing again replaces what was imported from there. Exit code 1: a
    file is damaged; what comes before the damage is imported.
    """
    from ascendtune.core.units import count_of
    from ascendtune.train.report.event_import import find_event_directories, read_events, write_run

    if not log_directory.is_dir():
        raise InputError("no such directory", code="path-missing", remedy="check the path", where=log_directory)
    results, damaged = [], 0
    directories = find_event_directories(log_directory)
    for directory, name in zip(directories, _run_names(directories, log_directory), strict=True):
        found = read_events(directory)
        run = write_run(found, to / name)
        _warn_of(found)
        damaged += len(found.damaged)
        results.append(
            {"run": str(run), "from": str(directory), "points": found.points, "steps": len(found.training),
             "damaged": found.damaged, "unfinished": found.unfinished}
        )  # fmt: skip
        if not as_json:
            print(f"{run}: {count_of(found.points, 'point')}, {count_of(len(found.training), 'step')}")
    if as_json:
        print(json.dumps(results, indent=2, ensure_ascii=False))
    if damaged:
        raise CheckFailed(
            f"{damaged} event files are damaged",
            code="record-damaged",
            remedy="copy these files again from where they were written, and import again",
        )
    suggest_next(f"ascendtune runs list {to}")


def _run_names(directories: list[Path], log_directory: Path) -> list[str]:
    """A name of a run directory for each directory with events, all different."""
    import hashlib

    names = list[str]()
    for directory in directories:
        parts = directory.relative_to(log_directory).parts
        joined = "-".join((log_directory.resolve().name, *parts))
        name = "".join(each if each.isprintable() and not each.isspace() else "_" for each in joined)
        name = name.lstrip(".-") or "imported"
        if name in names or len(name.encode()) > _LONGEST_NAME_BYTES:
            # a/b and a-b have the same name, and file systems take 255 bytes.
            digest = hashlib.sha256("/".join(parts).encode(errors="surrogateescape")).hexdigest()[:8]
            name = f"{name.encode()[:_LONGEST_NAME_BYTES].decode(errors='ignore')}-{digest}"
        names.append(name)
    return names


def _warn_of(found: ImportedRun) -> None:
    for name, offset in found.damaged.items():
        warn(f"{found.source / name} is damaged at byte {offset:,}; what comes before was imported")
    for name in found.unfinished:
        notice(f"{found.source / name} ends within a record: it is still being written, or its writer was killed")


class Tracker(StrEnum):
    """Trackers with a log-in."""

    WANDB = "wandb"
    SWANLAB = "swanlab"


def login(
    tracker: Annotated[Tracker, typer.Argument(metavar="[wandb|swanlab]", help="Tracker.")] = Tracker.WANDB,
    host: Annotated[str | None, typer.Option(metavar="URL", help="Address of a server of your own.")] = None,
) -> None:
    """Log in to a tracker: its own client asks for the key and keeps it; ascendtune never sees the key.

    \b
    ascendtune track login
    ascendtune track login swanlab
    ascendtune track login --host https://wandb.example.com
    """
    import shutil

    from ascendtune.core.process import replace

    directories = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    program = shutil.which(tracker.value, path=directories)
    if program is None:
        raise MachineError(
            f"{tracker.value} is not installed", code="package-missing", remedy="pip install 'ascendtune[track]'"
        )
    if host and not host.startswith(("https://", "http://")):
        raise InputError("--host is not a URL", code="invalid-option-value", remedy="give https://HOST")
    if not sys.stdin.isatty():
        raise InputError(
            "the key is typed on a terminal, and stdin is not one",
            code="confirmation-needed",
            remedy=f"set {tracker.value.upper()}_API_KEY in the job's environment instead",
        )
    replace([program, "login", "--relogin", *(["--host", host] if host else [])], os.environ)
