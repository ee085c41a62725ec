"""Jobs of several hosts, started and ended from one terminal."""

from __future__ import annotations

import itertools
import queue
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

from ascendtune.core.errors import AscendtuneError, MachineError, Stopped
from ascendtune.core.log import say, warn
from ascendtune.core.rundir import RunDir
from ascendtune.job import registry
from ascendtune.job.nodes.cluster_spec import ClusterSpec
from ascendtune.job.nodes.connection import Inbox, RemoteNode, connected
from ascendtune.job.nodes.gather import ReadyNodes, gather
from ascendtune.job.nodes.handshake import wait_for_reconnect
from ascendtune.job.nodes.message import error_on
from ascendtune.job.nodes.screen import Screen, screen
from ascendtune.job.record import Job
from ascendtune.job.restart import run_to_the_end
from ascendtune.job.result import JobResult, LauncherExit, job_result, record_of
from ascendtune.job.spec import JobSpec, NodePlace
from ascendtune.job.stop_signals import StopSignals

_LEFT_ALONE_SECONDS = 10.0
"""Time for ranks whose peers have failed to notice it and to record the cause."""
_LAST_CHECKPOINT_SECONDS = 30.0
"""Additional time for them to write a checkpoint."""
_KILLED_SECONDS = 30.0
"""Time for a host to end processes that it was told to kill; it may hang within a driver."""


def start(spec: JobSpec, cluster: ClusterSpec) -> JobResult:
    """Run the job on all hosts to its end.

    Args:
        spec: its `nproc` and `kind` are replaced by those of the hosts.

    Raises:
        MachineError: a host cannot be reached, or differs from the others.
    """
    job = registry.register(spec, spec.argv, watched=True, hosts=[host.name for host in cluster.hosts])
    attempts = itertools.count()
    with screen(spec.logs, is_foreign=spec.is_foreign) as shown:
        result = run_to_the_end(
            spec,
            job,
            lambda stop_signals: _attempt(spec, job, cluster, stop_signals, shown, is_restart=next(attempts) > 0),
        )
        shown.finish(was_asked_to_stop=result.exit_code >= 128)
    return result


def _attempt(
    spec: JobSpec, job: Job, cluster: ClusterSpec, stop_signals: StopSignals, screen: Screen, *, is_restart: bool
) -> JobResult:
    before = record_of(spec.run_dir)
    inbox = Inbox()
    try:
        if is_restart:
            wait_for_reconnect(cluster, lambda: stop_signals.first)
        with connected(cluster.hosts, inbox) as nodes:
            gathered = gather(spec, cluster, nodes, inbox, lambda: stop_signals.first)
            registry.note_devices(job, gathered.kind, sum(gathered.nproc))
            for message, node in zip(_starts(spec, gathered), gathered.nodes, strict=True):
                node.send(start=message)
            ending = _Run(spec, gathered, inbox, stop_signals, screen, cluster.silence_seconds).wait_for_exit()
    except Stopped as stopped:
        return JobResult(stopped.exit_code)
    return job_result(spec.run_dir, before, ending, stop_signals.first)


def _starts(spec: JobSpec, gathered: ReadyNodes) -> Iterator[dict[str, Any]]:
    first_rank = 0
    for node_rank, nproc in enumerate(gathered.nproc):
        yield {
            "id": spec.id,
            "argv": spec.argv,
            "run_dir": str(spec.run_dir),
            "nproc": nproc,
            "kind": gathered.kind,
            "variables": dict(spec.variables),
            "on_hang": spec.on_hang,
            "is_foreign": spec.is_foreign,
            "holds_interrupts": spec.holds_interrupts,
            "ranks": list(range(first_rank, first_rank + nproc)),
            "hosts": [node.host.name for node in gathered.nodes],
            "started_from": socket.gethostname(),
            "nnodes": len(gathered.nproc),
            "node_rank": node_rank,
            "master_addr": gathered.master_addr,
            "master_port": gathered.master_port,
        }
        first_rank += nproc


