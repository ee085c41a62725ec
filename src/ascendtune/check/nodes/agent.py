"""The agent on each machine of `doctor --nodes`: examines it, and answers with lines of JSON.

    python -m ascendtune.check.nodes.agent        (started by ascendtune.check.nodes.query)

    it receives                 it sends
    {"clock": true}             {"time": seconds since the epoch}
    {"look": {"env", "directory", "codes", "facts", "ports", "language"}}
                                {"address", "verdict", "trains_on", "findings", "not_applicable", "facts", "ports"}
    {"towards": address}        {"mtu": text or null}
                                (null: towards the asking host)

It ends when the connection ends, and with it the processes that it has started.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from ascendtune.check.doctor.check import Examination, examine, trains_on, verdict
from ascendtune.check.doctor.npu_ports import npu_ports
from ascendtune.check.doctor.system import System
from ascendtune.check.nodes.compared_facts import facts, mtu_towards
from ascendtune.check.nodes.language import say
from ascendtune.check.nodes.node_report import NodePort
from ascendtune.core import language
from ascendtune.core.process_tree import below, send
from ascendtune.job.nodes.handshake_reply import client_address, server_address
from ascendtune.job.nodes.message import BEGIN, decode, encode
from ascendtune.machine.npu.super_pod import SuperPodPlace, read_super_pod

_FACTS_SECONDS = 2.0
"""Time for facts after the checks are done: a driver that hangs delays only its own facts."""


def serve(received: IO[bytes], sent: IO[bytes]) -> None:
    """Answer until `received` ends."""
    messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(received, messages), daemon=True).start()
    system: System | None = None
    sent.write(BEGIN)
    while (message := messages.get()) is not None:
        if "clock" in message:
            answer: dict[str, Any] = {"time": time.time()}
        elif "look" in message:
            system = _system(message["look"])
            with language.using(language.choose(message["look"]["language"], {}, None)):
                answer = {"address": server_address(), **look(system, message["look"])}
        else:
            address = message["towards"] or client_address()
            answer = {"mtu": mtu_towards(system or System(), address) if address else None}
        sent.write(encode(answer))
        sent.flush()


def look(system: System, request: Mapping[str, Any]) -> dict[str, Any]:
    """The findings of the checks `codes` here; the facts and the NPUs' network ports if they are requested."""
    collected: dict[str, str] = {}
    collector = threading.Thread(target=lambda: [collected.update([fact]) for fact in facts(system)], daemon=True)
    if request["facts"]:
        collector.start()
    examination = examine(system, request["codes"]) if request["codes"] else Examination((), ())
    if request["facts"]:
        collector.join(_FACTS_SECONDS)
    return {
        "verdict": verdict(examination, system),
        "trains_on": trains_on(system) or say("no device"),
        "findings": [finding.as_json() for finding in examination.findings],
        "not_applicable": examination.not_applicable,
        "facts": dict(collected),
        "ports": [asdict(each) for each in _ports(system)] if request["ports"] else [],
        "super_pod": asdict(place) if request["ports"] and (place := _super_pod(system)) else None,
    }


def _super_pod(system: System) -> SuperPodPlace | None:
    """The place of this host, as its first chip reports it."""
    for chip in system.npu_smi[0].devices[:1]:
        words = ("info", "-t", "spod-info", "-i", str(chip.npu_id), "-c", str(chip.chip_id))
        return read_super_pod(system.query_npu_smi(*words))
    return None


def _ports(system: System) -> list[NodePort]:
    return [
        NodePort(
            device=port.device,
            address=port.address,
            netmask=port.netmask,
            has_gateway=True if port.gateway else False if port.has_no_gateway else None,
            tls=port.tls,
        )
        for port in npu_ports(system).ports
    ]


def _system(request: Mapping[str, Any]) -> System:
    """This machine as a job would use it that is started with the asking host's directory and environment."""
    os.environ.update(request["env"])
    directory = Path(request["directory"])
    if directory.is_dir():
        os.chdir(directory)
    return System(cwd=directory)


def _listen(received: IO[bytes], messages: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    for line in received:
        if (message := decode(line)) is not None:
            messages.put(message)
    # At once, whatever check is running.
    send(below(os.getpid()), signal.SIGKILL)
    os._exit(0)


def main() -> None:
    # Output of libraries goes to stderr, so that it is not mixed with the answers.
    sent = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, sent)


if __name__ == "__main__":
    main()
