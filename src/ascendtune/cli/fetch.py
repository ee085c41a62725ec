"""`ascendtune fetch`"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ascendtune.cli.messages import suggest_next
from ascendtune.cli.options import AsJson, Quiet
from ascendtune.cli.terminal import print_json
from ascendtune.core.errors import CheckFailed, InputError, MachineError
from ascendtune.core.units import count_of, format_bytes
from ascendtune.hub.modelscope import RepoType

if TYPE_CHECKING:
    from ascendtune.core.progress_bar import ProgressBar
    from ascendtune.hub.snapshot.fetch import Mirrors, SnapshotRequest
    from ascendtune.hub.snapshot.fetch_list import LockFile
    from ascendtune.hub.snapshot.manifest import Manifest

_UNITS = {"K": 1 << 10, "M": 1 << 20}


def fetch(
    kind: Annotated[RepoType | None, typer.Argument(metavar="model|dataset", help="Kind of the repositories.")] = None,
    names: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Names on the hub: OWNER/NAME.")] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", metavar="FILE", help="YAML list of models and data sets.")
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="HUB", help="hf, hf-mirror, modelscope or a URL; repeatable, in this order."),
    ] = None,
    to: Annotated[Path | None, typer.Option(metavar="DIR", help="Directory (default: models/NAME).")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.")] = None,
    include: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Only these files; repeatable.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Not these files; repeatable.")] = None,
    min_speed: Annotated[str, typer.Option(metavar="BYTES/S", help="Try another hub below this speed.")] = "64K",
    verify: Annotated[bool, typer.Option("--verify", help="Only compare the files with their record.")] = False,
    export_script: Annotated[bool, typer.Option("--export-script", help="Print a script with curl instead.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Fetch models and data sets through mirrors; an interrupted fetch continues where it stopped.

    \b
    ascendtune fetch model Qwen/Qwen2.5-0.5B
    ascendtune fetch dataset openai/gsm8k --from hf-mirror --to data/gsm8k
    ascendtune fetch -f supplies.yaml
    ascendtune fetch model Qwen/Qwen2.5-0.5B --verify

    Every file is checked against the hash that the hub lists before it gets its name. Nothing is overwritten. Without
    --from: HF_ENDPOINT if it is set, then huggingface.co, then hf-mirror.com. HF_TOKEN goes to the first two only.
    """
    from ascendtune.core import log
    from ascendtune.core.progress_bar import ProgressBar
    from ascendtune.hub.download import offline_variable
    from ascendtune.hub.snapshot.fetch import Mirrors
    from ascendtune.hub.snapshot.fetch_list import LockFile, read_fetch_list
    from ascendtune.hub.snapshot.hub_client import choose_hubs

    log.set_up(quiet=quiet)
    if not verify and (variable := offline_variable(os.environ)):
        raise MachineError(
            f"{variable} is set, which forbids the network",
            code="hub-offline",
            # Unsetting one of the two variables leaves the other.
            remedy="allow it for this command: HF_HUB_OFFLINE=0 ascendtune fetch …",
        )
    if file is None:
        requests = _requests(kind, names or [], to, revision, tuple(include or ()), tuple(exclude or ()))
    elif kind is not None or to or revision or include or exclude:
        raise InputError(
            "-f cannot be combined with an ID, --to, --revision, --include or --exclude",
            code="conflicting-options",
            remedy="write them into the file",
        )
    else:
        requests = read_fetch_list(file)
    mirrors = Mirrors(choose_hubs(source or [], os.environ))
    if export_script and as_json:
        raise InputError("a script has no JSON", code="conflicting-options", remedy="keep --export-script or --json")
    if export_script:
        for request in requests:
            print(_script(request, mirrors), end="")
        return
    lock = LockFile(file) if file is not None else None
    try:
        with ProgressBar(sys.stderr) as progress:
            results = [
                _verified(each, progress) if verify else _fetched(each, mirrors, min_speed, lock, progress)
                for each in requests
            ]
    except KeyboardInterrupt:
        if not verify:
            log.say("stopped; the same command continues at the last byte")
        raise
    if as_json:
        print_json(results)
    else:
        print("\n".join(_line(each) for each in results))
        if (model := next((each["directory"] for each in results if each["kind"] == "model"), None)) and not verify:
            suggest_next(f"ascendtune init --model {shlex.quote(model)} --data DATA")
    if wrong := [line for each in results for line in each["wrong"]]:
        raise CheckFailed(
            f"{len(wrong)} of the fetched files have changed since they were fetched: {'; '.join(wrong[:5])}",
            code="fetched-files-changed",
            remedy="move these files away and fetch again",
        )


