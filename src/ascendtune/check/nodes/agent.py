"""Runs on each machine of `doctor --nodes`: looks at it, and answers in lines of JSON.

    python -m ascendtune.check.nodes.agent        (started by ascendtune.check.nodes.query)

    it receives                 it sends
    {"clock": true}             {"time": seconds since the epoch}
    {"look": {"env", "directory", "codes", "facts", "language"}}
                                {"address", "verdict", "trains_on", "findings", "not_applicable", "facts"}
    {"towards": address}        {"mtu": text or null}
                                (null: towards the asking host)

When the connection ends it ends, and with it the processes that it has started.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from ascendtune.check.doctor.check import Examination, examine, trains_on, verdict
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.nodes.facts import facts, mtu_towards
from ascendtune.check.nodes.language import say
from ascendtune.core import language
from ascendtune.core.process_tree import below, send
from ascendtune.job.nodes.handshake_reply import client_address, server_address
from ascendtune.job.nodes.message import BEGIN, decode, encode

_FACTS_SECONDS = 2.0
"""How long facts may take after the checks are done: a driver that hangs delays only its own facts."""


def serve(received: IO[bytes], sent: IO[bytes]) -> None:
    """Answer until `received` ends."""
    messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(received, messages), daemon=True).start()
    outside: Outside | None = None
    sent.write(BEGIN)
    while (message := messages.get()) is not None:
        if "clock" in message:
            answer: dict[str, Any] = {"time": time.time()}
        elif "look" in message:
            outside = _outside(message["look"])
            with language.using(language.choose(message["look"]["language"], {}, None)):
                answer = {"address": server_address(), **look(outside, message["look"])}
        else:
            address = message["towards"] or client_address()
            answer = {"mtu": mtu_towards(outside or Outside(), address) if address else None}
        sent.write(encode(answer))
        sent.flush()


def look(outside: Outside, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What the checks `codes` find here, and the facts where they are asked for."""
    told: dict[str, str] = {}
    telling = threading.Thread(target=lambda: [told.update([fact]) for fact in facts(outside)], daemon=True)
    if asked["facts"]:
        telling.start()
    examination = examine(outside, asked["codes"]) if asked["codes"] else Examination((), ())
    if asked["facts"]:
        telling.join(_FACTS_SECONDS)
    return {
        "verdict": verdict(examination, outside),
        "trains_on": trains_on(outside) or say("no device"),
        "findings": [finding.as_json() for finding in examination.findings],
        "not_applicable": examination.not_applicable,
        "facts": dict(told),
    }


def _outside(asked: Mapping[str, Any]) -> Outside:
    """This machine as a job would find it that is started from the directory and with the environment of the asker."""
    os.environ.update(asked["env"])
    directory = Path(asked["directory"])
    if directory.is_dir():
        os.chdir(directory)
    return Outside(cwd=directory)


def _listen(received: IO[bytes], messages: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    for line in received:
        if (message := decode(line)) is not None:
            messages.put(message)
    # At once, whatever is being looked at.
    send(below(os.getpid()), signal.SIGKILL)
    os._exit(0)


def main() -> None:
    # Output of libraries goes to stderr, so that it does not mix with the answers.
    sent = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, sent)


if __name__ == "__main__":
    main()
