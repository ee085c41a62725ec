"""The first question to hosts: do they answer, and what have they?"""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ascendtune.core.errors import AscendtuneError, MachineError, Stopped
from ascendtune.job.nodes.message import error_of_json
from ascendtune.job.nodes.remote import Heard, RemoteNode, portable

ANSWER_SECONDS = 60.0
_LOOK_EVERY_SECONDS = 0.2

Asked = Callable[[], signal.Signals | None]
"""Whether the user wants to stop meanwhile."""


def greet(
    nodes: Sequence[RemoteNode],
    heard: queue.SimpleQueue[Heard],
    *,
    silence_seconds: float,
    token: Path | None = None,
    asked: Asked = lambda: None,
) -> tuple[dict[RemoteNode, dict[str, Any]], dict[RemoteNode, AscendtuneError]]:
    """What those say that answer, and what keeps the others from it.

    Args:
        silence_seconds: after which a node takes us for lost.
        token: a file that every node must see.

    Raises:
        Stopped: the user wants to stop.
    """
    for number, node in enumerate(nodes):
        node.say(
            job={
                "directory": str(Path.cwd()),
                "env": portable(os.environ),
                "token": str(token) if token else None,
                "node": number,
                "silence_seconds": silence_seconds,
            }
        )
    hellos: dict[RemoteNode, dict[str, Any]] = {}
    troubles: dict[RemoteNode, AscendtuneError] = {}
    deadline = time.monotonic() + ANSWER_SECONDS
    while len(hellos) + len(troubles) < len(nodes):
        said = next_heard(heard, deadline, asked)
        if said is None:
            break
        if said.message is None:
            troubles.setdefault(said.node, said.node.why_gone())
        elif "hello" in said.message:
            hellos[said.node] = {**said.message["hello"], "heard": time.time()}
        elif "refused" in said.message:
            troubles[said.node] = error_of_json(said.message["refused"], said.node.host.name)
    for node in nodes:
        if node not in hellos and node not in troubles:
            troubles[node] = MachineError(
                f"{node.host.name} does not answer within {ANSWER_SECONDS:.0f} s",
                remedy=f"look whether `ssh {node.host.name} {node.python} -V` answers",
                where=node.host.name,
            )
    return hellos, troubles


def next_heard(heard: queue.SimpleQueue[Heard], deadline: float, asked: Asked) -> Heard | None:
    """What is said next; None when nothing is until `deadline`.

    Raises:
        Stopped: the user wants to stop.
    """
    while (now := time.monotonic()) < deadline:
        if number := asked():
            raise Stopped("stopped before it started", remedy="start the same command again", signal_number=number)
        with suppress(queue.Empty):
            return heard.get(timeout=min(_LOOK_EVERY_SECONDS, deadline - now))
    return None
