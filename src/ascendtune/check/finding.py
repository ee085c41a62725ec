"""The result of a check, from which text, JSON and exit codes are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "warning", "failure", "unknown"]

WORST_FIRST: tuple[Status, ...] = ("failure", "warning", "unknown", "ok")


@dataclass(frozen=True)
class Finding:
    """One result of a check.

    `unknown` means that the check could not measure; `measured` is then the reason. Warnings and failures have a
    remedy. `evidence` is the unmodified lines, files or numbers that the result is based on.
    """

    code: str
    status: Status
    measured: str
    expected: str | None = None
    remedy: str | None = None
    evidence: tuple[str, ...] = ()
    because: str | None = None
    """Code of the finding that explains why this one is unknown."""
    repair: tuple[str, ...] = ()
    """The argv that carries out the remedy, if a single command does; it may need sudo."""

    def __post_init__(self) -> None:
        if self.status in ("warning", "failure") and not self.remedy:
            raise ValueError(f"{self.code}: a {self.status} needs a remedy")

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "evidence": list(self.evidence), "repair": list(self.repair)}


def ok(code: str, measured: str, *, evidence: Sequence[str] = ()) -> Finding:
    return Finding(code, "ok", measured, evidence=tuple(evidence))


def warning(
    code: str,
    measured: str,
    *,
    expected: str | None = None,
    remedy: str,
    evidence: Sequence[str] = (),
    repair: Sequence[str] = (),
) -> Finding:
    return Finding(code, "warning", measured, expected, remedy, tuple(evidence), repair=tuple(repair))


def failure(
    code: str,
    measured: str,
    *,
    expected: str | None = None,
    remedy: str,
    evidence: Sequence[str] = (),
    repair: Sequence[str] = (),
) -> Finding:
    return Finding(code, "failure", measured, expected, remedy, tuple(evidence), repair=tuple(repair))


def unknown(
    code: str, why: str, *, remedy: str | None = None, evidence: Sequence[str] = (), because: str | None = None
) -> Finding:
    return Finding(code, "unknown", why, remedy=remedy, evidence=tuple(evidence), because=because)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Failures, warnings, unknowns, then ok; otherwise in the given order."""
    return sorted(findings, key=lambda finding: WORST_FIRST.index(finding.status))


def exit_code(findings: Sequence[Finding]) -> int:
    """1 if there is a failure, 4 if all findings are unknown, else 0."""
    if any(finding.status == "failure" for finding in findings):
        return 1
    return 4 if findings and all(finding.status == "unknown" for finding in findings) else 0
