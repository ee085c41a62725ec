"""In what machines differ, and who is the odd one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ascendtune.check.finding import Finding, Status, worst_first
from ascendtune.check.nodes.answer import Answer
from ascendtune.check.nodes.facts import REQUIRED

_ABSENT = "absent"
_FINE = "ok"
_FEWEST_FOR_A_VIEW = 3
"""Of two machines neither is the odd one."""


@dataclass(frozen=True)
class Group:
    """Machines on which something is the same. `is_majority`: more than any other group, of three or more."""

    value: str
    nodes: tuple[str, ...]
    remedy: str | None = None
    is_majority: bool = False

    def who(self) -> str:
        if self.is_majority:
            return "the other " + (str(len(self.nodes)) if len(self.nodes) > 1 else "one")
        return in_a_row(self.nodes)


@dataclass(frozen=True)
class Difference:
    """In a fact or in what a check found; the odd ones come first."""

    name: str
    status: Status
    groups: tuple[Group, ...]
    is_fact: bool

    def in_words(self) -> str:
        """ "node2 differs: torch_npu 2.6.0 there, 2.7.1 on the other 3"."""
        *odd, last = self.groups
        who = [node for group in odd for node in group.nodes] if last.is_majority else ["the nodes"]
        verb = "differs" if len(who) == 1 and last.is_majority else "differ"
        name = self.name if self.is_fact else f"{self.name}:"
        if last.is_majority and len(odd) == 1:
            values = f"{odd[0].value} there, {last.value} on {last.who()}"
        else:
            values = ", ".join(f"{group.value} on {group.who()}" for group in self.groups)
        return f"{in_a_row(who)} {verb}: {name} {values}"


@dataclass(frozen=True)
class Comparison:
    """`shared` are findings that are not ok and the same on every machine."""

    differences: tuple[Difference, ...]
    shared: tuple[Finding, ...]
    equal_facts: int
    equal_checks: int


def compare(answers: Mapping[str, Answer]) -> Comparison:
    """Fact by fact, check by check; the worst difference first.

    Checks that found nothing wrong are equal, whatever figures they name (free disk, load); what is wrong is compared
    word by word.
    """
    facts = _by_name({node: answer.facts for node, answer in answers.items()}, _ABSENT)
    found = _by_name({node: _in_words(answer.findings) for node, answer in answers.items()}, _FINE)
    differences = [
        *(_fact(name, values) for name, values in facts.items() if _differ(values)),
        *(_check(name, values, answers) for name, values in found.items() if _differ(values)),
    ]
    wrong = {name for name, values in found.items() if not _differ(values) and _FINE not in values.values()}
    first = next(iter(answers.values()))
    return Comparison(
        tuple(sorted(differences, key=lambda each: _ORDER.index(each.status))),
        tuple(each for each in first.findings if each.code in wrong and each.status != "ok"),
        sum(not _differ(values) for values in facts.values()),
        sum(not _differ(values) for values in found.values()),
    )


def in_a_row(names: Iterable[str]) -> str:
    """ "a, b and c"."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def all_nodes(names: Collection[str]) -> str:
    """ "all 4 nodes", "both nodes"; of one alone the name."""
    if len(names) > 1:
        return f"all {len(names)} nodes" if len(names) > 2 else "both nodes"
    return next(iter(names))


_ORDER: tuple[Status, ...] = ("failure", "warning", "unknown", "ok")


def _by_name(told: Mapping[str, Mapping[str, str]], missing: str) -> dict[str, dict[str, str]]:
    """Name -> machine -> value."""
    names = dict.fromkeys(name for values in told.values() for name in values)
    return {name: {node: values.get(name, missing) for node, values in told.items()} for name in names}


def _in_words(findings: Iterable[Finding]) -> dict[str, str]:
    """Code -> what is wrong; of a check that has found several things all that are not ok."""
    told: dict[str, list[str]] = {}
    for each in worst_first(findings):
        wrong = told.setdefault(each.code, [])
        if each.status != "ok":
            wrong.append(f"{each.status}: {each.measured}")
    return {code: "; ".join(wrong) or _FINE for code, wrong in told.items()}


def _differ(values: Mapping[str, str]) -> bool:
    return len(set(values.values())) > 1


def _fact(name: str, values: Mapping[str, str]) -> Difference:
    return Difference(name, "failure" if name in REQUIRED else "warning", _groups(values, {}), is_fact=True)


def _check(code: str, values: Mapping[str, str], answers: Mapping[str, Answer]) -> Difference:
    found = [
        (node, each)
        for node, answer in answers.items()
        for each in worst_first(answer.findings)
        if each.code == code and each.status != "ok"
    ]
    remedies: dict[str, str] = {}
    for node, each in found:
        if each.remedy:
            remedies.setdefault(values[node], each.remedy)
    worst = min((each.status for _, each in found), key=_ORDER.index)
    return Difference(code, worst, _groups(values, remedies), is_fact=False)


def _groups(values: Mapping[str, str], remedies: Mapping[str, str]) -> tuple[Group, ...]:
    """The smallest first; of equal size in the order of the machines."""
    nodes: dict[str, list[str]] = {}
    for node, value in values.items():
        nodes.setdefault(value, []).append(node)
    ordered = sorted(nodes.items(), key=lambda group: len(group[1]))
    has_view = len(values) >= _FEWEST_FOR_A_VIEW and len(ordered[-1][1]) > len(ordered[-2][1])
    return tuple(
        Group(value, tuple(those), remedies.get(value), has_view and number == len(ordered))
        for number, (value, those) in enumerate(ordered, 1)
    )
