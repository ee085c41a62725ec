"""Digests of the files of tensors, made while they are written, so that no file is read again."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

TENSORS = ".distcp"
"""Ending of the files of tensors."""
_NOTE = ".sha256"


class DigestedFile(io.BufferedWriter):
    """A file that is written from its beginning to its end, and hashed on the way."""

    def __init__(self, raw: io.FileIO) -> None:
        super().__init__(raw)
        self._digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        """Write bytes. Large ones are hashed without holding the interpreter."""
        self._digest.update(data)
        return super().write(data)

    def seek(self, *arguments: int) -> int:
        """Not possible: the digest is that of the bytes in their order.

        Raises:
            io.UnsupportedOperation: always.
        """
        raise io.UnsupportedOperation("a digested file is written in order")

    def note_digest(self) -> None:
        """Write the digest into a file beside this one, for `take_digests`."""
        Path(f"{self.name}{_NOTE}").write_text(self._digest.hexdigest(), encoding="ascii")


def take_digests(directory: Path) -> dict[str, str]:
    """SHA-256 of the files of tensors in `directory`, noted by the ranks that wrote them; the notes are removed."""
    digests = {}
    for note in sorted(directory.glob(f"*{TENSORS}{_NOTE}")):
        digests[note.name.removesuffix(_NOTE)] = note.read_text(encoding="ascii")
        note.unlink()
    return digests
