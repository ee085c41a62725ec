"""Several machines in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from ascendtune.check.doctor.nodes import CLOCK_SKEW
from ascendtune.check.finding import Finding
from ascendtune.check.nodes.answer import Answer, Nodes
from ascendtune.check.nodes.compare import Comparison, all_nodes
from ascendtune.core.units import count_of
from ascendtune.job.nodes.difference import in_a_row


def verdict(nodes: Nodes, comparison: Comparison, ours: Sequence[Finding]) -> str:
    """Who does not answer, the worst difference, what is wrong everywhere; or what they train on.

    Args:
        ours: what was found by looking at all of them from here.
    """
    parts = []
    if nodes.silent:
        parts.append(f"{in_a_row(nodes.silent)} {'do' if len(nodes.silent) > 1 else 'does'} not answer")
    count, differences = len(nodes.answers), comparison.differences
    everywhere = f"the other {count}" if nodes.silent and count > 1 else all_nodes(nodes.answers)
    if differences:
        more = len(differences) - 1
        parts.append(differences[0].in_words() + (f" ({count_of(more, 'more difference')})" if more else ""))
    parts += [each.measured for each in ours if each.code == CLOCK_SKEW and each.status == "warning"]
    failures = [each for each in comparison.shared if each.status == "failure"]
    if failures:
        parts.append(f"on {everywhere}: {failures[0].measured}; do: {failures[0].remedy}")
    if not differences and not failures:
        parts.append(_alike(list(nodes.answers.values()), everywhere))
    return "; ".join(parts)


def _alike(answers: Sequence[Answer], everywhere: str) -> str:
    first, *others = answers
    if not others:
        return f"{everywhere} trains on {first.trains_on}"
    if not first.facts:
        return f"{everywhere} are alike in what was asked"
    return f"{everywhere} are alike and train on {first.trains_on}"
