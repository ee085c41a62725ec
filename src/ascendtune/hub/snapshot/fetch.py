"""Fetches a repository of a hub into a directory: selects files, checks disk space, chooses mirrors, verifies
hashes."""

from __future__ import annotations

import fnmatch
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ascendtune.core.directories import require_free_space
from ascendtune.core.errors import AscendtuneError, MachineError, translated_disk_errors
from ascendtune.core.files import require_writable
from ascendtune.core.http import Fault
from ascendtune.core.locks import file_lock
from ascendtune.core.log import say, warn
from ascendtune.core.tail import size_of
from ascendtune.core.units import count_of, format_bytes
from ascendtune.hub.download import MODEL_COPIES
from ascendtune.hub.modelscope import RepoType, input_error, noun
from ascendtune.hub.snapshot.hub_client import HubClient, Listing, RemoteFile
from ascendtune.hub.snapshot.manifest import Manifest
from ascendtune.hub.snapshot.transfer import STATE, Cancelled, TooSlow, WrongContent, is_verified, part_of, transfer

AT_ONCE = 4
_TRIES = 5
"""Consecutive requests of one file without progress, over all mirrors, before it is given up."""
_LONGEST_WAIT_SECONDS = 30.0
# Pickled weights are never loaded, and copies in other formats are for other programs: `--include` fetches them.
UNWANTED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.onnx", "*.gguf", "*.ot", "*.tflite")
Progress = Callable[[str, int, int, str], None]
"""Called with the current work, the MiB done and in all, and the files in transfer."""


@dataclass(frozen=True)
class SnapshotRequest:
    """The repository and files to fetch.

    Attributes:
        include, exclude: patterns of paths as in a shell; without `include` every file that training reads.
    """

    name: str
    kind: RepoType
    directory: Path
    revision: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def wants(self, path: str) -> bool:
        if any(fnmatch.fnmatchcase(path, pattern) for pattern in self.exclude):
            return False
        if self.include:
            return any(fnmatch.fnmatchcase(path, pattern) for pattern in self.include)
        unwanted = (*UNWANTED, *MODEL_COPIES) if self.kind == "model" else ()
        return not any(fnmatch.fnmatchcase(path, pattern) for pattern in unwanted)


@dataclass
class Mirrors:
    """The hubs in the order in which they are tried. Threads share it: all stop using a mirror that fails."""

    hubs: Sequence[HubClient]
    _current: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def current(self) -> HubClient:
        with self._lock:
            return self.hubs[self._current % len(self.hubs)]

    @property
    def is_last(self) -> bool:
        """Whether every mirror was tried: then even a slow one is used."""
        with self._lock:
            return self._current >= len(self.hubs) - 1

    def leave(self, hub: HubClient, why: str) -> None:
        """Switch to the next mirror, unless another thread has switched already."""
        with self._lock:
            if len(self.hubs) == 1 or self.hubs[self._current % len(self.hubs)] is not hub:
                return
            self._current += 1
            following = self.hubs[self._current % len(self.hubs)]
        warn(f"{hub.endpoint}: {why}; continuing with {following.endpoint}")


@dataclass(frozen=True)
class FetchResult:
    """The result of a fetch: bytes that this call received, and files that existed already."""

    manifest: Manifest
    arrived_bytes: int
    already_here: int


@dataclass
class _Count:
    """Bytes on the disk, of all files and of each; threads add to it. `parts`: path -> bytes."""

    what: str
    total: int
    progress: Progress
    parts: dict[str, int]
    arrived: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes of the files in transfer, not of all: a data set may have tens of thousands."""

    def __post_init__(self) -> None:
        self.done = sum(self.parts.values())

    def add(self, file: RemoteFile, count: int) -> None:
        with self.lock:
            self.parts[file.path] += count
            self.done += count
            self.arrived += max(count, 0)
            if self.parts[file.path] < file.size:
                self.sizes[file.path] = file.size
            else:
                self.sizes.pop(file.path, None)
            self.progress(self.what, self.done >> 20, max(self.total >> 20, 1), self._under_way())

    def _under_way(self) -> str:
        """ "model-00001-of-00002.safetensors 45%, model-00002-of-00002.safetensors 12%"."""
        return ", ".join(f"{path} {100 * self.parts[path] // size}%" for path, size in self.sizes.items())


def list_files(request: SnapshotRequest, mirrors: Mirrors) -> Listing:
    """The files of the repository at the revision, from the first mirror that answers.

    Raises:
        RecipeError, DataError: the repository or revision does not exist, or access is denied.
        MachineError: no mirror answers.
    """
    for number in range(_TRIES):
        faults: list[tuple[HubClient, Fault]] = []
        for _ in mirrors.hubs:
            hub = mirrors.current()
            try:
                return hub.listing(request.name, request.kind, request.revision)
            except Fault as fault:
                faults.append((hub, fault))
                if len(faults) < len(mirrors.hubs):
                    mirrors.leave(hub, fault.what)
        transient = [fault for _, fault in faults if fault.is_transient]
        if not transient or number == _TRIES - 1:
            break
        time.sleep(min(_pause(transient[0], number), _LONGEST_WAIT_SECONDS))
    raise _unlisted(request, faults)


def _pause(fault: Fault, failures: int) -> float:
    """Seconds to wait after consecutive failures: the server's request, else an increasing time."""
    return fault.wait_seconds if fault.wait_seconds is not None else min(2.0**failures / 4, _LONGEST_WAIT_SECONDS)


