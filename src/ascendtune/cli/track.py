"""`ascendtune track`: sending runs, offline runs of wandb, event files of TensorBoard, and logging in."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ascendtune.cli.messages import notice, print_error, suggest_next, warn
from ascendtune.cli.options import AsJson
from ascendtune.cli.run_names import complete_run, run_named
from ascendtune.cli.terminal import print_json, table
from ascendtune.core.errors import AscendtuneError, CheckFailed, InputError, MachineError, error_to_json
from ascendtune.core.suggest import path_suggestion
from ascendtune.core.units import count_of, format_bytes

if TYPE_CHECKING:
    from ascendtune.core.rundir import RunDir
    from ascendtune.train.report.event_import import ImportedRun
    from ascendtune.train.report.offline_wandb import OfflineRun, Uploaded

_LONGEST_NAME_BYTES = 200


def sync(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN", help="Offline runs, or directories with them (default: here).", show_default=False
        ),
    ] = None,
    project: Annotated[
        str | None, typer.Option(metavar="NAME", help="Project (default: the one each run was recorded for).")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Upload offline runs of wandb; list which are new, in flight, damaged or uploaded.

    \b
    ascendtune track sync
    ascendtune track sync wandb/offline-run-20260101_120000-abcd1234
    ascendtune track sync /data/project --dry-run
    ascendtune track sync --project qwen

    wandb's own client uploads. Run it again after an interruption: uploaded runs are skipped. Runs in flight and
    damaged runs are not uploaded. Exit code 1: a run is damaged, or was not uploaded.
    """  # fmt: skip
    from ascendtune.recipe.sections import PROJECT_NAME
    from ascendtune.train.report.offline_wandb import find_offline_runs

    if project is not None and not re.fullmatch(PROJECT_NAME, project):
        raise InputError(
            f"--project {project!r} is not the name of a project",
            code="invalid-option-value",
            remedy="letters, digits, '_', '-' and '.'",
        )
    places = runs or [Path.cwd()]
    for place in places:
        if not place.is_dir():
            raise _no_directory(place)
    offline_runs = find_offline_runs(places)
    if not offline_runs:
        looked = ", ".join(str(each) for each in places)
        print("[]" if as_json else f"no offline runs of wandb (offline-run-…) below {looked}")
        return
    if not as_json:
        print(_table(offline_runs))
    outcomes = {} if dry_run else _upload([each for each in offline_runs if each.state == "new"], project)
    if as_json:
        print_json([_as_json(each, outcomes.get(each.directory)) for each in offline_runs])
    failed = [name for name in outcomes.values() if name != "uploaded"]
    damaged = [each for each in offline_runs if each.state == "damaged"]
    if failed or damaged:
        raise CheckFailed(
            f"{len(failed)} runs were not uploaded, {len(damaged)} are damaged",
            code="upload-failed",
            remedy="run this again for the first; of a damaged one wandb may upload a part: wandb sync DIRECTORY",
        )


def _upload(runs: list[OfflineRun], project: str | None) -> dict[Path, str]:
    """Upload the runs in this order; returns for each directory `uploaded`, or why it was not."""
    from ascendtune.train.report.offline_wandb import upload

    outcomes: dict[Path, str] = {}
    incomplete = set[str]()
    for each in runs:
        if each.run_id in incomplete:
            # The server would accept the steps of this run, and then none of the earlier one.
            outcomes[each.directory] = "upload-failed"
            warn(f"{each.directory.name} was not uploaded: an earlier part of the same run is not there yet")
            continue
        try:
            done = upload(each, os.environ, project=project)
        except MachineError as error:
            outcomes[each.directory] = error.code
            incomplete.add(each.run_id)
            print_error(error)
            if error.code == "package-missing":
                break
        else:
            outcomes[each.directory] = "uploaded"
            notice(f"uploaded {each.directory.name}{_arrived_before(done)}")
    return outcomes


def _arrived_before(done: Uploaded) -> str:
    if done.arrived is None:
        return "; the server has other rows of this run, and got all rows of this file"
    return (
        f": {done.rows - done.arrived} of {count_of(done.rows, 'row')}, the others were there" if done.arrived else ""
    )


def _table(offline_runs: list[OfflineRun]) -> str:
    rows = [
        [each.directory.name, each.state.replace("_", " "), format_bytes(each.size_bytes), str(each.records),
         each.note or ""]
        for each in offline_runs
    ]  # fmt: skip
    return table(["run", "state", "size", "records", "note"], rows, right=["size", "records"], spare=["note"])


