"""Compares hosts: differing values and the odd hosts, and the requirements for a job on several hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ascendtune.core.errors import InputError, MachineError, combined_error
from ascendtune.core.language import Phrases
from ascendtune.core.log import warn
from ascendtune.job.nodes.cluster_spec import TargetHost

say = Phrases(__package__)

_FEWEST_FOR_A_VIEW = 3
"""Of two hosts that differ, neither is the majority."""


@dataclass(frozen=True)
class HostGroup:
    """Hosts with the same value. `is_majority`: more than any other group, of three or more."""

    value: str
    hosts: tuple[str, ...]
    is_majority: bool = False

    def host_names(self) -> str:
        if self.is_majority:
            count = len(self.hosts)
            return say("the other {count}", count=count) if count > 1 else say("the other one")
        return in_a_row(self.hosts)


def differ(values: Mapping[str, str]) -> bool:
    """Whether the hosts have different values."""
    return len(set(values.values())) > 1


def groups_of(values: Mapping[str, str]) -> tuple[HostGroup, ...]:
    """Groups of hosts with equal values, from host -> value: smallest first, those of equal size in the hosts'
    order."""
    hosts: dict[str, list[str]] = {}
    for host, value in values.items():
        hosts.setdefault(value, []).append(host)
    ordered = sorted(hosts.items(), key=lambda group: len(group[1]))
    has_view = len(values) >= _FEWEST_FOR_A_VIEW and len(ordered[-1][1]) > len(ordered[-2][1])
    return tuple(
        HostGroup(value, tuple(members), has_view and number == len(ordered))
        for number, (value, members) in enumerate(ordered, 1)
    )


def odd_hosts(groups: tuple[HostGroup, ...]) -> list[str]:
    """All hosts except the majority; all hosts if there is no majority."""
    return [host for group in groups if not group.is_majority for host in group.hosts]


def in_words(name: str, groups: tuple[HostGroup, ...]) -> str:
    """ "node2 differs: torch_npu 2.6.0 there, 2.7.1 on the other 3". `name`: name of the property that differs."""
    *odd, last = groups
    named = odd_hosts(groups) if last.is_majority else [say("the nodes")]
    if last.is_majority and len(odd) == 1:
        values = say("{value} there, {other} on {hosts}", value=odd[0].value, other=last.value, hosts=last.host_names())
    else:
        values = say(", ").join(
            say("{value} on {hosts}", value=group.value, hosts=group.host_names()) for group in groups
        )
    is_one = len(named) == 1 and last.is_majority
    template = "{hosts} differs: {name} {values}" if is_one else "{hosts} differ: {name} {values}"
    return say(template, hosts=in_a_row(named), name=name, values=values)


def in_a_row(names: Iterable[str]) -> str:
    """ "a, b and c"."""
    *most, last = names
    return say("{names} and {last}", names=", ".join(most), last=last) if most else last


_SKEW_SECONDS = 10.0

Answers = Mapping[TargetHost, Mapping[str, Any]]
"""The descriptions of `handshake_reply.describe_host` by host, with the time when they were `received`."""


def require_compatible_hosts(answers: Answers) -> None:
    """Raise unless all hosts are different machines, with the same versions and the same kind of device.

    Raises:
        InputError: a machine is named twice, under two names.
        MachineError: hosts differ; all differences are listed at once.
    """
    first = next(iter(answers.values()))
    compared = {
        package: {host.name: answer["versions"].get(package) or "absent" for host, answer in answers.items()}
        for package in first["versions"]
    }
    remedies = dict.fromkeys(compared, "install the same versions on every node")
    compared["devices"] = {host.name: answer["kind"] for host, answer in answers.items()}
    notes = [answer["note"] for answer in answers.values() if answer["note"]]
    remedies["devices"] = notes[0] if notes else "`ascendtune doctor` on each of them shows details"
    errors = []
    for name, values in compared.items():
        if differ(values):
            groups = groups_of(values)
            where = ", ".join(odd_hosts(groups))
            errors.append(MachineError(in_words(name, groups), code="hosts-differ", remedy=remedies[name], where=where))
    if errors:
        raise combined_error(errors)
    _require_apart(answers)


def warn_of_clocks(answers: Answers) -> None:
    for host, answer in answers.items():
        # The transfer of the answer took less than this difference: the rest is the clock.
        skew = answer["time"] - answer["received"]
        if abs(skew) > _SKEW_SECONDS:
            side = "ahead of" if skew > 0 else "behind"
            warn(f"the clock of {host.name} is {abs(skew):.0f} s {side} ours: logs will not line up")


def _require_apart(answers: Answers) -> None:
    names: dict[str, list[str]] = {}
    for host, answer in answers.items():
        names.setdefault(answer["machine"], []).append(host.name)
    if same := [same_machine for same_machine in names.values() if len(same_machine) > 1]:
        raise InputError(
            "; ".join(f"{in_a_row(same_machine)} are the same machine" for same_machine in same),
            code="duplicate-host",
            remedy=f"name it once; for several processes there use --devices N, or `{same[0][0]} slots=N` in a host "
            "file",
            where="--nodes",
        )
