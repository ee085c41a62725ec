"""Collects the Python stacks of the ranks on this machine, with as little help of their processes as possible.

py-spy reads them from outside if it is installed and permitted. Otherwise a signal makes the worker write them itself:
a separate thread does it while the main thread waits in a collective or a system call. A worker that does not respond,
because it hangs in a driver and keeps the interpreter's lock, receives a second signal, on which faulthandler writes
them: it needs neither the lock nor a Python instruction. For a program that is not ours only py-spy is used, because
the program may handle the signals in another way.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from ascendtune.core import process, process_tree, procfs
from ascendtune.core.errors import translated_disk_errors
from ascendtune.core.rundir import FORCED_STACKS_SIGNAL, STACKS_SIGNAL, RunDir
from ascendtune.job.hang import flight_recorder
from ascendtune.job.hang.heartbeat import RUNNING, RankHeartbeat

_ANSWER_SECONDS = 3.0
_PY_SPY_SECONDS = 10.0
_LOOK_EVERY_SECONDS = 0.05
_SHOWN_CHARACTERS = 120

_THREAD = re.compile(r"^(?:Current thread|Thread) (?P<name>.*)$", re.MULTILINE)
_OF_FAULTHANDLER = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_OF_PY_SPY = re.compile(r"^    (?P<function>.+) \((?P<file>.+):(?P<line>\d+)\)$", re.MULTILINE)
_RELEVANT = ("ascendtune", "torch", "torch_npu", "transformers", "peft", "deepspeed")
_COLLECTIVES = ("torch/distributed/", "ascendtune/train/strategy/gradient_buckets.py")
_BACKWARD = "torch/autograd/graph.py"


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str

    @property
    def place(self) -> str:
        """The path relative to Python's search directory, and the line: torch/autograd/graph.py:829."""
        parts = PurePath(self.file).parts
        starts = [at for at, part in enumerate(parts[:-1]) if part in _RELEVANT]
        below = parts[starts[-1] :] if starts else parts[-2:]
        return f"{'/'.join(below)}:{self.line}"

    def __str__(self) -> str:
        return f"{self.function} at {self.place}"


@dataclass(frozen=True)
class RankStack:
    """The stack of a rank."""

    beat: RankHeartbeat
    silent_seconds: float
    """Time since its last heartbeat."""
    frames: tuple[Frame, ...]
    """Frames of the main thread, innermost first; empty if no stack could be read."""
    source: str
    """`py-spy`, `the worker itself`, `faulthandler`, or the reason why there is no stack."""
    is_stopped: bool
    """Whether it is stopped by SIGSTOP or Ctrl-Z."""
    file: Path
    """The stacks of all its threads."""


def collect(run_dir: Path, beats: Sequence[RankHeartbeat]) -> tuple[Path, list[RankStack]]:
    """Collect the stacks of those `beats` whose processes run on this machine; written to
    RUN/log/stacks_TIME/rank_N.txt.

    Returns:
        The directory, and the stacks by rank. Dumps of torch's flight recorder, if enabled, are in the same directory.

    Raises:
        MachineError: the directory cannot be written.
    """
    now = time.monotonic()
    directory = _new_directory(RunDir(run_dir).logs)
    living = [(beat, stat) for beat in beats if (stat := beat.process())]
    recordings = [flight_recorder.request_dump(beat.pid, beat.rank) for beat, _ in living]
    texts = _texts(run_dir, living)
    stacks = []
    for beat, stat in living:
        text, source = texts[beat.rank]
        stack = RankStack(
            beat=beat,
            silent_seconds=now - beat.monotonic,
            frames=main_thread(text),
            source=source,
            is_stopped=stat.state in "Tt",
            file=directory / f"rank_{beat.rank}.txt",
        )
        with translated_disk_errors(stack.file, "writing a stack"):
            stack.file.write_text(f"{_heading(stack, stat)}\n\n{text}", "utf-8", errors="replace")
        stacks.append(stack)
    flight_recorder.collect_dumps([each for each in recordings if each], directory)
    return directory, stacks


def _new_directory(logs: Path) -> Path:
    name = time.strftime("stacks_%Y%m%d-%H%M%S")
    with translated_disk_errors(logs, "writing stacks"):
        for number in range(1, 1000):
            directory = logs / (name if number == 1 else f"{name}-{number}")
            try:
                directory.mkdir(parents=True)
            except FileExistsError:
                continue
            return directory
    raise AssertionError("a thousand collections within a second")


def _texts(run_dir: Path, living: list[tuple[RankHeartbeat, procfs.Stat]]) -> dict[int, tuple[str, str]]:
    """Rank -> the text of all stacks, and its source."""
    texts: dict[int, tuple[str, str]] = {}
    requests: dict[int, _Request] = {}
    for beat, stat in living:
        if found := _from_outside(beat, stat):
            texts[beat.rank] = found
        else:
            answer = RunDir(run_dir).stacks(beat.rank)
            requests[beat.rank] = _Request(beat.pid, answer, _size(answer))
    for source, number in (("the worker itself", STACKS_SIGNAL), ("faulthandler", FORCED_STACKS_SIGNAL)):
        answers = _answers({rank: each for rank, each in requests.items() if rank not in texts}, number)
        texts |= {rank: (text, source) for rank, text in answers.items()}
    why_not = f"no stack: no answer to {FORCED_STACKS_SIGNAL.name} within {_ANSWER_SECONDS:.0f} s"
    return dict.fromkeys(requests, ("", why_not)) | texts


