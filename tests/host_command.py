"""The command of a session of ssh on a simulated host (`ForceCommand` of tests/cluster.py).

    python -I -S host_command.py SOCKET

A program of ascendtune is forked from the process behind SOCKET, which has imported the libraries (tests/preloaded.py),
into the namespaces of this host; this process stands for it towards sshd, and ends as it ends. The login shell runs
everything else.
"""

from __future__ import annotations

import array
import json
import os
import shlex
import signal
import socket
import sys

_NAMESPACES = ("net", "uts", "mnt")


def main() -> None:
    command = os.environ.pop("SSH_ORIGINAL_COMMAND")
    # Where no locale is set, this interpreter has set it.
    os.environ.pop("LC_CTYPE", None)
    status = _status_of_forked(*_program(command))
    if status is None:
        os.execv(os.environ["SHELL"], [os.environ["SHELL"], "-c", command])
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    sys.exit(os.waitstatus_to_exitcode(status))


def _program(command: str) -> tuple[list[str], dict[str, str]]:
    """The words of `exec env NAME=VALUE … PROGRAM …`, and its environment."""
    words, env = shlex.split(command), dict(os.environ)
    if words[:1] == ["exec"]:
        del words[0]
    if words[:1] == ["env"]:
        del words[0]
        while words and "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            env[name] = value
    return words, env


def _status_of_forked(argv: list[str], env: dict[str, str]) -> int | None:
    """As os.waitpid gives it; None if it cannot be forked."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        try:
            server.connect(sys.argv[1])
        except OSError:
            return None
        descriptors = [0, 1, 2, *(os.open(f"/proc/self/ns/{each}", os.O_RDONLY) for each in _NAMESPACES)]
        request = json.dumps({"argv": argv, "env": env, "cwd": os.getcwd()}).encode()  # noqa: PTH109  # imports less
        server.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])
        if server.recv(32) != b"started":
            return None
        # The streams are those of the program alone: sshd waits for their end.
        nothing = os.open(os.devnull, os.O_RDWR)
        for each in (0, 1, 2):
            os.dup2(nothing, each)
        return int(server.recv(32) or signal.SIGKILL)


if __name__ == "__main__":
    main()
