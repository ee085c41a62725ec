"""The sentences of `ascendtune profile`, in English or Chinese."""

from __future__ import annotations

import html
from collections.abc import Callable

from ascendtune.core import language
from ascendtune.core.language import Phrases
from ascendtune.core.terminal_text import safe

say = Phrases(__package__)


def in_both_languages(sentence: Callable[[], str]) -> str:
    """HTML of a sentence in both languages, of which the page shows one; `sentence` returns it in the current one.

    It may contain names from a trace of another user: control characters and markup are escaped.
    """
    texts = language.in_each_language(lambda: html.escape(safe(sentence())))
    return "".join(f'<span class="{name}">{text}</span>' for name, text in texts.items())
