"""The three standard streams, made safe to use: each is open, takes every character, and shows no foreign controls."""

from __future__ import annotations

import codecs
import io
import json
import os
import sys

from ascendtune.core.safe_text import SafeStream

_STAND_INS = {
    **dict(zip("▁▂▃▄▅▆▇█░▒▓▏▎▍▌▋▊▉", "_.:-=+*#.:=|||||||", strict=True)),
    **dict(zip("─│└├×·−–—≈µ", "-|`|x.---~u", strict=True)),
    **dict(zip("…→≤≥", ("...", "->", "<=", ">="), strict=True)),
}
"""What we print that ASCII has not."""

_BYTES = range(0xDC80, 0xDD00)
"""Characters in which Python hides the bytes of names that are not in the system's encoding."""

_HANDLER = "ascendtune.stand_in"


def make_safe() -> None:
    """Let a closed stream be /dev/null, show control characters, and let ASCII stand for what cannot be encoded.

    Characters without a stand-in become JSON's escapes, so that printed JSON stays JSON. To be called first of all: a
    file that is opened before might get the descriptor of a closed stream, and be written into.
    """
    codecs.register_error(_HANDLER, _stand_in)
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _connect_to_nothing(descriptor)
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", closefd=False))
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, SafeStream):
            continue
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)
        setattr(sys, name, SafeStream(stream, has_progress_bars=name == "stderr"))


def _connect_to_nothing(descriptor: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    if nothing == descriptor:
        # Programs that we start find it open, too.
        os.set_inheritable(descriptor, True)
        return
    os.dup2(nothing, descriptor)
    os.close(nothing)


def _stand_in(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character, end = error.object[error.start], error.start + 1
    if ord(character) in _BYTES:
        # Of a file name that is no text: as the disk has it.
        return bytes([ord(character) - _BYTES.start + 0x80]), end
    return _STAND_INS.get(character) or json.dumps(character)[1:-1], end
