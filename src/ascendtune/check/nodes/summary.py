"""Several machines in one sentence, and their differences as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from ascendtune.check.doctor.nodes import CLOCK_SKEW
from ascendtune.check.doctor.nodes_npu_network import NODES_NPU_NETWORK
from ascendtune.check.finding import Finding
from ascendtune.check.nodes.compare import Difference, NodeComparison, all_nodes
from ascendtune.check.nodes.language import say
from ascendtune.check.nodes.node_report import NodeReport, NodeReports
from ascendtune.check.table import WIDE, Paint, blocks, headline, row, wrapped
from ascendtune.core.records import json_for_programs
from ascendtune.core.terminal_text import columns_of
from ascendtune.job.nodes.host_comparison import in_a_row


def as_text(
    sentence: str,
    nodes: NodeReports,
    comparison: NodeComparison,
    own_findings: Sequence[Finding],
    *,
    columns: int | None,
    paint: Paint,
) -> str:
    """The findings from here, the table of differences, problems of every machine, and the number of equal results.

    Args:
        own_findings: findings that the table of differences does not show.
        columns: width of the terminal, None without a terminal.
    """
    limit, everywhere = columns or WIDE, all_nodes(nodes.answers)
    lines = [*headline(sentence, limit=limit, paint=paint), *blocks(own_findings, limit=limit, paint=paint)]
    if comparison.differences:
        width = max(columns_of(say(each.name)) for each in comparison.differences)
        lines += ["", say("differences")]
        lines += [line for each in comparison.differences for line in _row(each, width, limit, paint)]
    if comparison.shared:
        lines += ["", say("on {nodes}", nodes=everywhere), *blocks(comparison.shared, limit=limit, paint=paint)]
    if len(nodes.answers) > 1:
        facts, checks = comparison.equal_facts, comparison.equal_checks
        equal = [say("{count} {count:fact|facts}", count=facts)] if facts else []
        equal += [say("{count} {count:check|checks}", count=checks)] if checks else []
        counts = say(" and ").join(equal) or say("nothing")
        lines += ["", say("the same on {nodes}: {equal}", nodes=everywhere, equal=counts)]
    return "\n".join(lines)


def as_json(
    sentence: str, code: int, nodes: NodeReports, comparison: NodeComparison, own_findings: Sequence[Finding]
) -> str:
    """All results of every machine, and their differences. `code` is the exit code."""
    content = {
        "verdict": sentence,
        "exit_code": code,
        "findings": [each.as_json() for each in own_findings],
        "differences": [
            {
                "name": each.name,
                "is_fact": each.is_fact,
                "status": each.status,
                "groups": [{"value": group.value, "nodes": list(group.hosts)} for group in each.groups],
            }
            for each in comparison.differences
        ],
        "on_all": [each.as_json() for each in comparison.shared],
        "equal": {"facts": comparison.equal_facts, "checks": comparison.equal_checks},
        "nodes": {name: answer.as_json() for name, answer in nodes.answers.items()},
        "silent": {name: {"what": error.what, "remedy": error.remedy} for name, error in nodes.silent.items()},
    }
    return json_for_programs(content)


def _row(difference: Difference, width: int, limit: int, paint: Paint) -> list[str]:
    def body(indent: int) -> list[str]:
        lines: list[str] = []
        for group in difference.groups:
            lines += wrapped(f"{group.host_names()}: ", group.value, indent, limit)
            if remedy := difference.remedies.get(group.value):
                lines += wrapped(say("do: "), remedy, indent + 2, limit)
        return lines

    name = say(difference.name) if difference.is_fact else difference.name
    return row(difference.status, name, width, limit, paint, body)


def summary(nodes: NodeReports, comparison: NodeComparison, own_findings: Sequence[Finding]) -> str:
    """The machines that do not answer, NPUs that cannot connect, the worst difference, problems of all machines; or the
    devices for training.

    Args:
        own_findings: findings of this machine about all of them.
    """
    parts = []
    if nodes.silent:
        template = "{nodes} do not answer" if len(nodes.silent) > 1 else "{nodes} does not answer"
        parts.append(say(template, nodes=in_a_row(nodes.silent)))
    count, differences = len(nodes.answers), comparison.differences
    everywhere = say("the other {count}", count=count) if nodes.silent and count > 1 else all_nodes(nodes.answers)
    network = [each for each in own_findings if each.code == NODES_NPU_NETWORK and each.status == "failure"]
    parts += [each.measured for each in network]
    if differences:
        more = len(differences) - 1
        others = say(" ({count} more {count:difference|differences})", count=more)
        parts.append(differences[0].in_words() + (others if more else ""))
    parts += [each.measured for each in own_findings if each.code == CLOCK_SKEW and each.status == "warning"]
    failures = [each for each in comparison.shared if each.status == "failure"]
    if failures:
        what, remedy = failures[0].measured, failures[0].remedy
        parts.append(say("on {nodes}: {what}; do: {remedy}", nodes=everywhere, what=what, remedy=remedy))
    if not differences and not failures and not network:
        parts.append(_alike(list(nodes.answers.values()), everywhere))
    return say("; ").join(parts)


def _alike(answers: Sequence[NodeReport], everywhere: str) -> str:
    first, *others = answers
    if not others:
        return say("{nodes} trains on {devices}", nodes=everywhere, devices=first.trains_on)
    if not first.facts:
        return say("{nodes} are alike in what was asked", nodes=everywhere)
    return say("{nodes} are alike and train on {devices}", nodes=everywhere, devices=first.trains_on)
