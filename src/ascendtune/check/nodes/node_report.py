"""The answers of machines to `doctor --nodes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ascendtune.check.finding import Finding
from ascendtune.core.errors import AscendtuneError


@dataclass(frozen=True)
class Clock:
    """Difference of a clock to ours, in seconds, with an error of at most `within_seconds`."""

    ahead_seconds: float
    within_seconds: float

    def certain_seconds(self) -> float:
        """The least difference of the clocks in seconds, whichever way the messages took longer."""
        return max(0.0, abs(self.ahead_seconds) - self.within_seconds)


@dataclass(frozen=True)
class NodeReport:
    """The report of one machine. `facts` are name -> value; missing ones are absent."""

    verdict: str
    trains_on: str
    findings: tuple[Finding, ...]
    not_applicable: tuple[str, ...]
    facts: Mapping[str, str]
    clock: Clock

    def as_json(self) -> dict[str, Any]:
        findings = [finding.as_json() for finding in self.findings]
        return {**asdict(self), "findings": findings, "not_applicable": list(self.not_applicable)}


def report_of_json(content: Mapping[str, Any]) -> NodeReport:
    """The report in an answer; raises KeyError, TypeError or ValueError for that of another version."""
    findings = [Finding(**{**each, "evidence": tuple(each["evidence"])}) for each in content["findings"]]
    return NodeReport(
        content["verdict"],
        content["trains_on"],
        tuple(findings),
        tuple(content["not_applicable"]),
        content["facts"],
        Clock(**content["clock"]),
    )


@dataclass(frozen=True)
class NodeReports:
    """Machines by name, in their order: the answers, and the errors of the others."""

    answers: Mapping[str, NodeReport]
    silent: Mapping[str, AscendtuneError]