def fetch(
    request: SnapshotRequest,
    mirrors: Mirrors,
    *,
    least_speed: float,
    progress: Progress,
    pinned: Manifest | None = None,
) -> FetchResult:
    """Fetch the selected files of a repository into `request.directory`; correct files are not read again.

    Args:
        least_speed: bytes per second below which another mirror is tried, while there is one.
        pinned: the manifest of an earlier fetch: the same commit is fetched, and the hashes must be equal.

    Raises:
        RecipeError, DataError: no such repository; an existing file differs; no file is selected.
        MachineError: no mirror answers, the disk has too little space, or a file was not received.
    """
    require_writable(request.directory)
    listing = Listing(pinned.commit, pinned.files) if pinned else list_files(request, mirrors)
    selected = [file for file in listing.files if request.wants(file.path)]
    if not selected:
        raise input_error(request.kind)(
            f"none of the {count_of(len(listing.files), 'file')} of {request.name} matches --include and --exclude",
            code="no-wanted-file",
            remedy="change --include or --exclude; files: " + ", ".join(each.path for each in listing.files[:8]),
        )
    say(
        f"{request.name} at {listing.commit[:12]}: {count_of(len(selected), 'file')}, "
        f"{format_bytes(sum(each.size for each in selected))}{_left_out(request, listing)}"
    )
    with translated_disk_errors(request.directory, "making a directory"):
        (request.directory / STATE).mkdir(parents=True, exist_ok=True)
    with file_lock(request.directory / STATE / "lock", wait=False) as is_free:
        if not is_free:
            raise MachineError(
                "another process fetches into this directory",
                code="fetch-in-progress",
                remedy="wait for it, or choose another --to",
                where=request.directory,
            )
        missing = _missing(request, selected)
        count = _count_of(request, missing, progress)
        _Download(request, listing.commit, mirrors, least_speed, count).fetch_all(missing)
        manifest = Manifest(request.name, request.kind, mirrors.current().endpoint, listing.commit, tuple(selected))
        manifest.write(request.directory)
        _remove_old_parts(request.directory)
    return FetchResult(manifest, count.arrived, len(selected) - len(missing))


def _left_out(request: SnapshotRequest, listing: Listing) -> str:
    """A note with the number of files that are not selected, and the first three of them."""
    names = [each.path for each in listing.files if not request.wants(each.path)]
    return f"; {len(names)} left out: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}" if names else ""


def verify(directory: Path, manifest: Manifest, progress: Progress) -> list[str]:
    """Read all fetched files again; a line for each that is missing or has other content."""
    wrong = []
    total = max(sum(each.size for each in manifest.files) >> 20, 1)
    done = 0
    for file in manifest.files:
        progress(f"MiB of {file.path}", done >> 20, total, "")
        if not (directory / file.path).exists():
            wrong.append(f"{file.path} is missing")
        elif not is_verified(directory / file.path, file):
            wrong.append(f"{file.path} differs from the fetched files")
        done += file.size
    return wrong


def _unlisted(request: SnapshotRequest, faults: Sequence[tuple[HubClient, Fault]]) -> AscendtuneError:
    tried = "; ".join(f"{hub.endpoint}: {fault.what}" for hub, fault in faults)
    statuses = {fault.status for _, fault in faults}
    refused = input_error(request.kind)
    # The fault of a mirror that is down implies nothing about the repository; the answer of another does.
    if statuses & {401, 403}:
        return refused(
            f"access to the {noun(request.kind)} {request.name} is refused, or it does not exist ({tried})",
            code="hub-access-denied",
            remedy="check the spelling; for a private or gated one set HF_TOKEN (MODELSCOPE_API_TOKEN) to a token "
            "that may read it",
        )
    if 404 in statuses:
        at = f" with the revision '{request.revision}'" if request.revision else ""
        return refused(
            f"there is no {noun(request.kind)} {request.name}{at} ({tried})",
            code="not-on-hub",
            remedy="check the spelling and the revision; names differ between Hugging Face and ModelScope",
        )
    if 429 in statuses:
        return MachineError(
            f"no hub lists the files now: too many requests ({tried})",
            code="hub-unreachable",
            remedy="wait some minutes; log in, as hubs allow a user more: HF_TOKEN; or name another hub: --from",
        )
    remedy = "check network and proxy (https_proxy); name a mirror that you can reach: --from hf-mirror or its URL"
    if any((status or 0) >= 500 for status in statuses):
        remedy = "the hub, or a proxy before it, has a fault: try again later, or name another hub: --from hf-mirror"
    return MachineError(f"no hub answers ({tried})", code="hub-unreachable", remedy=remedy)


