"""A file that lists models and data sets to fetch, and the lock file that pins their commits and hashes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from ascendtune.core.config import Section, validate
from ascendtune.core.document import read_document
from ascendtune.core.errors import InputError
from ascendtune.core.files import expanded
from ascendtune.core.records import read_json_record, write_json
from ascendtune.hub.download import HUB_ID
from ascendtune.hub.modelscope import RepoType
from ascendtune.hub.snapshot.fetch import SnapshotRequest
from ascendtune.hub.snapshot.hub_client import checked_revision
from ascendtune.hub.snapshot.manifest import Manifest


def checked_id(name: str) -> str:
    """The id of a repository.

    Raises:
        ValueError: it has another form; the message is the remedy.
    """
    if not HUB_ID.fullmatch(name):
        raise ValueError("write it as OWNER/NAME, as the hub lists it")
    return name


class RepositorySection(Section):
    """One repository of a hub."""

    id: Annotated[str, AfterValidator(checked_id)]
    """Name on the hub: OWNER/NAME."""
    revision: Annotated[str, AfterValidator(checked_revision)] | None = None
    """Branch, tag or commit; the lock file pins the commit."""
    to: str | None = None
    """Directory; by default models/NAME or datasets/NAME."""
    include: tuple[str, ...] = ()
    """Patterns of files; by default all that training reads."""
    exclude: tuple[str, ...] = ()
    """Patterns of files to leave out."""


class FetchList(Section):
    """The content of a file for `ascendtune fetch -f`."""

    models: tuple[RepositorySection, ...] = ()
    datasets: tuple[RepositorySection, ...] = ()


def default_directory(name: str, kind: RepoType) -> Path:
    """The default directory of a repository, below the working directory."""
    return Path(f"{kind}s") / name.rpartition("/")[2]


def read_fetch_list(path: Path) -> list[SnapshotRequest]:
    """The requests in the file; directories are relative to the working directory.

    Raises:
        InputError: the file is missing, damaged or empty, or has an invalid key or value.
    """
    content = validate(FetchList, read_document(path, "list of supplies"))
    listed: list[tuple[RepoType, RepositorySection]] = [
        *(("model", each) for each in content.models),
        *(("dataset", each) for each in content.datasets),
    ]
    if not listed:
        raise InputError(
            "the list names no model and no data set",
            code="document-empty",
            remedy="add an entry, such as `models: [{id: OWNER/NAME}]`",
            where=path,
        )
    return [
        SnapshotRequest(
            each.id, kind, expanded(each.to) if each.to else default_directory(each.id, kind),
            each.revision, each.include, each.exclude,
        )
        for kind, each in listed
    ]  # fmt: skip


class LockFile:
    """The lock file of a fetch list: the commit and the hashes of each repository at its first fetch."""

    def __init__(self, fetch_list: Path) -> None:
        self.path = fetch_list.with_name(f"{fetch_list.stem}.lock.json")
        try:
            self._entries = read_json_record(self.path, remedy="restore it, or remove it: then the newest is fetched")
        except FileNotFoundError:
            self._entries = {}

    def pinned(self, request: SnapshotRequest) -> Manifest | None:
        """The manifest of the earlier fetch of this entry; None if it is new, or has another revision now.

        Raises:
            MachineError: the entry is damaged.
        """
        entry = self._entries.get(_key(request))
        if not isinstance(entry, Mapping) or entry.get("revision") != request.revision:
            return None
        return Manifest.of_record(entry.get("fetched"), self.path)

    def pin(self, request: SnapshotRequest, manifest: Manifest) -> None:
        """Record a fetch; written at once.

        Raises:
            MachineError: the disk is full or cannot be written.
        """
        self._entries[_key(request)] = {"revision": request.revision, "fetched": manifest.as_record()}
        write_json(self.path, dict(sorted(self._entries.items())))


def _key(request: SnapshotRequest) -> str:
    return f"{request.kind} {request.name}"
