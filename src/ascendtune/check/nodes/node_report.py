"""The answers of machines to `doctor --nodes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ascendtune.check.finding import Finding
from ascendtune.core.errors import AscendtuneError


@dataclass(frozen=True)
class Clock:
    """How far a clock is ahead of ours, in seconds; the truth lies within `within_seconds` of it to both sides."""

    ahead_seconds: float
    within_seconds: float

    def certain_seconds(self) -> float:
        """The least difference of the clocks in seconds, whichever way the messages took longer."""
        return max(0.0, abs(self.ahead_seconds) - self.within_seconds)


@dataclass(frozen=True)
class NodeReport:
    """Of one machine. `facts` are name -> value; what is not there has no value."""

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
    """Raises KeyError, TypeError or ValueError for the answer of a version that says other things."""
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
    """Machines by name, in the order in which they were named: those that answered, and what kept the others."""

    answers: Mapping[str, NodeReport]
    silent: Mapping[str, AscendtuneError]
