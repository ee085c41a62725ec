"""Examines several machines at once, each within a time limit."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from functools import partial
from typing import Any

from ascendtune.check.nodes.node_report import NodeReport, NodeReports, report_of_json
from ascendtune.core.errors import AscendtuneError, MachineError
from ascendtune.core.foreign_json import is_number
from ascendtune.core.threads import run_in_daemon_thread
from ascendtune.job.nodes.answers import LAST_SECOND, invalid_answer
from ascendtune.job.nodes.cluster_spec import TargetHost
from ascendtune.job.nodes.connection import HostConnection

AGENT = "ascendtune.check.nodes.agent"
_CLOCK_QUESTIONS = 5
"""Number of clock queries; the fastest answer counts."""
_ROUTE_SECONDS = 5.0
_END_SECONDS = 1.0
_LOOK_SECONDS = 0.1

Show = Callable[[int, int], None]
"""Called with (machines that have answered, all machines)."""


def query_nodes(
    hosts: Sequence[TargetHost],
    look: Mapping[str, Any],
    *,
    limit_seconds: float,
    agent: str = AGENT,
    show: Show = lambda done, total: None,
) -> NodeReports:
    """Let every host examine itself. Errors of hosts are not raised; see `silent`.

    Args:
        look: information for the agent: env, directory, codes, facts, language.
        limit_seconds: time limit from now; a host that has not answered by then counts as silent.
        agent: the module to run there.
    """
    exams = [_HostExam(host, agent) for host in hosts]
    try:
        _together(exams, lambda exam: exam.look(look), limit_seconds, show)
        if look["facts"]:
            _together([exam for exam in exams if exam.reply], _mtu_questions(exams), _ROUTE_SECONDS)
        answers, silent = {}, {}
        for exam in exams:
            answer = exam.result(limit_seconds)
            if isinstance(answer, NodeReport):
                answers[exam.host.name] = answer
            else:
                silent[exam.host.name] = answer
        return NodeReports(answers, silent)
    finally:
        for exam in exams:
            exam.connection.close_stdin()
        deadline = time.monotonic() + _END_SECONDS
        for exam in exams:
            exam.connection.end(max(0.0, deadline - time.monotonic()))


class _HostExam:
    """Questions to one machine and its answers, in turn."""

    def __init__(self, host: TargetHost, agent: str) -> None:
        self.host = host
        self.connection = HostConnection(host, agent)
        self.reply: dict[str, Any] = {}
        """Its complete answer."""
        self._why_not: AscendtuneError | None = None
        self._messages = self.connection.messages()

    def look(self, look: Mapping[str, Any]) -> None:
        clock = self._clock()
        self.reply = {**self._question(look=look), "clock": clock}

    def query_mtu(self, address: str | None) -> None:
        if mtu := self._question(towards=address)["mtu"]:
            self.reply["facts"]["MTU"] = mtu

    def attempt(self, do: Callable[[_HostExam], None]) -> None:
        try:
            do(self)
        except AscendtuneError as error:
            self._why_not = error
        except (AttributeError, KeyError, TypeError, ValueError):
            self._why_not = invalid_answer(self.host.name)

    def result(self, limit_seconds: float) -> NodeReport | AscendtuneError:
        if self.reply:
            try:
                return report_of_json(self.reply)
            except (AttributeError, KeyError, TypeError, ValueError):
                return invalid_answer(self.host.name)
        return self._why_not or MachineError(
            f"{self.host.name} does not answer within {limit_seconds:.0f} s",
            code="host-silent",
            remedy=f"check that passwordless ssh works: ssh {self.host.name} {sys.executable} -V",
            where=self.host.name,
        )

    def _clock(self) -> dict[str, float]:
        """The host's clock at the midpoint between question and answer, with an error of at most half of that time."""
        tried = []
        for _ in range(_CLOCK_QUESTIONS):
            sent, began = time.time(), time.monotonic()
            remote_time = self._question(clock=True)["time"]
            if not is_number(remote_time, 0, LAST_SECOND):
                raise invalid_answer(self.host.name)
            half = (time.monotonic() - began) / 2
            tried.append((half, remote_time - (sent + half)))
        within, ahead = min(tried)
        return {"ahead_seconds": ahead, "within_seconds": within}

    def _question(self, **message: Any) -> dict[str, Any]:
        self.connection.send(**message)
        for answer in self._messages:
            return answer
        raise self.connection.why_ended()


def _together(
    exams: Sequence[_HostExam],
    do: Callable[[_HostExam], None],
    limit_seconds: float,
    show: Show = lambda done, total: None,
) -> None:
    """Call a function for all hosts at the same time. The thread of a late host ends when we hang up."""
    busy = {run_in_daemon_thread(partial(exam.attempt, do)) for exam in exams}
    deadline = time.monotonic() + limit_seconds
    while busy and time.monotonic() < deadline:
        show(len(exams) - len(busy), len(exams))
        _, busy = wait(busy, _LOOK_SECONDS)


def _mtu_questions(exams: Sequence[_HostExam]) -> Callable[[_HostExam], None]:
    """Query each host about its route to the first one; the first about its route to the second."""
    reached = [(exam, exam.reply.get("address")) for exam in exams if exam.reply]

    def query_one(exam: _HostExam) -> None:
        for other, address in reached:
            if other is not exam:
                # A host without an address was not reached by ssh: it is this machine.
                exam.query_mtu(address)
                return

    return query_one
