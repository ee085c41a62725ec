"""Unpaired preference: one answer to a prompt, and whether it is good."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ascendtune.data.conversation import BadRow, UnpairedPreference
from ascendtune.data.format import alpaca
from ascendtune.data.format.answer import PROMPT_WORDS, answered, conversation, only_the_last_turn
from ascendtune.data.format.turns import listed
from ascendtune.data.json_rows import kind_of

TASKS = ("singles",)
WORDS = ("completion", "label", "output", "kto_tag", *PROMPT_WORDS)

_BODIES = ({"prompt", "completion"}, {"messages"}, {"conversations"}, {"instruction", "output"})
LABEL_WORDS = {"true": True, "false": False, "good": True, "bad": False, "desirable": True, "undesirable": False}
"""Words for a good and a bad answer, in lower case."""
_NUMBERS = {"1": True, "0": False, "-1": False, "1.0": True, "0.0": False, "-1.0": False}


def matches(columns: Collection[str]) -> bool:
    return ("label" in columns or "kto_tag" in columns) and any(body.issubset(columns) for body in _BODIES)


def are_marked(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the labels mean good or bad, as in data for this format, and not something else.

    0 and 1 may be any two classes; as `kto_tag`, or beside TRL's prompt and completion, they mean bad and good.
    """
    labels = [label for row in rows if (label := _label_of(row)) is not None]
    if any(str(label).strip().lower() in ("true", "false") for label in labels):
        return True
    if not labels or not all(isinstance(_truth(label), bool) for label in labels):
        return False
    are_words = str(labels[0]).strip().lower() in LABEL_WORDS
    return are_words or all("kto_tag" in row or {"prompt", "completion"} <= row.keys() for row in rows)


def convert(row: Mapping[str, Any]) -> UnpairedPreference:
    """`label` (or `kto_tag`) is true, or 1, for a good answer."""
    if row.get("completion") is not None:
        answer_ = answered(row, "completion")
    elif row.get("instruction") is not None:
        answer_ = only_the_last_turn(alpaca.convert(row))
    elif (turns := row.get("messages") or row.get("conversations")) is not None:
        answer_ = conversation(row, listed(turns))
    else:
        raise BadRow("no answer", "there is neither a completion nor a conversation")
    label = _truth(_label_of(row))
    if not isinstance(label, bool):
        shown = repr(label) if isinstance(label, str | int | float) else kind_of(label)
        raise BadRow("label is not true or false", f"it is {shown}")
    return UnpairedPreference(answer_, label)


def _truth(label: Any) -> Any:
    """The boolean for a label that is text or a number: CSV has only text. Other labels are returned unchanged."""
    known = (LABEL_WORDS | _NUMBERS).get(str(label).strip().lower()) if isinstance(label, str | int | float) else None
    return label if known is None else known


def _label_of(row: Mapping[str, Any]) -> Any:
    label = row.get("label")
    return row.get("kto_tag") if label is None else label
