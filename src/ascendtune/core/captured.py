"""Output of a program, limited in time and size: a server in the background, or a broken tool, may never close it."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

MOST_BYTES = 256 << 20
"""The limit for all streams together."""
_PIECE = 1 << 16


@dataclass(frozen=True)
class Captured:
    """The content of each stream; incomplete if one of the limits was reached."""

    contents: tuple[bytes, ...]
    is_late: bool = False
    is_too_large: bool = False


def capture(streams: Sequence[IO[Any]], deadline: float) -> Captured:
    """Read pipes to their ends.

    Args:
        deadline: of `time.monotonic`.
    """
    pieces: dict[int, list[bytes]] = {stream.fileno(): [] for stream in streams}
    left = MOST_BYTES

    def so_far(**limit: bool) -> Captured:
        return Captured(tuple(b"".join(each) for each in pieces.values()), **limit)

    with selectors.DefaultSelector() as open_pipes:
        for descriptor in pieces:
            open_pipes.register(descriptor, selectors.EVENT_READ)
        while open_pipes.get_map():
            ready = open_pipes.select(max(0.0, deadline - time.monotonic()))
            if not ready and time.monotonic() >= deadline:
                return so_far(is_late=True)
            for key, _ in ready:
                piece = os.read(key.fd, _PIECE)
                pieces[key.fd].append(piece)
                left -= len(piece)
                if left < 0:
                    return so_far(is_too_large=True)
                if not piece:
                    open_pipes.unregister(key.fd)
    return so_far()
