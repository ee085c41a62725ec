"""Ask several machines at once how they are, each within a time limit."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ascendtune.check.nodes.answer import Answer, Nodes, answer_of_json
from ascendtune.core.errors import AscendtuneError, MachineError
from ascendtune.core.process import Dialogue
from ascendtune.job.nodes.hosts import Host
from ascendtune.job.nodes.message import decode, encode
from ascendtune.job.nodes.remote import module_on, why_ended

AGENT = "ascendtune.check.nodes.agent"
_CLOCK_QUESTIONS = 5
"""Of which the quickest counts."""
_ROUTE_SECONDS = 5.0
_END_SECONDS = 1.0
_LOOK_SECONDS = 0.1

Show = Callable[[int, int], None]
"""(machines that have answered, all)"""


def ask(
    hosts: Sequence[Host],
    look: Mapping[str, Any],
    *,
    limit_seconds: float,
    agent: str = AGENT,
    show: Show = lambda done, total: None,
) -> Nodes:
    """Let every host look at itself. Never raises for what hosts do; see `silent`.

    Args:
        look: what the agent needs to know: env, directory, codes, facts.
        limit_seconds: from now; who has not answered by then counts as silent.
        agent: the module that runs there.
    """
    talks = [_Talk(host, agent) for host in hosts]
    try:
        _together(talks, lambda talk: talk.look(look), limit_seconds, show)
        if look["facts"]:
            _together([talk for talk in talks if talk.said], _towards(talks), _ROUTE_SECONDS)
        answers, silent = {}, {}
        for talk in talks:
            answer = talk.result(limit_seconds)
            if isinstance(answer, Answer):
                answers[talk.host.name] = answer
            else:
                silent[talk.host.name] = answer
        return Nodes(answers, silent)
    finally:
        for talk in talks:
            talk.hang_up()
        deadline = time.monotonic() + _END_SECONDS
        for talk in talks:
            talk.end(max(0.0, deadline - time.monotonic()))


class _Talk:
    """With one machine: questions and answers in turn."""

    def __init__(self, host: Host, agent: str) -> None:
        self.host = host
        self.said: dict[str, Any] = {}
        """What it has answered, whole."""
        self._why_not: AscendtuneError | None = None
        self._complaints: list[str] = []
        self._dialogue = Dialogue(module_on(host, agent))
        self._lines = self._dialogue.answers()
        self._collector = threading.Thread(target=self._collect, daemon=True)

    def look(self, look: Mapping[str, Any]) -> None:
        self._collector.start()
        clock = self._clock()
        self.said = {**self._question(look=look), "clock": clock}

    def towards(self, address: str | None) -> None:
        if mtu := self._question(towards=address)["mtu"]:
            self.said["facts"]["MTU"] = mtu

    def try_to(self, do: Callable[[_Talk], None]) -> None:
        try:
            do(self)
        except AscendtuneError as error:
            self._why_not = error
        except (KeyError, TypeError, ValueError):
            self._why_not = _other_version(self.host)

    def result(self, limit_seconds: float) -> Answer | AscendtuneError:
        if self.said:
            try:
                return answer_of_json(self.said)
            except (KeyError, TypeError, ValueError):
                return _other_version(self.host)
        return self._why_not or MachineError(
            f"{self.host.name} does not answer within {limit_seconds:.0f} s",
            remedy=f"look whether `ssh {self.host.name} {sys.executable} -V` answers",
            where=self.host.name,
        )

    def hang_up(self) -> None:
        self._dialogue.hang_up()

    def end(self, within_seconds: float) -> None:
        if self._dialogue.wait(within_seconds) is None:
            self._dialogue.kill()
            self._dialogue.wait(_END_SECONDS)

    def _clock(self) -> dict[str, float]:
        """The time between two of our own looks was half over, give or take that half, when it read its clock."""
        tried = []
        for _ in range(_CLOCK_QUESTIONS):
            sent, began = time.time(), time.monotonic()
            theirs = float(self._question(clock=True)["time"])
            half = (time.monotonic() - began) / 2
            tried.append((half, theirs - (sent + half)))
        within, ahead = min(tried)
        return {"ahead_seconds": ahead, "within_seconds": within}

    def _question(self, **message: Any) -> dict[str, Any]:
        self._dialogue.say(encode(message).decode().rstrip("\n"))
        for line in self._lines:
            if (answer := decode(line)) is not None:
                return answer
        self._collector.join(_END_SECONDS)
        raise why_ended(self.host, sys.executable, self._dialogue.wait(_END_SECONDS), self._complaints)

    def _collect(self) -> None:
        for line in self._dialogue.complaints():
            self._complaints.append(line)


def _together(
    talks: Sequence[_Talk], do: Callable[[_Talk], None], limit_seconds: float, show: Show = lambda done, total: None
) -> None:
    """With all at the same time. Who is late stays behind with its thread, which ends when we hang up."""
    threads = [threading.Thread(target=talk.try_to, args=(do,), daemon=True) for talk in talks]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit_seconds
    while (busy := [thread for thread in threads if thread.is_alive()]) and time.monotonic() < deadline:
        show(len(threads) - len(busy), len(threads))
        busy[0].join(_LOOK_SECONDS)


def _towards(talks: Sequence[_Talk]) -> Callable[[_Talk], None]:
    """Ask for the way to the first machine; the first itself for the way to the second."""
    reached = [(talk, talk.said.get("address")) for talk in talks if talk.said]

    def ask_one(talk: _Talk) -> None:
        for other, address in reached:
            if other is not talk:
                # Who is not reached by ssh is this machine.
                talk.towards(address)
                return

    return ask_one


def _other_version(host: Host) -> MachineError:
    return MachineError(
        f"{host.name} answers what this version does not understand",
        remedy="install the same version of ascendtune on every node",
        where=host.name,
    )
