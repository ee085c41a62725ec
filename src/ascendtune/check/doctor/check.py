"""The anatomy of a check: one file each, a stable code, what it looks at, why that matters, how to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding


@dataclass(frozen=True)
class Check:
    """`look` answers with findings of this check's code; with none where the question does not arise here.

    `what`, `why` and `fix` are the page docs/checks/CODE.md; `fix` and `why` may have several paragraphs.
    """

    code: str
    what: str
    why: str
    fix: str
    look: Callable[[Outside], Iterable[Finding]]
    vital: bool = False
    """With a failure here nothing can be trained on the accelerators."""
