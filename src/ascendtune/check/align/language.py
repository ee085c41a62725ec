"""The sentences of `ascendtune align`, in English or Chinese."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ascendtune.core.language import Phrases

say = Phrases(__package__)


@dataclass(frozen=True)
class Sentence:
    """A sentence that is formatted when it is shown, in the language selected then.

    Attributes:
        code: identifies the subject, for use in code.
        english: its template.
    """

    code: str
    english: str
    values: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return say(self.english, **self.values)


def percent(share: float) -> str:
    """`share` with two decimal places, or the first digit of one that these do not show."""
    return f"{share:.2%}" if share >= 5e-5 or not share else f"{100 * share:.1g}%"
