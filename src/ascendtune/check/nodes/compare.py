"""Compares the answers of machines, and lists their differences."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ascendtune.check.finding import WORST_FIRST, Finding, Status, worst_first
from ascendtune.check.nodes.compared_facts import REQUIRED
from ascendtune.check.nodes.language import say
from ascendtune.check.nodes.node_report import NodeReport
from ascendtune.job.nodes.host_comparison import HostGroup, differ, groups_of, in_words


@dataclass(frozen=True)
class Difference:
    """A difference in a fact or in the findings of a check; odd groups come first."""

    name: str
    status: Status
    groups: tuple[HostGroup, ...]
    is_fact: bool
    remedies: Mapping[str, str] = field(default_factory=dict)
    """Value of a group -> remedy."""

    def in_words(self) -> str:
        return in_words(say(self.name) if self.is_fact else f"{self.name}:", self.groups)


@dataclass(frozen=True)
class NodeComparison:
    """`shared` are findings that are not ok and the same on every machine."""

    differences: tuple[Difference, ...]
    shared: tuple[Finding, ...]
    equal_facts: int
    equal_checks: int


def compare_nodes(answers: Mapping[str, NodeReport]) -> NodeComparison:
    """Fact by fact, check by check; the worst difference first.

    Checks without problems are equal, whatever figures they have (free disk, load); problems are compared word by word.
    """
    facts = _by_name({node: answer.facts for node, answer in answers.items()}, say("absent"))
    found = _by_name({node: _in_words(answer.findings) for node, answer in answers.items()}, say("ok"))
    differences = [
        *(
            Difference(name, "failure" if name in REQUIRED else "warning", groups_of(values), is_fact=True)
            for name, values in facts.items()
            if differ(values)
        ),
        *(_check(name, values, answers) for name, values in found.items() if differ(values)),
    ]
    wrong = {name for name, values in found.items() if not differ(values) and say("ok") not in values.values()}
    first = next(iter(answers.values()))
    return NodeComparison(
        tuple(sorted(differences, key=lambda each: WORST_FIRST.index(each.status))),
        tuple(each for each in first.findings if each.code in wrong and each.status != "ok"),
        sum(not differ(values) for values in facts.values()),
        sum(not differ(values) for values in found.values()),
    )


def all_nodes(names: Collection[str]) -> str:
    """ "all 4 nodes", "both nodes"; the name of a single one."""
    if len(names) > 1:
        return say("all {count} nodes", count=len(names)) if len(names) > 2 else say("both nodes")
    return next(iter(names))


def _by_name(problems: Mapping[str, Mapping[str, str]], missing: str) -> dict[str, dict[str, str]]:
    """Name -> machine -> value."""
    names = dict.fromkeys(name for values in problems.values() for name in values)
    return {name: {node: values.get(name, missing) for node, values in problems.items()} for name in names}


def _in_words(findings: Iterable[Finding]) -> dict[str, str]:
    """Code -> the problems; if a check has several findings, all that are not ok."""
    problems: dict[str, list[str]] = {}
    for each in worst_first(findings):
        wrong = problems.setdefault(each.code, [])
        if each.status != "ok":
            wrong.append(f"{say(each.status)}: {each.measured}")
    return {code: say("; ").join(wrong) or say("ok") for code, wrong in problems.items()}


def _check(code: str, values: Mapping[str, str], answers: Mapping[str, NodeReport]) -> Difference:
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
    worst = min((each.status for _, each in found), key=WORST_FIRST.index)
    return Difference(code, worst, groups_of(values), is_fact=False, remedies=remedies)
