"""The one module that starts other programs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

from ascendtune.core.captured import MOST_BYTES, capture
from ascendtune.core.end_with_parent import end_with_parent, terminate_with_parent
from ascendtune.core.errors import MachineError, translated_disk_errors
from ascendtune.core.interrupts import stop_signals_deferred
from ascendtune.core.procfs import stats
from ascendtune.core.replaced import replaced
from ascendtune.core.terminal_text import decoded


@dataclass(frozen=True)
class Finished:
    """A program that has ended. `exit_code` is negative for a signal, 127 if the program does not exist."""

    argv: tuple[str, ...]
    exit_code: int
    output: str
    error: str
    timed_out: bool = False


_running: set[subprocess.Popen[bytes]] = set()
"""The programs that `run` waits for, in any thread."""
_starts = threading.Lock()
"""Is held while a program has been started that is not in `_running` yet."""


@contextmanager
def programs_end_with_us() -> Iterator[None]:
    """Context of the main thread that ends the programs that `run` waits for, in any thread, when an exception such as
    Ctrl-C leaves it, and before SIGTERM or SIGHUP ends this process. Signals that are handled or ignored stay so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, _end_with_programs)
    try:
        yield
    except BaseException:
        _kill_running()
        raise
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _end_with_programs(number: int, frame: object) -> None:
    _kill_running()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _kill_running() -> None:
    # Another thread may be starting one. The main thread is not: it has deferred the signal that came meanwhile.
    is_ours = _starts.acquire(timeout=_KILL_SECONDS)
    for process in list(_running):
        _kill_session(process)
    if is_ours:
        _starts.release()


def run(argv: Sequence[str], *, timeout_seconds: float = 30, env: Mapping[str, str] | None = None) -> Finished:
    """Run a program to its end and collect its output. Its failure raises no error; see `exit_code`.

    A program that does not end in time is killed, with every process of its session and their children: vendor tools
    are often scripts, whose own children would keep hanging. Left behind are a program that even SIGKILL does not end,
    because it hangs within a driver, and one in another session whose parent has ended. The same holds when SIGTERM or
    SIGHUP ends this process (if it has other threads: within `programs_end_with_us`); when SIGKILL does, the program
    gets SIGTERM, unless this process has other threads.
    """
    with programs_end_with_us():
        return _run(argv, timeout_seconds, env)


def _run(argv: Sequence[str], timeout_seconds: float, env: Mapping[str, str] | None) -> Finished:
    pipe = subprocess.PIPE
    # With other threads, no Python code may run between fork and exec.
    begin = partial(end_with_parent, os.getpid()) if threading.active_count() == 1 else None
    try:
        with stop_signals_deferred(), _starts:
            process = subprocess.Popen(
                list(argv), stdout=pipe, stderr=pipe, env=env, start_new_session=True, preexec_fn=begin
            )
            _running.add(process)
    except FileNotFoundError:
        return Finished(tuple(argv), 127, "", f"{argv[0]}: not found")
    except PermissionError:
        # Also if no program has this name, and a directory in PATH is closed to this user.
        if shutil.which(argv[0], os.F_OK, (os.environ if env is None else env).get("PATH")) is None:
            return Finished(tuple(argv), 127, "", f"{argv[0]}: not found")
        return Finished(tuple(argv), 126, "", f"{argv[0]}: may not be executed")
    except OSError as error:
        # A program for another architecture, or a script without its first line.
        return Finished(tuple(argv), 126, "", f"{argv[0]}: {error.strerror}")
    try:
        deadline = time.monotonic() + timeout_seconds
        captured = capture([each for each in (process.stdout, process.stderr) if each], deadline)
        output, error_output = map(decoded, captured.contents)
        if captured.is_too_large:
            return Finished(tuple(argv), 124, output, f"more than {MOST_BYTES >> 20} MiB of output")
        if captured.is_late or _code(process, max(0.0, deadline - time.monotonic())) is None:
            return Finished(tuple(argv), 124, output, f"no answer within {timeout_seconds} s", timed_out=True)
    finally:
        _end(process)
        _running.discard(process)
    return Finished(tuple(argv), process.returncode, output, error_output)


def _code(process: subprocess.Popen[bytes], seconds: float | None) -> int | None:
    """The exit code, or None if the program still runs after `seconds`."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    # Not poll(): until the leader is waited for, its process id names this group and no other.
    if process.returncode is None:
        # Beyond the group: `timeout` in a script starts the program in its own group, `setsid` in its own session.
        others = _started_by(process.pid)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        for pid in others:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _started_by(pid: int) -> list[int]:
    """Processes of the session `pid`, and their children as long as their parents live."""
    left, pids = list(stats()), {pid}
    while more := [each for each in left if each.session == pid or each.parent in pids]:
        pids.update(each.pid for each in more)
        left = [each for each in left if each.pid not in pids]
    return [each for each in pids if each != pid]


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        _kill_session(process)
        _code(process, _KILL_SECONDS)
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


def _not_started(argv: Sequence[str], error: OSError, remedy: str = "check that it exists") -> MachineError:
    return MachineError(f"cannot start {argv[0]}: {error.strerror}", code="program-not-started", remedy=remedy)


def replace(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Replace this process by another program: same pid, same terminal, and no parent that waits."""
    try:
        os.execve(argv[0], list(argv), dict(env))
    except OSError as error:
        raise _not_started(argv, error) from error


