"""The record of a fetch, in its directory: source, revision, sizes and hashes, for later checks without a network."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ascendtune.core.errors import MachineError
from ascendtune.core.records import read_json_record, write_json
from ascendtune.hub.modelscope import RepoType
from ascendtune.hub.snapshot.hub_client import RemoteFile, checked_revision, is_safe_path
from ascendtune.hub.snapshot.transfer import STATE

_NAME = "fetched.json"
_REMEDY = "remove it and fetch again: files that fit stay"


@dataclass(frozen=True)
class Manifest:
    """The selected files of one repository, at one commit."""

    name: str
    kind: RepoType
    endpoint: str
    commit: str
    files: tuple[RemoteFile, ...]

    def write(self, directory: Path) -> None:
        """Keep it in `directory`.

        Raises:
            MachineError: the disk is full or refuses to be written.
        """
        (directory / STATE).mkdir(parents=True, exist_ok=True)
        write_json(directory / STATE / _NAME, self.as_record())

    @classmethod
    def read(cls, directory: Path) -> Manifest | None:
        """The manifest of `directory`; None if nothing was fetched into it.

        Raises:
            MachineError: it is damaged.
        """
        path = directory / STATE / _NAME
        try:
            return cls.of_record(read_json_record(path, remedy=_REMEDY), path)
        except FileNotFoundError:
            return None

    @classmethod
    def of_record(cls, record: Any, where: Path) -> Manifest:
        """The manifest from the result of `as_record`.

        Raises:
            MachineError: it is damaged.
        """
        try:
            files = tuple(_file(each) for each in record["files"])
            kind: RepoType = "dataset" if record["kind"] == "dataset" else "model"
            return cls(str(record["name"]), kind, str(record["endpoint"]), checked_revision(record["commit"]), files)
        except (KeyError, TypeError, ValueError) as error:
            raise MachineError(
                f"{where.name} is damaged: {error!r}", code="record-damaged", remedy=_REMEDY, where=where
            ) from error

    def as_record(self) -> dict[str, Any]:
        return asdict(self)


def _file(record: dict[str, Any]) -> RemoteFile:
    file = RemoteFile(**record)
    if not isinstance(file.path, str) or not isinstance(file.size, int) or not is_safe_path(file.path):
        raise ValueError("a file has no valid path or size")
    return file
