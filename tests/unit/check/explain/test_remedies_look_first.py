"""A remedy that costs time or harms is not the first one where the cause is not certain."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.knowledge.entries import entries, raised_entries

Explained = Callable[..., Explanation]

_COSTLY = re.compile(
    r"(?:python -m )?(?:pip3? (?:install|uninstall|cache purge)|(?:sudo )?(?:apt|apt-get|yum|dnf) (?:-y )?install|"
    r"conda (?:create|install)|install\b|reinstall|upgrade|update\b|downgrade|(?:a|an|the) (?:newer|older|newest)\b|"
    r"another (?:release|version|torch|CANN|driver|image)\b|git (?:pull|clone)|rm -|delete\b|kill\b|restart|reboot|"
    r"(?:download|fetch|convert|quantise|export|save|build|copy) (?:it|them|again(?! with a smaller)|anew|all)\b)"
)
"""Beginning of a remedy that changes an installation, ends or repeats work, or removes something."""
_UNSURE = (
    "certain what broke; why: one of several known causes",
    "likely: the most frequent cause of what broke",
    "likely: this kind of failure has several causes, and the message itself says most",
    "likely: this broke; no known line says why",
)


def test_costly_step_is_not_the_first_one_of_an_uncertain_cause(explained: Explained) -> None:
    costly = [
        entry
        for entry in (*entries(), *raised_entries())
        if entry.kind != "notice" and entry.remedies and _COSTLY.match(entry.remedies[0])
    ]
    assert len(costly) > 100
    unsure = []
    for entry in costly:
        explanation = explained(entry.test + "\n")
        if entry_of(explanation) == entry.id and explanation.sureness in _UNSURE:
            unsure.append(entry.id)

    assert unsure == []
