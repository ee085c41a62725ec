"""The transport to other hosts: a module runs there over ssh, and both sides send one JSON object per line."""

from __future__ import annotations

import os
import queue
import re
import shlex
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ascendtune.core.errors import MachineError
from ascendtune.core.process import PipedChild
from ascendtune.job.nodes.answers import checked
from ascendtune.job.nodes.cluster_spec import TargetHost
from ascendtune.job.nodes.message import ALIVE, ALIVE_EVERY_SECONDS, decode, encode

_CONNECT_SECONDS = 10
_ERROR_LINES_KEPT = 20
_END_SECONDS = 3.0
_EXIT_CODE_OF_SSH = 255
_MOST_WAITING = 256
"""Messages of all nodes that wait to be handled."""
_WAIT_SECONDS = 1.0
"""Time for a process that has closed its output to end."""

# Variables that are valid for one machine, or one login, only.
_OF_THIS_MACHINE = re.compile(
    r"HOME|USER|LOGNAME|SHELL|MAIL|HOSTNAME|HOST|PWD|OLDPWD|SHLVL|_|TERM|TTY|COLUMNS|LINES|DISPLAY|XAUTHORITY|TMPDIR"
    r"|LS_COLORS|HCCL_IF_IP|RANK_TABLE_FILE|(SSH|XDG|DBUS|TMUX|STY|INVOCATION|SYSTEMD|JOURNAL)(_.*)?"
)


