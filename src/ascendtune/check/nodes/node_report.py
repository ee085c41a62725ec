"""The answers of machines to `doctor --nodes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import Any

from ascendtune.check.finding import WORST_FIRST, Finding
from ascendtune.core.errors import AscendtuneError
from ascendtune.core.foreign_json import is_text_list
from ascendtune.machine.npu.super_pod import SuperPodPlace


@dataclass(frozen=True)
class Clock:
    """Difference of a clock to ours, in seconds, with an error of at most `within_seconds`."""

    ahead_seconds: float
    within_seconds: float

    def certain_seconds(self) -> float:
        """The least difference of the clocks in seconds, whichever way the messages took longer."""
        return max(0.0, abs(self.ahead_seconds) - self.within_seconds)


@dataclass(frozen=True)
class NodePort:
    """The network port of one NPU of a machine, as other machines must match it; None for unknown values."""

    device: int
    address: str | None
    netmask: str | None
    has_gateway: bool | None
    tls: bool | None

    @property
    def interface(self) -> IPv4Interface | IPv6Interface | None:
        return ip_interface(f"{self.address}/{self.netmask}") if self.address and self.netmask else None


@dataclass(frozen=True)
class NodeReport:
    """The report of one machine. `facts` are name -> value; missing ones are absent."""

    verdict: str
    trains_on: str
    findings: tuple[Finding, ...]
    not_applicable: tuple[str, ...]
    facts: Mapping[str, str]
    clock: Clock
    ports: tuple[NodePort, ...] = ()
    super_pod: SuperPodPlace | None = None

    def as_json(self) -> dict[str, Any]:
        findings = [finding.as_json() for finding in self.findings]
        return {**asdict(self), "findings": findings, "not_applicable": list(self.not_applicable)}


def report_of_json(content: Mapping[str, Any]) -> NodeReport:
    """The report in an answer; raises AttributeError, KeyError, TypeError or ValueError for that of another version."""
    verdict, trains_on, not_applicable, facts = (
        content[name] for name in ("verdict", "trains_on", "not_applicable", "facts")
    )
    if not (is_text_list([verdict, trains_on, *facts.values()]) and is_text_list(not_applicable)):
        raise ValueError("a text is of another type")
    findings = tuple(map(_finding, content["findings"]))
    ports = tuple(map(_port, content["ports"]))
    place = None if content["super_pod"] is None else SuperPodPlace(**content["super_pod"])
    if place is not None and not (type(place.pod) is type(place.server) is int):
        raise ValueError("a number of a super pod is of another type")
    clock = Clock(**content["clock"])
    return NodeReport(verdict, trains_on, findings, tuple(not_applicable), facts, clock, ports, place)


def _port(content: Mapping[str, Any]) -> NodePort:
    port = NodePort(**content)
    known = [value for value in (port.has_gateway, port.tls) if value is not None]
    if type(port.device) is not int or not all(isinstance(value, bool) for value in known):
        raise ValueError("a field of a port is of another type")
    if port.address is not None:
        # Raises ValueError for anything but addresses.
        ip_interface(f"{port.address}/{port.netmask}" if port.netmask else str(port.address))
    return port


def _finding(content: Mapping[str, Any]) -> Finding:
    lists = {name: content.get(name, []) for name in ("evidence", "repair")}
    texts = {name: value for name, value in content.items() if name not in lists}
    given = [value for value in texts.values() if value is not None]
    if not (is_text_list(given) and all(map(is_text_list, lists.values()))) or texts["status"] not in WORST_FIRST:
        raise ValueError("a field of a finding is of another type")
    if texts["code"] is None or texts["measured"] is None:
        raise ValueError("a finding says nothing")
    return Finding(**texts, evidence=tuple(lists["evidence"]), repair=tuple(lists["repair"]))


@dataclass(frozen=True)
class NodeReports:
    """Machines by name, in their order: the answers, and the errors of the others."""

    answers: Mapping[str, NodeReport]
    silent: Mapping[str, AscendtuneError]