def _requests(
    kind: RepoType | None,
    names: list[str],
    to: Path | None,
    revision: str | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
) -> list[SnapshotRequest]:
    from ascendtune.hub.snapshot.fetch import SnapshotRequest
    from ascendtune.hub.snapshot.fetch_list import checked_id, default_directory
    from ascendtune.hub.snapshot.hub_client import checked_revision

    if kind is None or not names:
        raise InputError(
            "no model or data set is named",
            code="option-missing",
            remedy="use: ascendtune fetch model OWNER/NAME, or fetch dataset OWNER/NAME, or fetch -f supplies.yaml",
        )
    if to is not None and len(names) > 1:
        raise InputError(
            "--to takes a single repository, and several are named",
            code="conflicting-options",
            remedy="give one ID, or a list with -f",
        )
    try:
        checked = [checked_id(name) for name in names]
        revision = checked_revision(revision) if revision else None
    except ValueError as error:
        raise InputError(
            f"not a valid hub id: {' '.join(names)} {revision or ''}".rstrip(),
            code="invalid-hub-id",
            remedy=str(error),
        ) from error
    place = to.expanduser() if to else None
    return [
        SnapshotRequest(name, kind, place or default_directory(name, kind), revision, include, exclude)
        for name in checked
    ]


def _fetched(
    request: SnapshotRequest, mirrors: Mirrors, min_speed: str, lock: LockFile | None, progress: ProgressBar
) -> dict[str, Any]:
    from ascendtune.hub.snapshot.fetch import fetch as fetch_snapshot
    from ascendtune.hub.snapshot.manifest import Manifest

    existing = Manifest.read(request.directory)
    if existing is not None and (existing.name, existing.kind) != (request.name, request.kind):
        raise InputError(
            f"the {existing.kind} {existing.name} was fetched into this directory",
            code="fetch-target-taken",
            remedy="choose another --to",
            where=request.directory,
        )
    pinned = lock.pinned(request) if lock is not None else None
    done = fetch_snapshot(
        request, mirrors, least_speed=_bytes_per_second(min_speed), progress=progress.show, pinned=pinned
    )
    if lock is not None:
        lock.pin(request, done.manifest)
    return {**_facts(request, done.manifest), "arrived_bytes": done.arrived_bytes, "already_here": done.already_here,
            "wrong": []}  # fmt: skip


def _verified(request: SnapshotRequest, progress: ProgressBar) -> dict[str, Any]:
    from ascendtune.hub.snapshot.fetch import verify
    from ascendtune.hub.snapshot.manifest import Manifest

    manifest = Manifest.read(request.directory)
    if manifest is None:
        raise InputError(
            "nothing was fetched into this directory",
            code="nothing-fetched",
            remedy="give the --to of the fetch, or fetch first",
            where=request.directory,
        )
    return {**_facts(request, manifest), "wrong": verify(request.directory, manifest, progress.show)}


def _facts(request: SnapshotRequest, manifest: Manifest) -> dict[str, Any]:
    return {
        "name": manifest.name, "kind": manifest.kind, "directory": str(request.directory),
        "endpoint": manifest.endpoint, "commit": manifest.commit, "files": len(manifest.files),
        "bytes": sum(file.size for file in manifest.files),
    }  # fmt: skip


def _line(facts: dict[str, Any]) -> str:
    whole = f"{facts['directory']}: {count_of(facts['files'], 'file')}, {format_bytes(facts['bytes'])}"
    if "arrived_bytes" not in facts:
        return f"{whole}, {count_of(len(facts['wrong']), 'differs', 'differ') if facts['wrong'] else 'all as fetched'}"
    return f"{whole}, all hashes right; {format_bytes(facts['arrived_bytes'])} came from {facts['endpoint']}"


def _script(request: SnapshotRequest, mirrors: Mirrors) -> str:
    from ascendtune.hub.snapshot.fetch import list_files
    from ascendtune.hub.snapshot.script import shell_script

    listing = list_files(request, mirrors)
    return shell_script(request, listing, mirrors.current())


def _bytes_per_second(text: str) -> float:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in _UNITS else (text, "")
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise InputError(
            f"--min-speed {text} is not a speed",
            code="invalid-option-value",
            remedy="give bytes a second, such as 64K or 2M; 0 accepts any speed",
        )
    return float(int(number) * _UNITS.get(unit, 1))