def _from_outside(beat: RankHeartbeat, stat: procfs.Stat) -> tuple[str, str] | None:
    """Text and source of the stacks, read without the process, or the reason why not; None: request them from it."""
    if procfs.owner_of(beat.pid) != os.getuid():
        return "", "no stack: the process belongs to another user"
    text, why_not = _by_py_spy(beat.pid, searches=beat.phase == RUNNING)
    if text:
        return text, "py-spy"
    if beat.phase == RUNNING:
        return "", f"no stack: {why_not}"
    if stat.state in "Tt":
        return "", f"no stack: kill -CONT {beat.pid} continues it"
    if not procfs.has_signal_handler(beat.pid, FORCED_STACKS_SIGNAL):
        return "", f"no stack: the process does not answer to {STACKS_SIGNAL.name}, and {why_not}"
    return None


def _by_py_spy(pid: int, *, searches: bool) -> tuple[str, str]:
    """The output of py-spy for a process; if it is empty, the reason.

    Args:
        searches: the process may be a shell that has started the wanted one.
    """
    beside_python = Path(sys.executable).parent
    py_spy = shutil.which("py-spy", path=f"{beside_python}{os.pathsep}{os.environ.get('PATH', '')}")
    if py_spy is None:
        return "", "py-spy is not installed (pip install py-spy)"
    why_not = ""
    for each in [pid, *(below.pid for below in process_tree.below(pid))] if searches else [pid]:
        # Nonblocking: it would otherwise stop the process, and wait for one that is stopped already.
        argv = [py_spy, "dump", "--pid", str(each), "--nonblocking", "--full-filenames"]
        done = process.run(argv, timeout_seconds=_PY_SPY_SECONDS)
        if done.exit_code == 0 and main_thread(done.output):
            return done.output, ""
        why_not = why_not or f"py-spy says: {' '.join(done.error.split())[:_SHOWN_CHARACTERS] or 'nothing'}"
    return "", why_not


@dataclass(frozen=True)
class _Request:
    """A worker from which stacks were requested."""

    pid: int
    file: Path
    """The file to which it appends them."""
    size: int
    """Size of `file` before the request."""

    def answer(self) -> str:
        with self.file.open("rb") as file:
            file.seek(self.size)
            return file.read().decode(errors="replace")


def _answers(requests: dict[int, _Request], number: int) -> dict[int, str]:
    """The stacks that workers write at the signal `number`, once the files no longer grow, by rank."""
    for each in requests.values():
        with suppress(ProcessLookupError):
            os.kill(each.pid, number)
    deadline = time.monotonic() + _ANSWER_SECONDS
    sizes = {rank: each.size for rank, each in requests.items()}
    growing = dict(requests)
    while growing and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_SECONDS)
        for rank, each in list(growing.items()):
            size = _size(each.file)
            if size > each.size and size == sizes[rank]:
                del growing[rank]
            sizes[rank] = size
    return {rank: each.answer() for rank, each in requests.items() if sizes[rank] > each.size}


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _heading(stack: RankStack, stat: procfs.Stat) -> str:
    beat = stack.beat
    kernel = procfs.waits_in(beat.pid)
    return (
        f"rank {beat.rank}, process {beat.pid} on {beat.host}: {beat.place} "
        f"for {stack.silent_seconds:.1f} s\n"
        f"state {stat.state}{f', in the kernel: {kernel}' if kernel else ''}; {stack.source}"
    )


def main_thread(text: str) -> tuple[Frame, ...]:
    """The frames of a process' main thread, innermost first; empty if the text contains none."""
    starts = list(_THREAD.finditer(text))
    if not starts:
        return ()
    ends = [each.start() for each in starts[1:]] + [len(text)]
    threads = [(start["name"], text[start.end() : end]) for start, end in zip(starts, ends, strict=True)]
    # py-spy names it; faulthandler lists the newest thread first, and the main thread is the oldest.
    block = next((block for name, block in threads if '"MainThread"' in name), threads[-1][1])
    found = list(_OF_FAULTHANDLER.finditer(block)) or list(_OF_PY_SPY.finditer(block))
    return tuple(Frame(each["file"], int(each["line"]), each["function"]) for each in found)


def relevant_frame(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost frame of ours or of a training library: frames within it are threading, sockets and sleep."""
    of_interest = (each for each in frames if set(PurePath(each.file).parts[:-1]) & set(_RELEVANT))
    return next(of_interest, frames[0] if frames else None)


def is_in_collective(frames: tuple[Frame, ...]) -> bool:
    """Whether a rank certainly waits for others."""
    return any(part in each.file for each in frames for part in _COLLECTIVES)


def may_wait_for_others(frames: tuple[Frame, ...]) -> bool:
    """Whether a rank is in a collective, or in a backward pass, where threads without Python frames may be in one."""
    return is_in_collective(frames) or any(_BACKWARD in each.file for each in frames)
