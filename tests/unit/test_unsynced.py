"""fsync in tests does not wait, and fails where the real one would."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def test_fsync_takes_files_and_directories_and_refuses_what_cannot_be_synced(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        os.fsync(file)
        os.fsync(file.fileno())
    directory = os.open(tmp_path, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fsync(directory)
    reader, writer = os.pipe()
    with pytest.raises(OSError, match="Invalid argument"):
        os.fsync(writer)
    os.close(reader)
    os.close(writer)