def _as_json(run: OfflineRun, outcome: str | None) -> dict[str, Any]:
    return {
        "run": run.run_id, "directory": str(run.directory), "state": run.state, "size_bytes": run.size_bytes,
        "records": run.records, "note": run.note, "outcome": outcome,
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

    Each directory with event files becomes a run. A repeated import replaces the earlier one. Exit code 1: a file is
    damaged; events before the damage are imported.
    """
    from ascendtune.train.report.event_import import find_event_directories, read_events, write_run

    if not log_directory.is_dir():
        raise _no_directory(log_directory)
    results, damaged = [], 0
    directories = find_event_directories(log_directory)
    for directory, name in zip(directories, _run_names(directories, log_directory), strict=True):
        events = read_events(directory)
        run = write_run(events, to / name)
        _warn_of(events)
        damaged += len(events.damaged)
        results.append(
            {"run": str(run), "from": str(directory), "points": events.points, "steps": len(events.training),
             "damaged": events.damaged, "unfinished": events.unfinished}
        )  # fmt: skip
        if not as_json:
            print(f"{run}: {count_of(events.points, 'point')}, {count_of(len(events.training), 'step')}")
    if as_json:
        print_json(results)
    if damaged:
        raise CheckFailed(
            f"{damaged} event files are damaged",
            code="record-damaged",
            remedy="copy these files again from their source, and import again",
        )
    suggest_next(f"ascendtune runs list {shlex.quote(str(to))}")


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
            # a/b and a-b have the same name, and file systems allow 255 bytes.
            digest = hashlib.sha256("/".join(parts).encode(errors="surrogateescape")).hexdigest()[:8]
            name = f"{name.encode()[:_LONGEST_NAME_BYTES].decode(errors='ignore')}-{digest}"
        names.append(name)
    return names


def _warn_of(events: ImportedRun) -> None:
    for name, offset in events.damaged.items():
        warn(f"{events.source / name} is damaged at byte {offset:,}; events before it were imported")
    for name in events.unfinished:
        notice(f"{events.source / name} ends within a record: it is still being written, or its writer was killed")


def send(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="Run directories, or their names.", show_default=False, autocompletion=complete_run
        ),
    ],
    to: Annotated[
        Literal["wandb", "swanlab", "mlflow", "trackio"],
        typer.Option(metavar="wandb|swanlab|mlflow|trackio", help="Tracker."),
    ],
    project: Annotated[str, typer.Option(metavar="NAME", help="Project, or experiment.")] = "ascendtune",
    host: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Address of a server of your own (default: as the client is set up)."),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Write the client's offline files into the run (wandb, swanlab).")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Send runs to a tracker, from the run directory alone; each step arrives once, however often this is repeated.

    \b
    ascendtune track send runs/alpaca-qwen --to wandb
    ascendtune track send alpaca-qwen llama-dpo --to mlflow --host http://10.0.0.5:5000
    ascendtune track send alpaca-qwen --to wandb --offline

    The tracker's own client sends, with its own log-in. Exit code 3: a run did not arrive; send it again.
    """  # fmt: skip
    from ascendtune.cli.runs import state_of
    from ascendtune.core.rundir import RunDir
    from ascendtune.train.report.sending import send_run
    from ascendtune.train.report.trackers import Destination

    destination = Destination(to, project, host, offline)
    results, faults = list[dict[str, Any]](), list[AscendtuneError]()
    for run in [RunDir.open(run_named(each)) for each in runs]:
        try:
            if host is None and not offline:
                _require_no_host(run)
            with _output_on_stderr():
                count = send_run(run, destination, state_of(run.read()))
        except AscendtuneError as error:
            print_error(error)
            faults.append(error)
            results.append({"run": str(run), "tracker": to, "steps_sent": None, "error": error_to_json(error)})
            continue
        results.append({"run": str(run), "tracker": to, "steps_sent": count, "error": None})
        if not as_json:
            print(f"{run}: {count_of(count, 'step') + ' sent' if count else 'nothing new'}")
    if as_json:
        print_json(results)
    if faults:
        sys.exit(max(each.exit_code for each in faults))
    if offline:
        first = shlex.quote(str(runs[0]))
        suggest_next(f"ascendtune track sync {first}" if to == "wandb" else "swanlab sync DIRECTORY")


def _require_no_host(run: RunDir) -> None:
    """Raise if the run's recipe names a server: the recipe may be another person's, and must not decide where a key
    goes."""
    from ascendtune.core.document import read_document

    named = (read_document(run.recipe).values.get("track") or {}).get("host") if run.recipe.is_file() else None
    if named:
        raise InputError(
            f"the recipe of this run names a server, {named}",
            code="host-not-given",
            remedy=f"give --host {named} to send there",
            where=run.path,
        )


@contextmanager
def _output_on_stderr() -> Iterator[None]:
    """Context in which stdout goes to stderr, also in child processes: clients print, and stdout may be JSON."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def login(
    tracker: Annotated[Literal["wandb", "swanlab"], typer.Argument(metavar="wandb|swanlab", help="Tracker.")] = "wandb",
    host: Annotated[str | None, typer.Option(metavar="URL", help="Address of a server of your own.")] = None,
) -> None:
    """Log in to a tracker: its own client asks for the key and stores it; ascendtune never sees the key.

    \b
    ascendtune track login
    ascendtune track login swanlab
    ascendtune track login --host https://wandb.example.com
    """
    import shutil

    from ascendtune.core.process import replace

    directories = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    program = shutil.which(tracker, path=directories)
    if program is None:
        raise MachineError(
            f"{tracker} is not installed",
            code="package-missing",
            remedy=f"pip install 'ascendtune[{tracker}]'",
        )
    if host and not host.startswith(("https://", "http://")):
        raise InputError("--host is not a URL", code="invalid-option-value", remedy="give https://HOST")
    if not sys.stdin.isatty():
        raise InputError(
            "the key is typed on a terminal, and stdin is not one",
            code="confirmation-needed",
            remedy=f"set {tracker.upper()}_API_KEY in the job's environment instead",
        )
    replace([program, "login", "--relogin", *(["--host", host] if host else [])], os.environ)


def _no_directory(path: Path) -> InputError:
    if path.exists():
        return InputError("not a directory", code="path-missing", remedy="give its directory", where=path)
    usual = "check the path"
    return InputError("no such directory", code="path-missing", remedy=path_suggestion(path, usual), where=path)
