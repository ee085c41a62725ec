"""Where each tensor of a checkpoint lies, as JSON: torch.distributed.checkpoint (DCP) keeps it as a pickle alone.

A pickle can run code of its author, so `tensors.json` is read; DCP's `.metadata` stands beside it for
other programs.

    {"model.weight": {"dtype": "float32", "size": [8, 8], "chunks": [
        {"offsets": [0, 0], "sizes": [4, 8], "file": "__0_0.distcp", "begin": 0, "length": 1577}]}}
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from ascendtune.train.checkpoint.digests import TENSORS, DigestedFile

_FILE = "tensors.json"
_NICENESS = 5
"""Of the thread that writes: training goes first where cores are few."""


class IndexedWriter(FileSystemWriter):
    """DCP's writer, which writes the index and digests as well, into a directory that exists."""

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(directory, **options)
        # DCP's own makes the directories above as well: a run directory that was removed would come back.
        self.fs = _ExistingDirectory()

    def write_data(self, *arguments: Any, **named: Any) -> Any:
        """Write the tensors of this rank, in the thread that DCP makes for one checkpoint."""
        # Linux has a priority for each thread.
        if sys.platform == "linux" and threading.current_thread() is not threading.main_thread():
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        return super().write_data(*arguments, **named)

    def finish(self, metadata: Metadata, results: Any) -> None:
        super().finish(metadata, results)
        # Flushed with all other files before the checkpoint gets its name.
        (Path(self.path) / _FILE).write_text(json.dumps(_to_json(metadata)), encoding="utf-8")


class _ExistingDirectory(FileSystem):
    def mkdir(self, path: str | os.PathLike[str]) -> None:
        pass

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """A file; of tensors that are written, the digest goes into a file beside it."""
        if mode != "wb" or Path(path).suffix != TENSORS:
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        with DigestedFile(io.FileIO(path, mode)) as file:
            yield file
        file.note_digest()


class IndexedReader(FileSystemReader):
    """DCP's reader, which reads the index in place of the pickle."""

    def read_metadata(self, *arguments: Any, **named: Any) -> Metadata:
        """The metadata of the checkpoint.

        Raises:
            OSError, ValueError, TypeError, LookupError: it is missing or damaged.
        """
        metadata = _of_json(json.loads((Path(self.path) / _FILE).read_text(encoding="utf-8")))
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata


def _to_json(metadata: Metadata) -> dict[str, Any]:
    places: dict[MetadataIndex, _StorageInfo] = metadata.storage_data
    index = {}
    for name, entry in metadata.state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata), name
        chunks = []
        for chunk in entry.chunks:
            place = places[MetadataIndex(name, chunk.offsets)]
            where = {"file": place.relative_path, "begin": place.offset, "length": place.length}
            chunks.append({"offsets": list(chunk.offsets), "sizes": list(chunk.sizes), **where})
        dtype = str(entry.properties.dtype).removeprefix("torch.")
        index[name] = {"dtype": dtype, "size": list(entry.size), "chunks": chunks}
    return index


def _of_json(index: dict[str, Any]) -> Metadata:
    entries: dict[str, Any] = {}
    places = {}
    for name, entry in index.items():
        chunks = [
            ChunkStorageMetadata(torch.Size(each["offsets"]), torch.Size(each["sizes"])) for each in entry["chunks"]
        ]
        for chunk, each in zip(chunks, entry["chunks"], strict=True):
            # In this checkpoint: its digests say that the file is whole.
            if Path(each["file"]).name != each["file"]:
                raise ValueError(f"{_FILE}: {each['file']} is not the name of a file")
            places[MetadataIndex(name, chunk.offsets)] = _StorageInfo(
                each["file"], int(each["begin"]), int(each["length"])
            )
        entries[name] = TensorStorageMetadata(
            TensorProperties(dtype=_dtype(entry["dtype"])), torch.Size(entry["size"]), chunks
        )
    return Metadata(entries, storage_data=places)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{_FILE}: {name} is not a type of tensors")
    return dtype
