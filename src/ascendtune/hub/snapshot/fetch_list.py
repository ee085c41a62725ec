"""A file that lists models and data sets to fetch, and the lock file that pins what they were."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from ascendtune.core.config import Section, validate
from ascendtune.core.document import read_document
from ascendtune.core.errors import InputError
from ascendtune.core.files import expanded, parsed_record, read_record, write_json
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
    """Its name on the hub: OWNER/NAME."""
    revision: Annotated[str, AfterValidator(checked_revision)] | None = None
    """Branch, tag or commit; the lock file pins the commit that it was."""
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
    """Where a repository goes that no directory was named for, below the working directory."""
    return Path(f"{kind}s") / name.rpartition("/")[2]


def read_fetch_list(path: Path) -> list[SnapshotRequest]:
    """What the file asks for; directories are relative to the working directory.

    Raises:
        InputError: the file is missing, damaged, or has a key or a value that is not possible; it names nothing.
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
    """Beside a fetch list: the commit and the hashes that each of them had when it was fetched first."""

    def __init__(self, fetch_list: Path) -> None:
        self.path = fetch_list.with_name(f"{fetch_list.stem}.lock.json")
        try:
            self._entries = parsed_record(
                read_record(self.path), self.path, remedy="bring it back, or remove it: then the newest is fetched"
            )
        except FileNotFoundError:
            self._entries = {}

    def pinned(self, request: SnapshotRequest) -> Manifest | None:
        """What was fetched before for this entry; None where it is new, or asks for another revision now.

        Raises:
            MachineError: the entry is damaged.
        """
        entry = self._entries.get(_key(request))
        if not isinstance(entry, Mapping) or entry.get("revision") != request.revision:
            return None
        return Manifest.of_record(entry.get("fetched"), self.path)

    def pin(self, request: SnapshotRequest, manifest: Manifest) -> None:
        """Keep what was fetched; written at once.

        Raises:
            MachineError: the disk is full or refuses to be written.
        """
        self._entries[_key(request)] = {"revision": request.revision, "fetched": manifest.as_record()}
        write_json(self.path, dict(sorted(self._entries.items())))


def _key(request: SnapshotRequest) -> str:
    return f"{request.kind} {request.name}"