def _missing(request: SnapshotRequest, selected: Sequence[RemoteFile]) -> list[RemoteFile]:
    """The selected files that do not exist yet; an existing file that differs is never overwritten."""
    missing, differing = [], []
    for file in selected:
        path = request.directory / file.path
        if not path.exists() and not path.is_symlink():
            missing.append(file)
        elif not is_verified(path, file):
            differing.append(file.path)
    if differing:
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise input_error(request.kind)(
            f"files of {request.name} exist with other content: {', '.join(differing[:3])}{more}",
            code="file-differs",
            remedy="choose another --to, or move these files away: fetch never overwrites a file",
            where=request.directory,
        )
    return missing


def _count_of(request: SnapshotRequest, missing: Sequence[RemoteFile], progress: Progress) -> _Count:
    """Bytes that earlier tries have received of the missing files; raises if the disk has no space for the rest."""
    parts = {file.path: size_of(part_of(request.directory, file)) for file in missing}
    total, received = sum(file.size for file in missing), sum(parts.values())
    require_free_space(
        request.directory,
        total - received,
        f"{request.name} needs {format_bytes(total - received)} more",
        remedy="free space, or choose another --to",
    )
    if received:
        say(f"{format_bytes(received)} of them were received earlier")
    return _Count(f"MiB of {request.name}", total, progress, parts)


@dataclass(frozen=True)
class _Download:
    """Fetches several files at once, each from one mirror after another."""

    request: SnapshotRequest
    commit: str
    mirrors: Mirrors
    least_speed: float
    count: _Count
    cancelled: threading.Event = field(default_factory=threading.Event)

    def fetch_all(self, files: Sequence[RemoteFile]) -> None:
        # The largest first, so that the last ones are small, and many connections share the work.
        queue = sorted(files, key=lambda file: -file.size)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            tasks = [pool.submit(self._fetch, file) for file in queue]
            try:
                wait(tasks, return_when=FIRST_EXCEPTION)
            finally:
                self.cancelled.set()
                for task in tasks:
                    task.cancel()
        for error in [task.exception() for task in tasks if not task.cancelled()]:
            if error is not None and not isinstance(error, Cancelled):
                raise error

    def _fetch(self, file: RemoteFile) -> None:
        """Retry until the file is complete, or _TRIES consecutive requests received nothing new."""
        part, hubs = part_of(self.request.directory, file), len(self.mirrors.hubs)
        failures, wrong, is_refused = 0, 0, False
        while True:
            hub = self.mirrors.current()
            before = size_of(part)
            try:
                self._transfer(file, hub)
                return
            except Fault as fault:
                wrong += isinstance(fault, WrongContent)
                is_refused |= fault.status in (401, 403)
                is_progress = size_of(part) > before
                failures = 0 if is_progress else failures + 1
                if failures >= _TRIES * hubs or wrong > hubs:
                    raise (_refused if is_refused else _not_fetched)(file, self.request, hub, fault) from fault
                if isinstance(fault, TooSlow | WrongContent) or not is_progress:
                    self.mirrors.leave(hub, f"{file.path}: {fault.what}")
                if not is_progress and not isinstance(fault, WrongContent):
                    self.cancelled.wait(min(_pause(fault, failures), _LONGEST_WAIT_SECONDS))
            if self.cancelled.is_set():
                raise Cancelled

    def _transfer(self, file: RemoteFile, hub: HubClient) -> None:
        transfer(
            file, self.request.directory, hub.url(self.request.name, self.request.kind, self.commit, file.path),
            dict(hub.headers()), least_speed=0 if self.mirrors.is_last else self.least_speed,
            arrived=partial(self.count.add, file), cancelled=self.cancelled,
        )  # fmt: skip


def _refused(file: RemoteFile, request: SnapshotRequest, hub: HubClient, fault: Fault) -> AscendtuneError:
    """The error for a file that is listed but refused: the files of a gated repository are listed for everybody."""
    return input_error(request.kind)(
        f"{request.name} lists {file.path}, but access to it is refused ({hub.endpoint}: {fault.what})",
        code="hub-access-denied",
        remedy="ask for access on the repository's page, if it is gated, and set HF_TOKEN (MODELSCOPE_API_TOKEN) to a "
        "token that may read it",
        where=request.directory,
    )


def _not_fetched(file: RemoteFile, request: SnapshotRequest, hub: HubClient, fault: Fault) -> MachineError:
    return MachineError(
        f"{file.path} of {request.name} could not be fetched from {hub.endpoint}: {fault.what}",
        code="file-not-fetched",
        remedy="run the same command again, which continues at the last byte; or name another mirror with --from",
        where=request.directory,
    )


def _remove_old_parts(directory: Path) -> None:
    """Remove parts of other revisions, which only take disk space once everything is complete."""
    for part in (directory / STATE).glob("*.part"):
        part.unlink(missing_ok=True)
