"""How far the clocks of the nodes of `--nodes` are from this machine's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok, unknown
from ascendtune.check.nodes.answer import Clock
from ascendtune.check.nodes.compare import all_nodes
from ascendtune.core.units import count_of

CODE = "clock_skew"

_MOST_SECONDS = 1.0
"""Machines that follow a time server are within milliseconds of each other in one network, within tenths of a second
over a bad one."""
_REMEDY = "start chronyd (or ntpd, systemd-timesyncd) there: `timedatectl` says whether it follows a server"


def _look(outside: Outside) -> Iterator[Finding]:
    if outside.nodes is None or not outside.nodes.answers:
        return
    clocks = {name: answer.clock for name, answer in outside.nodes.answers.items()}
    vague = [name for name, clock in clocks.items() if clock.within_seconds > _MOST_SECONDS]
    apart = {name: clock for name, clock in clocks.items() if clock.certain_seconds() > _MOST_SECONDS}
    if len(apart) == len(clocks) > 1 and _agree(list(apart.values())):
        clock = next(iter(apart.values()))
        yield _finding(
            f"the clock of this machine is {_shown(-clock.ahead_seconds, clock)} those of {all_nodes(clocks)}, "
            "which agree",
            _REMEDY.replace("there", "here"),
        )
    else:
        for name, clock in apart.items():
            yield _finding(f"the clock of {name} is {_shown(clock.ahead_seconds, clock)} this machine's", _REMEDY)
    for name in vague:
        if name not in apart:
            why = f"{name} took {2 * clocks[name].within_seconds:.1f} s to answer: its clock cannot be told as exactly"
            yield unknown(CODE, why, remedy="look at the network between, and at the load of both machines")
    if not apart and not vague:
        yield ok(CODE, _all_well(clocks))


def _agree(clocks: list[Clock]) -> bool:
    """Whether they can all be within the limit of each other."""
    lowest = max(clock.ahead_seconds - clock.within_seconds for clock in clocks)
    highest = min(clock.ahead_seconds + clock.within_seconds for clock in clocks)
    return lowest - highest <= _MOST_SECONDS


def _finding(measured: str, remedy: str) -> Finding:
    return Finding(CODE, "warning", measured, expected=f"at most {_MOST_SECONDS:g} s", remedy=remedy)


def _shown(ahead_seconds: float, clock: Clock) -> str:
    side = "ahead of" if ahead_seconds > 0 else "behind"
    return f"{abs(ahead_seconds):.1f} s (give or take {clock.within_seconds * 1e3:.1f} ms) {side}"


def _all_well(clocks: Mapping[str, Clock]) -> str:
    most = max(abs(clock.ahead_seconds) + clock.within_seconds for clock in clocks.values())
    milliseconds = max(most * 1e3, 0.1)
    return f"the clocks of {count_of(len(clocks), 'node')} are within {milliseconds:.1f} ms of this machine's"


CHECK = Check(
    CODE,
    what="Asks each node of `--nodes` for its clock and compares it with this machine's. Half of the quickest of five "
    "round trips is what the answer may be wrong by; only what goes beyond it counts as skew.",
    why="Where clocks differ, the logs of a job cannot be put in order, and the first cause of a failure is taken for "
    "its echo. On shared storage files seem to come from the future or to be old, so that caches and locks are judged "
    "wrongly. By minutes, TLS certificates are not yet or no longer valid and Kerberos refuses tickets: hubs and "
    "trackers cannot be reached from that node alone.",
    fix="Let every node follow the same time server: `systemctl enable --now chronyd`, then `chronyc tracking` (or "
    "`timedatectl`). A container has the clock of its host: mend it there.",
    look=_look,
)
