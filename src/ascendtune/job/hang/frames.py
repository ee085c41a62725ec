"""Python stacks as text, as faulthandler and py-spy write them, read back: where is a rank?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

_THREAD = re.compile(r"^(?:Current thread|Thread) (?P<name>.*)$", re.MULTILINE)
_OF_FAULTHANDLER = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_OF_PY_SPY = re.compile(r"^    (?P<function>.+) \((?P<file>.+):(?P<line>\d+)\)$", re.MULTILINE)
_TELLING = ("ascendtune", "torch", "torch_npu", "transformers", "peft", "deepspeed")
_WAITING = ("torch/distributed/", "torch/autograd/graph.py")


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str

    @property
    def place(self) -> str:
        """The file below the directory that Python searches, and the line: torch/autograd/graph.py:829."""
        parts = PurePath(self.file).parts
        starts = [at for at, part in enumerate(parts[:-1]) if part in _TELLING]
        below = parts[starts[-1] :] if starts else parts[-2:]
        return f"{'/'.join(below)}:{self.line}"

    def __str__(self) -> str:
        return f"{self.function} at {self.place}"


def main_thread(text: str) -> tuple[Frame, ...]:
    """The frames of a process' main thread, innermost first; none where the text holds none."""
    starts = list(_THREAD.finditer(text))
    if not starts:
        return ()
    ends = [each.start() for each in starts[1:]] + [len(text)]
    threads = [(start["name"], text[start.end() : end]) for start, end in zip(starts, ends, strict=True)]
    # py-spy names it; faulthandler lists the newest thread first, and the main thread is the oldest.
    block = next((block for name, block in threads if '"MainThread"' in name), threads[-1][1])
    found = list(_OF_FAULTHANDLER.finditer(block)) or list(_OF_PY_SPY.finditer(block))
    return tuple(Frame(each["file"], int(each["line"]), each["function"]) for each in found)


def telling(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost frame of ours or of a library that trains: what lies within is threading, sockets and sleep."""
    of_interest = (each for each in frames if set(PurePath(each.file).parts[:-1]) & set(_TELLING))
    return next(of_interest, frames[0] if frames else None)


def waits_for_others(frames: tuple[Frame, ...]) -> bool:
    """Whether a rank is in a collective, or in a backward pass, where gradients are exchanged."""
    return any(part in each.file for each in frames for part in _WAITING)
