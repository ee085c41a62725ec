from __future__ import annotations

import os
from pathlib import Path

from ascendtune.core.files import is_endless


def test_devices_and_named_pipes_may_never_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    assert all(is_endless(path) for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero")))


def test_files_and_pipes_of_the_shell_end(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    reading, writing = os.pipe()
    try:
        assert not any(is_endless(path) for path in (tmp_path / "file", Path(f"/dev/fd/{reading}"), Path("/dev/null")))
    finally:
        os.close(reading)
        os.close(writing)
