"""The one place where other programs are started."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ascendtune.core.errors import MachineError


@dataclass(frozen=True)
class Finished:
    """A program that has ended. `exit_code` is negative for a signal, 127 when the program does not exist."""

    argv: tuple[str, ...]
    exit_code: int
    output: str
    error: str
    timed_out: bool = False


def run(argv: Sequence[str], *, timeout_seconds: float = 30, env: Mapping[str, str] | None = None) -> Finished:
    """Run to the end and collect the output. Never raises for what the program does; look at `exit_code`."""
    try:
        done = subprocess.run(
            list(argv), capture_output=True, timeout=timeout_seconds, env=env, text=True, errors="replace", check=False
        )
    except FileNotFoundError:
        return Finished(tuple(argv), 127, "", f"{argv[0]}: not found")
    except PermissionError:
        return Finished(tuple(argv), 126, "", f"{argv[0]}: may not be executed")
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout.decode(errors="replace") if isinstance(expired.stdout, bytes) else expired.stdout or ""
        return Finished(tuple(argv), 124, output, f"no answer within {timeout_seconds} s", timed_out=True)
    return Finished(tuple(argv), done.returncode, done.stdout, done.stderr)


def replace(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Become another program: same pid, same terminal, no parent left behind to wait."""
    try:
        os.execve(argv[0], list(argv), dict(env))
    except OSError as error:
        raise MachineError(f"cannot start {argv[0]}: {error.strerror}", remedy="check that the file exists") from error


class Child:
    """A child in a session of its own, so that it and everything below it can be ended together."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], *, log: Path | None = None) -> None:
        self.argv = tuple(argv)
        sink = log.open("ab") if log else None
        try:
            self._process = subprocess.Popen(
                list(argv), env=dict(env), start_new_session=True, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL
            )
        except OSError as error:
            raise MachineError(
                f"cannot start {argv[0]}: {error.strerror}", remedy="check that the file exists"
            ) from error
        finally:
            if sink:
                sink.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """The exit code, or None when the child still runs after `timeout_seconds`."""
        try:
            return self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: signal.Signals) -> None:
        """Send `number` to the child alone; it passes the signal on as it sees fit."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def kill_session(self) -> None:
        """SIGKILL to every process group that the child leads; only what this object started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