class _Run:
    """Receives the messages of the nodes, and ends all nodes when one has failed."""

    def __init__(
        self,
        spec: JobSpec,
        gathered: ReadyNodes,
        inbox: Inbox,
        stop_signals: StopSignals,
        screen: Screen,
        silence_seconds: float,
    ) -> None:
        self._nodes = gathered.nodes
        self._inbox = inbox
        self._stop_signals = stop_signals
        self._screen = screen
        self._silence_seconds = silence_seconds
        self._run_dir = spec.run_dir
        places = [spec.launcher_log(NodePlace(node_rank=rank)) for rank in range(len(self._nodes))]
        self._logs = dict(zip(self._nodes, places, strict=True))
        self._log_sizes_before = {node: log.stat().st_size if log.exists() else 0 for node, log in self._logs.items()}
        self._failure: LauncherExit | None = None
        self._failed_at = 0.0
        self._hang: dict[str, Any] | None = None
        self._sent: set[str] = set()
        self._kill_sent_at: float | None = None

    def wait_for_exit(self) -> LauncherExit:
        """The exit of the node that failed first; that of any node if none failed."""
        while any(not node.is_over() for node in self._nodes):
            self._listen()
            self._pass_on()
            self._look_for_silence()
        while not self._inbox.empty():
            self._listen()
        if self._hang:
            # No other process writes run.json any more: causes that ranks have recorded meanwhile are effects of their
            # end.
            RunDir(self._run_dir).end_attempt("failed", self._hang)
        return self._failure or LauncherExit(0, None)

    def _listen(self) -> None:
        try:
            received = self._inbox.get(timeout=0.2)
        except queue.Empty:
            return
        node, message = received.node, received.message
        if node not in self._nodes:
            return
        if message is None:
            if not node.is_over():
                self._lose(node, node.why_ended())
        elif "ended" in message:
            node.exit_code = message["ended"]
            self._note_hang(message["hang"])
            if node.exit_code:
                self._fail(LauncherExit(node.exit_code, self._logs[node], self._log_sizes_before[node], node.host.name))
        elif "asked" in message:
            # As a signal to this process; but only once, however many hosts report it: a second one would stop at once.
            if self._stop_signals.first is None:
                say(f"stopped from {node.host.name}")
                signal.raise_signal(signal.Signals(message["asked"]))
        elif "refused" in message:
            self._lose(node, error_on(node.host.name, message["refused"]))
        else:
            self._screen.show(node.host.name, message)

    def _note_hang(self, cause: dict[str, Any] | None) -> None:
        """All hosts report a hang; the cause that names an odd rank is kept."""
        if cause and (self._hang is None or not self._hang["odd_ranks"]):
            self._hang = cause

    def _lose(self, node: RemoteNode, error: AscendtuneError) -> None:
        node.is_gone = True
        lost = LauncherExit(1, None, host=node.host.name, lost=error)
        if self._failure is None or self._failure.lost is None:
            # Ranks on other hosts notice a lost host before this process does: their failures are its effects.
            self._failed_at = self._failed_at or time.monotonic()
            self._failure = lost

    def _fail(self, ending: LauncherExit) -> None:
        # A torchrun that was killed is told of when its ranks have ended, as those of other hosts may have before.
        is_earlier = ending.exit_code < 0 and "kill" not in self._sent
        if self._failure is None or (is_earlier and self._failure.lost is None and self._failure.exit_code >= 0):
            self._failure, self._failed_at = ending, self._failed_at or time.monotonic()

    def _look_for_silence(self) -> None:
        for node in self._nodes:
            if not node.is_over() and node.is_silent(self._silence_seconds):
                name = node.host.name
                error = MachineError(
                    f"{name} has sent nothing for {self._silence_seconds:.0f} s",
                    code="host-lost",
                    remedy="check that machine and the network to it; with --max-restarts and --min-nodes a job "
                    "continues without it",
                    where=name,
                )
                self._lose(node, error)

    def _pass_on(self) -> None:
        """Send the user's stop signals to the nodes, and after a failure the signals that end the other nodes."""
        if self._stop_signals.again:
            self._send_once("kill", kill=True)
        elif self._stop_signals.first:
            self._send_once("asked", signal=int(self._stop_signals.first), by_user=True)
        if self._failure:
            since = time.monotonic() - self._failed_at
            if since > _LEFT_ALONE_SECONDS:
                self._send_once("stop", signal=int(signal.SIGTERM), by_user=False)
            if since > _LEFT_ALONE_SECONDS + _LAST_CHECKPOINT_SECONDS:
                self._send_once("kill", kill=True)
        if self._kill_sent_at is not None and time.monotonic() - self._kill_sent_at > _KILLED_SECONDS:
            self._leave_behind()

    def _leave_behind(self) -> None:
        """Do not wait any longer for hosts whose processes do not end."""
        for node in self._nodes:
            if not node.is_over():
                node.is_gone = True
                name = node.host.name
                error = MachineError(
                    f"the processes on {name} do not end",
                    code="processes-left",
                    remedy="run `ascendtune jobs cleanup` there",
                    where=name,
                )
                warn(f"{error.what}: {error.remedy}")
                self._failure = self._failure or LauncherExit(1, None, host=name, lost=error)

    def _send_once(self, kind: str, **message: Any) -> None:
        if kind not in self._sent:
            self._sent.add(kind)
            self._kill_sent_at = time.monotonic() if kind == "kill" else self._kill_sent_at
            for node in self._nodes:
                if not node.is_over():
                    node.send(**message)
