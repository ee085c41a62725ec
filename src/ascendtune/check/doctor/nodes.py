"""The checks of `--nodes`: whether the nodes answer, have the same software, and have the same time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.system import System
from ascendtune.check.finding import Finding, failure, ok, unknown, warning
from ascendtune.check.nodes.compare import all_nodes, compare_nodes
from ascendtune.check.nodes.node_report import Clock

NODES_ANSWER = "nodes_answer"


def _look_at_nodes_answer(system: System) -> Iterator[Finding]:
    if system.nodes is None:
        return
    for error in system.nodes.silent.values():
        yield failure(NODES_ANSWER, error.what, expected=say("passwordless ssh works"), remedy=error.remedy)
    if not system.nodes.silent:
        yield ok(NODES_ANSWER, _answered(len(system.nodes.answers)))


def _answered(count: int) -> str:
    return say("{count} {count:node|nodes} answered", count=count)


NODES_ANSWER_CHECK = Check(
    NODES_ANSWER,
    what="Starts the doctor on every node of `--nodes` over ssh, in the same way as a job on several nodes.",
    why="A job with `--nodes` reaches its hosts in the same way: without a password, with the same path of Python. A "
    "node that does not answer cannot start ranks.",
    fix="`ssh HOST true` must work without a prompt: install your public key on the host, and add the host's key to "
    "known_hosts. Install ascendtune at the same path on every node, or share its environment. If a node times out, "
    "run `ascendtune doctor` on it: one of its checks hangs.",
    look=_look_at_nodes_answer,
)


NODES_ALIKE = "nodes_alike"


def _look_at_nodes_alike(system: System) -> Iterator[Finding]:
    if system.nodes is None or len(system.nodes.answers) < 2:
        return
    comparison = compare_nodes(system.nodes.answers)
    differences = [each for each in comparison.differences if each.is_fact]
    for each in differences:
        required = each.status == "failure"
        yield Finding(
            NODES_ALIKE,
            each.status,
            each.in_words(),
            expected=say("the same on every node; a job with --nodes refuses to start") if required else None,
            remedy=say("install the same version on every node")
            if required
            else say("make it the same, unless the difference is intended"),
        )
    if not differences:
        yield ok(NODES_ALIKE, say("equal facts: {count}", count=comparison.equal_facts))


NODES_ALIKE_CHECK = Check(
    NODES_ALIKE,
    what="Compares the nodes of `--nodes`: versions (Python, packages, driver, firmware, CANN, kernel), number and "
    "names of devices, HCCL_*, GLOO_* and NCCL_* variables, limits, memory, MTU of the route to the first node.",
    why="Nodes with different software start together and fail later: another torch computes other losses, another "
    "CANN or time-out ends in an HCCL error on the other nodes, a smaller MTU drops large messages. A job with "
    "`--nodes` rejects nodes whose Python, torch, torch_npu, transformers, deepspeed or ascendtune differ; that is a "
    "failure here, the rest is a warning.",
    fix="Install from the same image or the same lock file. Variables are those of a job: values set on this machine "
    "take precedence over those of the node's shell. MTU: `ip link set IFACE mtu N` on the node that differs, and the "
    "same on the switch.",
    look=_look_at_nodes_alike,
)


CLOCK_SKEW = "clock_skew"

_MOST_SECONDS = 1.0
"""Machines with time synchronisation differ by milliseconds in one network, by tenths of a second over a bad one."""
_REMEDY_THERE = "start chronyd (or ntpd, systemd-timesyncd) there: `timedatectl` shows whether it is synchronised"
_REMEDY_HERE = "start chronyd (or ntpd, systemd-timesyncd) here: `timedatectl` shows whether it is synchronised"


def _look_at_clock_skew(system: System) -> Iterator[Finding]:
    if system.nodes is None or not system.nodes.answers:
        return
    clocks = {name: answer.clock for name, answer in system.nodes.answers.items()}
    vague = [name for name, clock in clocks.items() if clock.within_seconds > _MOST_SECONDS]
    apart = {name: clock for name, clock in clocks.items() if clock.certain_seconds() > _MOST_SECONDS}
    if len(apart) == len(clocks) > 1 and _agree(list(apart.values())):
        clock = next(iter(apart.values()))
        template = (
            "the clock of this machine is {seconds} ahead of those of {nodes}, which agree"
            if clock.ahead_seconds < 0
            else "the clock of this machine is {seconds} behind those of {nodes}, which agree"
        )
        yield _skew(say(template, seconds=_shown(clock), nodes=all_nodes(clocks)), say(_REMEDY_HERE))
    else:
        for name, clock in apart.items():
            template = (
                "the clock of {name} is {seconds} ahead of this machine's"
                if clock.ahead_seconds > 0
                else "the clock of {name} is {seconds} behind this machine's"
            )
            yield _skew(say(template, name=name, seconds=_shown(clock)), say(_REMEDY_THERE))
    for name in vague:
        if name not in apart:
            why = say(
                "{name} took {value:.1f} s to answer: its clock is not known more exactly",
                name=name,
                value=2 * clocks[name].within_seconds,
            )
            yield unknown(CLOCK_SKEW, why, remedy=say("check the network and the load of both machines"))
    if not apart and not vague:
        yield ok(CLOCK_SKEW, _all_well(clocks))


def _agree(clocks: list[Clock]) -> bool:
    """Whether all clocks may be within the limit of each other."""
    lowest = max(clock.ahead_seconds - clock.within_seconds for clock in clocks)
    highest = min(clock.ahead_seconds + clock.within_seconds for clock in clocks)
    return lowest - highest <= _MOST_SECONDS


def _skew(measured: str, remedy: str) -> Finding:
    return warning(
        CLOCK_SKEW, measured, expected=say("at most {most_seconds:g} s", most_seconds=_MOST_SECONDS), remedy=remedy
    )


def _shown(clock: Clock) -> str:
    return f"{abs(clock.ahead_seconds):.1f} s (± {clock.within_seconds * 1e3:.1f} ms)"


def _all_well(clocks: Mapping[str, Clock]) -> str:
    most = max(abs(clock.ahead_seconds) + clock.within_seconds for clock in clocks.values())
    milliseconds = max(most * 1e3, 0.1)
    template = "the {count:clock|clocks} of {count} {count:node is|nodes are} within {value:.1f} ms of this machine's"
    return say(template, count=len(clocks), value=milliseconds)


CLOCK_SKEW_CHECK = Check(
    CLOCK_SKEW,
    what="Compares the clock of each node of `--nodes` with this machine's. The uncertainty is half of the fastest of "
    "five round trips; only a difference beyond it counts as skew.",
    why="If clocks differ, the logs of a job cannot be ordered, and the first cause of a failure is not found. On "
    "shared storage, files seem newer or older than they are, so that caches and locks fail. With minutes of "
    "difference, TLS certificates are invalid and Kerberos rejects tickets: hubs and trackers cannot be reached from "
    "that node.",
    fix="Synchronise every node with the same time server: `systemctl enable --now chronyd`, then `chronyc tracking` "
    "(or `timedatectl`). A container has the clock of its host: fix it there.",
    look=_look_at_clock_skew,
)
