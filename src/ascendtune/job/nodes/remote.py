"""A node on another host, as the machine sees it that started the job."""

from __future__ import annotations

import os
import queue
import re
import shlex
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ascendtune.core.errors import AscendtuneError, MachineError
from ascendtune.core.process import Dialogue
from ascendtune.job.nodes.hosts import Host
from ascendtune.job.nodes.message import ALIVE, decode, encode

_CONNECT_SECONDS = 10
_COMPLAINTS_KEPT = 20

# What is true of one machine, or of one login, only.
_OF_THIS_MACHINE = re.compile(
    r"HOME|USER|LOGNAME|SHELL|MAIL|HOSTNAME|HOST|PWD|OLDPWD|SHLVL|_|TERM|TTY|COLUMNS|LINES|DISPLAY|XAUTHORITY|TMPDIR"
    r"|LS_COLORS|HCCL_IF_IP|RANK_TABLE_FILE|(SSH|XDG|DBUS|TMUX|STY|INVOCATION|SYSTEMD|JOURNAL)(_.*)?"
)


@dataclass(frozen=True)
class Heard:
    """What a node says; `message` is None when its connection has ended."""

    node: RemoteNode
    message: dict[str, Any] | None


@dataclass(eq=False)
class RemoteNode:
    """A connection to one host, with threads that listen; everything heard goes into `heard`.

    Made, it is connecting: whether it succeeds is heard.
    """

    host: Host
    heard: queue.SimpleQueue[Heard]
    python: str = sys.executable
    last_heard: float = field(default_factory=time.monotonic, init=False)
    exit_code: int | None = field(default=None, init=False)
    """The launcher's, once it has ended."""
    is_gone: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._complaints: list[str] = []
        self._dialogue = Dialogue(module_on(self.host, "ascendtune.job.nodes.agent", self.python))
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._collector = threading.Thread(target=self._collect, daemon=True)
        self._listener.start()
        self._collector.start()

    def say(self, **message: Any) -> None:
        self._dialogue.say(encode(message).decode().rstrip("\n"))

    def is_over(self) -> bool:
        """Whether nothing runs there any more that we could reach."""
        return self.exit_code is not None or self.is_gone

    def is_silent(self, seconds: float) -> bool:
        return time.monotonic() - self.last_heard > seconds

    def why_gone(self) -> AscendtuneError:
        """Why the connection ended, in the words of ssh where it has some."""
        self._collector.join(1)
        return why_ended(self.host, self.python, self._dialogue.wait(1), self._complaints)

    def end(self) -> None:
        """Hang up: what still runs there stops itself."""
        self._dialogue.hang_up()
        if self._dialogue.wait(3) is None:
            self._dialogue.kill()
            self._dialogue.wait(1)

    def _listen(self) -> None:
        for line in self._dialogue.answers():
            self.last_heard = time.monotonic()
            message = decode(line)
            if message is not None and message != ALIVE:
                self.heard.put(Heard(self, message))
        self.heard.put(Heard(self, None))

    def _collect(self) -> None:
        for line in self._dialogue.complaints():
            self._complaints = [*self._complaints, line][-_COMPLAINTS_KEPT:]
            self.heard.put(Heard(self, {"complaint": line}))


def portable(env: Mapping[str, str]) -> dict[str, str]:
    """What of our environment holds on other machines too.

    A command over ssh finds none of what the shell's start-up files or CANN's set_env.sh have set.
    """
    return {name: value for name, value in env.items() if not _OF_THIS_MACHINE.fullmatch(name)}


def module_on(host: Host, module: str, python: str = sys.executable) -> Sequence[str]:
    """The command that runs `python -m module` on `host`, over ssh unless it is this machine; nothing is asked for."""
    words = [python, "-m", module]
    if host.name in ("localhost", socket.gethostname()):
        return words
    # What follows the name goes through the login shell there. The variables carry what python needs to find us.
    path = os.environ.get("PYTHONPATH")
    words = [*(["env", f"PYTHONPATH={path}"] if path else []), *words]
    return [
        "ssh",
        *("-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_SECONDS}"),
        *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
        *(host.name, shlex.join(["exec", *words])),
    ]


def why_ended(host: Host, python: str, exit_code: int | None, complaints: Sequence[str]) -> MachineError:
    """Why the program that `module_on` names has ended, in the words of ssh where it has some.

    Args:
        complaints: the lines of its stderr.
    """
    name, said = host.name, " ".join(complaints[-3:])
    if exit_code == 127 or "No such file or directory" in said:
        return MachineError(
            f"{name} has no {python}",
            remedy="install ascendtune at the same path on every node, or share its environment between them",
            where=name,
        )
    if "No module named" in said:
        return MachineError(
            f"{name}: {said}", remedy="install ascendtune there, in the same version", where=f"{name}:{python}"
        )
    return MachineError(
        f"the connection to {name} has ended{f': {said}' if said else ''}",
        remedy=f"check that the machine is up and that passwordless ssh works: ssh {name} true",
        where=name,
    )
