"""Compares values of hosts that should be equal, and names the hosts that differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_FEWEST_FOR_A_VIEW = 3
"""Of two hosts that differ, neither is the majority."""


@dataclass(frozen=True)
class Group:
    """Hosts on which something is the same. `is_majority`: more than any other group, of three or more."""

    value: str
    hosts: tuple[str, ...]
    is_majority: bool = False

    def who(self) -> str:
        if self.is_majority:
            return "the other " + (str(len(self.hosts)) if len(self.hosts) > 1 else "one")
        return in_a_row(self.hosts)


def differ(values: Mapping[str, str]) -> bool:
    """Whether not every host has the same value."""
    return len(set(values.values())) > 1


def groups_of(values: Mapping[str, str]) -> tuple[Group, ...]:
    """Of hosts that differ, host -> value: the smallest group first; of equal size in the order of the hosts."""
    hosts: dict[str, list[str]] = {}
    for host, value in values.items():
        hosts.setdefault(value, []).append(host)
    ordered = sorted(hosts.items(), key=lambda group: len(group[1]))
    has_view = len(values) >= _FEWEST_FOR_A_VIEW and len(ordered[-1][1]) > len(ordered[-2][1])
    return tuple(
        Group(value, tuple(those), has_view and number == len(ordered))
        for number, (value, those) in enumerate(ordered, 1)
    )


def odd_hosts(groups: tuple[Group, ...]) -> list[str]:
    """All hosts but the majority; all where there is none."""
    return [host for group in groups if not group.is_majority for host in group.hosts]


def in_words(name: str, groups: tuple[Group, ...]) -> str:
    """ "node2 differs: torch_npu 2.6.0 there, 2.7.1 on the other 3". `name`: of what differs."""
    *odd, last = groups
    who = odd_hosts(groups) if last.is_majority else ["the nodes"]
    verb = "differs" if len(who) == 1 and last.is_majority else "differ"
    if last.is_majority and len(odd) == 1:
        values = f"{odd[0].value} there, {last.value} on {last.who()}"
    else:
        values = ", ".join(f"{group.value} on {group.who()}" for group in groups)
    return f"{in_a_row(who)} {verb}: {name} {values}"


def in_a_row(names: Iterable[str]) -> str:
    """ "a, b and c"."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
