"""The chat templates that have a name, and what somebody probably meant who names another."""

from __future__ import annotations

import difflib

_WITH_THOUGHTS = ("qwen3", "qwen3_5", "deepseekr1", "glmz1", "glm4_7")
_WITHOUT = (
    "chatml", "llama2", "llama3", "qwen", "qwen3_nothink", "mistral", "ministral", "glm4", "intern2", "deepseek",
    "deepseekcoder", "deepseek3", "baichuan2", "gemma", "phi", "alpaca", "human_assistant", "plain",
)  # fmt: skip
LAST_THOUGHT = "_last_thought"
"""Ending of the templates that write a thought before the last answer only, and take it out of earlier ones."""

NAMED = (*_WITHOUT, *_WITH_THOUGHTS, *(name + LAST_THOUGHT for name in _WITH_THOUGHTS))
"""Names that `data.template` knows; each, without that ending, is a file in `templates/`."""


def is_name(template: str) -> bool:
    """Whether it can only be meant as a name: it looks like no path."""
    return "/" not in template and "." not in template


def unknown(template: str) -> tuple[str, str]:
    """What to say of a template that does not exist, and what to do."""
    close = difflib.get_close_matches(template, NAMED, n=1) if is_name(template) else []
    meant = f"did you mean '{close[0]}'? " if close else ""
    what = f"the chat template '{template}' is neither a name nor a readable Jinja file"
    return what, f"{meant}use auto, one of {', '.join(NAMED)}, or a path"
