"""The agent on each host of a job that is started from one terminal: runs one node's part, controlled by JSON lines.

    python -m ascendtune.job.nodes.agent        (started by ascendtune.job.backend.ssh)

    it receives                                     it sends
    {"job": …}          from where, for whom        {"hello": …} or {"refused": …}
    {"peers": [addr]}   how the others are reached  {"endpoint": {"address", "port"}}   asked of node 0 only
    {"start": …}        what, and the node's place  {"out": text}, {"err": text} of rank 0, {"rank": N, "line": text}
                                                    {"asked": 2} by `jobs stop` on this host
                                                    {"left_out": lines of rank 0 dropped, as the connection was slow}
    {"signal": 15, "by_user": true}, {"kill": true} {"ended": exit code, "hang": why it was ended, or null}
    {"alive": true}     every two seconds           {"alive": true}

If no message arrives for `silence_seconds`, or the connection ends, the starting host is gone or out of reach: the
workers are asked to stop as by a user, and killed if they do not.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ascendtune.core import log
from ascendtune.core.errors import AscendtuneError, MachineError, error_to_json, translated_disk_errors
from ascendtune.core.log import warn
from ascendtune.core.rundir import RunDir
from ascendtune.job import registry
from ascendtune.job.command import command
from ascendtune.job.environment import local_environment, record_environment
from ascendtune.job.hang.watcher import StopMethods, Watcher
from ascendtune.job.launcher import Launcher
from ascendtune.job.nodes.handshake_reply import describe_host, endpoint, place_of
from ascendtune.job.nodes.log_queue import LogQueue
from ascendtune.job.nodes.log_streams import LogSource, LogStreams, message_of
from ascendtune.job.nodes.message import ALIVE, ALIVE_EVERY_SECONDS, BEGIN, decode, encode
from ascendtune.job.result import shell_exit_code
from ascendtune.job.spec import JobSpec, NodePlace

_LAST_CHECKPOINT_SECONDS = 60.0


class Node:
    """One node's part of a job.

    Args:
        received, sent: streams from and to the starting host.
    """

    def __init__(self, received: IO[bytes], sent: IO[bytes]) -> None:
        self._sent = sent
        # A blocked connection must stop neither the ranks nor this thread, which watches them.
        self._outbox = LogQueue[LogSource](self._pass_on)
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._last_received = time.monotonic()
        self._silence_seconds = float("inf")
        self._is_abandoned = False
        threading.Thread(target=self._listen, args=(received,), daemon=True).start()
        threading.Thread(target=self._live, daemon=True).start()

    def run(self) -> None:
        """Process messages until the part is over or the starting host is gone."""
        self._outbox.put(None, BEGIN.decode())
        self._answer()
        self._outbox.finish(self.is_abandoned)

    def _answer(self) -> None:
        job: dict[str, Any] = {}
        while (message := self._next()) is not None:
            try:
                if "job" in message:
                    job = message["job"]
                    self._silence_seconds = job["silence_seconds"]
                    self._send(hello=describe_host(job))
                elif "peers" in message:
                    self._send(endpoint=endpoint(message["peers"], job["env"]))
                elif "start" in message:
                    self._start(message["start"], job["env"])
                    return
            except AscendtuneError as error:
                self._send(refused=error_to_json(error))
                return

    def _next(self) -> dict[str, Any] | None:
        """The next message; None if there will be none."""
        while not self.is_abandoned():
            with suppress(queue.Empty):
                return self._messages.get(timeout=ALIVE_EVERY_SECONDS)
        return None

    def _start(self, start: dict[str, Any], env: dict[str, str]) -> None:
        spec = JobSpec(
            tuple(start["argv"]),
            Path(start["run_dir"]),
            start["nproc"],
            start["kind"],
            variables=start["variables"],
            on_hang=start["on_hang"],
            is_foreign=start["is_foreign"],
            holds_interrupts=start["holds_interrupts"],
            id=start["id"],
        )
        user, place = {**os.environ, **env}, place_of(start)
        env = local_environment(spec, user, place)
        record_environment(spec, env, user, place)
        with joined(spec, start["hosts"], start["started_from"]) as ended_with:
            ended_with(self._run_ranks(spec, place, user, env, start["ranks"]))

    def _run_ranks(
        self, spec: JobSpec, place: NodePlace, user: dict[str, str], env: dict[str, str], ranks: list[int]
    ) -> int:
        """Run the ranks of this host to their end; returns the exit code of the job on this host."""
        argv, log_file = command(spec, user, place), spec.launcher_log(place)
        log_streams = LogStreams(self._outbox, spec.logs, [rank for rank in ranks if rank or spec.is_foreign])
        with translated_disk_errors(spec.logs, "opening a log"):
            launcher = Launcher(
                argv,
                env,
                stdin=log_streams.err,
                stdout=log_streams.out,
                stderr=log_file,
                scratch=spec.agent_directory(place),
            )
        log_streams.begin()
        watch = _Watch(self, launcher)
        watcher = Watcher(
            spec.run_dir, spec.on_hang, StopMethods(launcher.signal_workers, launcher.kill), launcher.workers
        )
        while (exit_code := launcher.wait()) is None:
            watch.look()
            watcher.look()
            log_streams.look()
        launcher.end_descendants(watch.look)
        watcher.close()
        log_streams.finish(lambda: watch.look() or self.is_abandoned())
        self._send(ended=exit_code, hang=watcher.cause)
        # As on the starting host: a job that its user stopped has neither failed nor finished, whichever torchrun says.
        if watch.stop_signal and (exit_code or not (spec.is_foreign or _has_finished(spec.run_dir))):
            return 128 + watch.stop_signal
        return shell_exit_code(exit_code)

    def forward_stop_signal(self, number: int) -> None:
        """Report a request, by a command on this host, to stop the job: the starting host passes it on to all nodes."""
        self._send(asked=number)

    def pending(self) -> list[dict[str, Any]]:
        """The messages received since the last call."""
        found = []
        while not self._messages.empty():
            if (message := self._messages.get()) is not None:
                found.append(message)
        return found

    def is_abandoned(self) -> bool:
        """Whether the starting host is gone, or out of reach."""
        return self._is_abandoned or time.monotonic() - self._last_received > self._silence_seconds

    def _send(self, **message: Any) -> None:
        self._outbox.put(None, encode(message).decode())

    def _pass_on(self, source: LogSource | None, what: str | int) -> None:
        try:
            self._sent.write(encode(message_of(source, what)) if source else str(what).encode())
            self._sent.flush()
        except (OSError, ValueError):
            self._is_abandoned = True

    def _listen(self, received: IO[bytes]) -> None:
        for line in received:
            self._last_received = time.monotonic()
            message = decode(line)
            if message is not None and message != ALIVE:
                self._messages.put(message)
        self._is_abandoned = True
        self._messages.put(None)

    def _live(self) -> None:
        while True:
            time.sleep(ALIVE_EVERY_SECONDS)
            self._send(**ALIVE)


def _has_finished(run_dir: Path) -> bool:
    return RunDir(run_dir).read_if_any().get("state") == "finished"


class _Watch:
    """Sends the requested signals to the processes, and ends them when the starting host is gone."""

    def __init__(self, node: Node, launcher: Launcher) -> None:
        self._node = node
        self._launcher = launcher
        self._left_since: float | None = None
        self.stop_signal: signal.Signals | None = None
        """The signal with which the user stopped the job."""

    def look(self) -> bool:
        """Handle pending messages, and end the processes if the starting host is gone; True if they were killed."""
        for message in self._node.pending():
            if "signal" in message:
                self._launcher.signal_workers(signal.Signals(message["signal"]))
                if message["by_user"]:
                    self.stop_signal = signal.Signals(message["signal"])
            if "kill" in message:
                self._launcher.kill()
                return True
        if self._left_since is None:
            if self._node.is_abandoned():
                self._left_since = time.monotonic()
                self._launcher.signal_workers(signal.SIGTERM)
        elif time.monotonic() - self._left_since > _LAST_CHECKPOINT_SECONDS:
            self._launcher.kill()
            return True
        return False


@contextmanager
def joined(spec: JobSpec, hosts: Sequence[str], started_from: str) -> Iterator[Callable[[int], None]]:
    """Record that this process runs a part of the job, and its end; yields a function for the exit code.

    If the registry already has the job from its starter (on this machine, or in a home directory that hosts share), or
    cannot be written, the job continues without a record.
    """
    known = [job for job in registry.jobs() if job.id == spec.id]
    if any(job.started_from is None for job in known):
        yield lambda exit_code: None
        return
    try:
        job = registry.register(spec, spec.argv, watched=True, hosts=hosts, started_from=started_from)
    except MachineError as error:
        warn(f"`ascendtune jobs` will not list the job on this host: {error.what}")
        yield lambda exit_code: None
        return
    with registry.closing(job) as ended_with:
        yield ended_with


def main() -> None:
    # The end of the connection is detected at its streams. Not SIG_IGN, which programs would inherit: torchrun would
    # miss a Ctrl-C that arrives while it is being imported.
    node = Node(sys.stdin.buffer, sys.stdout.buffer)
    signal.signal(signal.SIGHUP, lambda *_: None)
    signal.signal(signal.SIGINT, lambda number, _: node.forward_stop_signal(number))
    # Our log messages go to stderr, which is shown with the host's name.
    log.set_up()
    try:
        node.run()
    except BaseException:  # noqa: BLE001  # nothing else reports it
        traceback.print_exc()
    # A thread may still wait for a line, and have a lock that the interpreter needs to end.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