class HostConnection:
    """`python -m module` on a host: over ssh, or as a child if the host is this machine. Connects on construction.

    Args:
        python: the interpreter on the host.
        on_error_line: called from a thread with each line of the module's stderr, which also has ssh's messages.
    """

    def __init__(
        self,
        host: TargetHost,
        module: str,
        *,
        python: str = sys.executable,
        on_error_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.host = host
        self.python = python
        self._on_error_line = on_error_line
        self._error_lines = deque[str](maxlen=_ERROR_LINES_KEPT)
        self._child = PipedChild(module_on(host, module, python))
        self._collector = threading.Thread(target=self._collect, daemon=True)
        self._collector.start()

    def send(self, **message: Any) -> None:
        """Send one message; does nothing if the connection has ended."""
        self._child.send_line(encode(message).decode().rstrip("\n"))

    def messages(self) -> Iterator[dict[str, Any]]:
        """The messages of the host, until the connection ends. Lines that are not messages are skipped."""
        for line in self._child.output_lines():
            if (message := decode(line)) is not None:
                yield message

    def why_ended(self) -> MachineError:
        """The reason why the connection ended, with ssh's message if there is one."""
        self._collector.join(_WAIT_SECONDS)
        return why_ended(self.host, self.python, self._child.wait(_WAIT_SECONDS), list(self._error_lines))

    def close_stdin(self) -> None:
        """Close the host's stdin: its module stops by itself."""
        self._child.close_stdin()

    def end(self, within_seconds: float = _END_SECONDS) -> None:
        """Hang up, and kill the process if it has not ended after `within_seconds`."""
        self.close_stdin()
        if self._child.wait(within_seconds) is None:
            self._child.kill()
            self._child.wait(_WAIT_SECONDS)

    def _collect(self) -> None:
        for line in self._child.error_lines():
            self._error_lines.append(line)
            self._on_error_line(line)


@dataclass(frozen=True)
class Received:
    """A message of a node; `message` is None if its connection has ended."""

    node: RemoteNode
    message: dict[str, Any] | None


class Inbox(queue.Queue[Received]):
    """The messages of all nodes. Bounded: a node that sends faster than they are handled waits, and drops lines."""

    def __init__(self) -> None:
        super().__init__(_MOST_WAITING)


class RemoteNode(HostConnection):
    """A node of a job on another host. A thread receives its messages and puts them into `inbox`."""

    def __init__(self, host: TargetHost, inbox: Inbox, python: str = sys.executable) -> None:
        self.last_received = time.monotonic()
        self.exit_code: int | None = None
        """Exit code of the launcher, once it has ended."""
        self.is_gone = False
        self._invalid_answer: MachineError | None = None
        self._inbox = inbox
        self._is_ended = False
        super().__init__(
            host,
            "ascendtune.job.nodes.agent",
            python=python,
            on_error_line=lambda line: self._put({"complaint": line}),
        )
        threading.Thread(target=self._receive, daemon=True).start()

    def why_ended(self) -> MachineError:
        """The reason why the connection ended; nothing is read after an invalid answer."""
        return self._invalid_answer or super().why_ended()

    def end(self, within_seconds: float = _END_SECONDS) -> None:
        self._is_ended = True
        super().end(within_seconds)

    def is_over(self) -> bool:
        """Whether the node has ended or cannot be reached any more."""
        return self.exit_code is not None or self.is_gone

    def is_silent(self, seconds: float) -> bool:
        """Whether no message has arrived for `seconds`."""
        return time.monotonic() - self.last_received > seconds

    def _receive(self) -> None:
        for message in self.messages():
            self.last_received = time.monotonic()
            try:
                answer = checked(message, self.host.name)
            except MachineError as error:
                self._invalid_answer = error
                break
            if answer is not None:
                self._put(answer)
        self._put(None)

    def _put(self, message: dict[str, Any] | None) -> None:
        """Wait until the inbox has room; after `end` messages are dropped, since they are not read any more."""
        while not self._is_ended:
            with suppress(queue.Full):
                self._inbox.put(Received(self, message), timeout=_WAIT_SECONDS)
                return


@contextmanager
def connected(hosts: Sequence[TargetHost], inbox: Inbox) -> Iterator[Sequence[RemoteNode]]:
    """Context with connections to hosts, to which a sign of life is sent every two seconds."""
    nodes = [RemoteNode(host, inbox) for host in hosts]
    over = threading.Event()

    def send_alive() -> None:
        # Not in the main thread, which blocks while the terminal is paused with Ctrl-S.
        while not over.wait(ALIVE_EVERY_SECONDS):
            for node in nodes:
                node.send(**ALIVE)

    threading.Thread(target=send_alive, daemon=True).start()
    try:
        yield nodes
    finally:
        over.set()
        # At the same time: each host may take seconds to notice, or never notice.
        endings = [threading.Thread(target=node.end) for node in nodes]
        for ending in endings:
            ending.start()
        for ending in endings:
            ending.join()


def portable_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The part of our environment that is also valid on other machines.

    A command over ssh has none of the variables that the shell's start-up files or CANN's set_env.sh set.
    """
    return {name: value for name, value in env.items() if not _OF_THIS_MACHINE.fullmatch(name)}


def module_on(host: TargetHost, module: str, python: str = sys.executable) -> Sequence[str]:
    """The command that runs `python -m module` on `host`, over ssh unless it is this machine; ssh asks no questions."""
    # -P: Python files of the working directory are not imported.
    words = [python, "-P", "-m", module]
    if host.name in ("localhost", socket.gethostname()):
        return words
    # The login shell there reads the words after the name. PYTHONPATH makes this package importable.
    path = os.environ.get("PYTHONPATH")
    words = [*(["env", f"PYTHONPATH={path}"] if path else []), *words]
    return [
        "ssh",
        *("-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_SECONDS}"),
        *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
        *(host.name, shlex.join(["exec", *words])),
    ]


def why_ended(host: TargetHost, python: str, exit_code: int | None, error_lines: Sequence[str]) -> MachineError:
    """The reason why the command of `module_on` has ended.

    Args:
        error_lines: its stderr: messages of ssh, the login shell and python.
    """
    name, message = host.name, " ".join(error_lines[-3:])
    # ssh itself ends with 255; then it complains of files here, such as a missing key.
    if exit_code == 127 or ("No such file or directory" in message and exit_code != _EXIT_CODE_OF_SSH):
        return MachineError(
            f"{name} has no {python}",
            code="host-without-python",
            remedy="install ascendtune at the same path on every node, or share its environment between them",
            where=name,
        )
    if "No module named" in message:
        return MachineError(
            f"{name}: {message}",
            code="host-without-ascendtune",
            remedy="install ascendtune there, in the same version",
            where=f"{name}:{python}",
        )
    return MachineError(
        f"the connection to {name} has ended{f': {message}' if message else ''}",
        code="host-connection-ended",
        remedy=f"check that the machine is up and that passwordless ssh works: ssh {name} true",
        where=name,
    )