def run_in_foreground(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a program to its end with our terminal, as a shell does, and return the exit code: 128 + N after signal N.

    The terminal also sends SIGINT to the child, which handles it. SIGTERM and SIGHUP are passed on.

    Raises:
        MachineError: it cannot be started.
    """
    try:
        child = subprocess.Popen(list(argv), env=dict(env), preexec_fn=terminate_with_parent)
    except OSError as error:
        raise _not_started(argv, error) from error
    before = {signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None)}
    for number in (signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, lambda received, _: child.send_signal(received))
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


@contextmanager
def commands_changed(change: Callable[[list[str]], list[str] | None], added: Mapping[str, str]) -> Iterator[None]:
    """Context in which commands that other code starts by `subprocess` or `os.exec*` are passed through `change`.

    Commands for a shell are not changed.

    Args:
        change: returns the command to start instead; None keeps the command.
        added: variables for the changed command, if it has an environment of its own.
    """
    start, exec_with = subprocess.Popen.__init__, os.execve

    def changed(command: Any) -> list[str] | None:
        words = [command] if isinstance(command, str | os.PathLike) else list(command)
        return change([os.fsdecode(each) for each in words])

    def start_changed(process: Any, args: Any, *others: Any, **named: Any) -> None:
        new = None if named.get("shell") or named.get("executable") or others else changed(args)
        if new is not None and named.get("env") is not None:
            named["env"] = {**named["env"], **added}
        start(process, new or args, *others, **named)

    def exec_changed(path: Any, args: Any, env: Any) -> NoReturn:
        new = changed([path, *args[1:]])
        if new is None:
            exec_with(path, args, env)
        exec_with(new[0], new, {**env, **added})

    with (
        replaced(subprocess.Popen, __init__=start_changed),
        replaced(os, execve=exec_changed, execv=lambda path, args: exec_changed(path, args, os.environ)),
    ):
        yield


def start_detached_child(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Start a child of the program that this process becomes: in its own session and directory, with our stderr only.

    Raises:
        MachineError: it cannot be started.
    """
    _InASession(argv, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


class _InASession:
    """A child in its own session: Ctrl-C of the terminal reaches only this process.

    Args:
        remedy: for the error, if it cannot be started.
        how: arguments of Popen.

    Raises:
        MachineError: it cannot be started.
    """

    def __init__(self, argv: Sequence[str], *, remedy: str = "check that it exists", **how: Any) -> None:
        self.argv = tuple(argv)
        try:
            self._process = subprocess.Popen(list(argv), start_new_session=True, **how)
        except OSError as error:
            raise _not_started(argv, error, remedy) from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """The exit code, or None if the child still runs after `timeout_seconds`."""
        return _code(self._process, timeout_seconds)


class Guard(_InASession):
    """A child that outlives this process, to clean up after it: its stdin closes when this process ends for any reason.

    It has its own directory and no output: an open stream would block readers of ours.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        nothing = subprocess.DEVNULL
        super().__init__(argv, env=env, cwd="/", stdin=subprocess.PIPE, stdout=nothing, stderr=nothing)

    def dismiss(self) -> None:
        """End it: there is nothing to clean up."""
        self._process.kill()
        self._process.communicate()


class Child(_InASession):
    """A child to which we pass on signals. It gets SIGTERM when this process ends for any reason."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: Path | None = None,
    ) -> None:
        """
        Args:
            stdin: a descriptor for the child's descriptor 0 (default: /dev/null).
            stdout: a descriptor (default: our stdout).
            stderr: a file to which the child's stderr is appended (default: our stderr).
        """
        with stderr.open("ab") if stderr else nullcontext() as sink:
            super().__init__(
                argv,
                env=env,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=stdout,
                stderr=sink,
                preexec_fn=terminate_with_parent,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send `number` to the child alone."""
        if self._process.poll() is None:
            self._process.send_signal(number)


class LoggedChild(_InASession):
    """A child for a process with threads: no Python code runs between fork and exec.

    The child's stdin ends when `close` is called or this process ends for any reason.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], *, output: Path) -> None:
        """
        Args:
            output: the file to which its stdout and stderr are appended.
        """
        with translated_disk_errors(output, "opening a log"), output.open("ab") as sink:
            super().__init__(argv, env=env, stdin=subprocess.PIPE, stdout=sink, stderr=sink)

    def close(self, timeout_seconds: float) -> None:
        """Close its stdin and wait until it has ended; kill it after the timeout."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self.wait(timeout_seconds) is None:
            self._process.kill()
            self._process.wait()


class PipedChild(_InASession):
    """A child with line-based input and output. It gets SIGTERM when this process ends."""

    def __init__(self, argv: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        super().__init__(
            argv, remedy="install it", stdin=pipe, stdout=pipe, stderr=pipe, preexec_fn=terminate_with_parent
        )

    def send_line(self, line: str) -> bool:
        """Send a line; False if the child no longer reads."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            return False
        return True

    def output_lines(self) -> Iterator[str]:
        """Lines of its stdout, until the child closes it."""
        return self._lines(self._process.stdout)

    def error_lines(self) -> Iterator[str]:
        """Lines of its stderr, until the child closes it."""
        return self._lines(self._process.stderr)

    def close_stdin(self) -> None:
        """Close its stdin: no more lines follow."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def kill(self) -> None:
        """End it and the processes that it has started: ssh would leave behind the ssh of its ProxyJump."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    @staticmethod
    def _lines(stream: IO[bytes] | None) -> Iterator[str]:
        assert stream is not None
        with suppress(OSError, ValueError):
            while line := stream.readline(_LONGEST_LINE):
                yield line.decode(errors="replace").rstrip("\r\n")


_LONGEST_LINE = 16 << 20
"""Bytes; longer lines, which another host may send without end, are split at this length."""
_KILL_SECONDS = 1.0
"""Seconds that a killed program may take to end."""
