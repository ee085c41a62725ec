"""ShareGPT: a list of turns with from and value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ascendtune.data.conversation import BadRow, Conversation
from ascendtune.data.format import messages
from ascendtune.data.format.turns import is_text, listed
from ascendtune.data.json_rows import kind_of

TASKS = ("conversations",)
WORDS = ("conversations", "tools", "system")

_XTUNER = {"system", "input", "output", "output_with_loss"}


def matches(columns: Collection[str]) -> bool:
    return "conversations" in columns


def convert(row: Mapping[str, Any]) -> Conversation:
    """Tool calls are converted to OpenAI's form; its names and ShareGPT's may be mixed."""
    turns = listed(row.get("conversations"))
    if not isinstance(turns, list):
        raise BadRow("no messages", f"a list of turns is needed, this is {kind_of(turns)}")
    translated = [_with_calls(turn) for turn in _single_turns(turns)]
    return messages.convert({"messages": translated, "tools": row.get("tools"), "system": row.get("system")})


def _single_turns(turns: list[Any]) -> list[Any]:
    """The turns, with `{human, assistant}` and XTuner's `{system, input, output}`, each a question and its answer,
    split in two; in a list of texts, the user's and the assistant's turns alternate.

    Turns after the last answer have no label, and are removed.
    """
    if turns and all(map(is_text, turns)):
        turns = turns[: max(1, len(turns) // 2 * 2)]
        return [{"from": ("human", "gpt")[number % 2], "value": text} for number, text in enumerate(turns)]
    single: list[Any] = []
    for turn in turns:
        if isinstance(turn, dict) and turn.keys() == {"human", "assistant"}:
            single += [{"from": speaker, "value": turn[speaker]} for speaker in ("human", "assistant")]
        elif isinstance(turn, dict) and {"input", "output"} <= turn.keys() <= _XTUNER:
            single += [{"from": "system", "value": turn["system"]}] if turn.get("system") else []
            single.append({"from": "human", "value": turn["input"]})
            single.append({"from": "gpt", "value": turn["output"], "loss": turn.get("output_with_loss")})
        else:
            single.append(turn)
    return single


def _split_thought(value: Any) -> tuple[str, Any]:
    """The thought before calls that are JSON text, and the calls; a template adds one more line break between them."""
    if not is_text(value) or not value.lstrip().startswith("<think>") or "</think>" not in value:
        return "", value
    thought, end, calls = value.partition("</think>")
    return f"{thought}{end}\n", calls


def _with_calls(turn: Any) -> Any:
    if not isinstance(turn, dict) or turn.get("from") != "function_call":
        return turn
    thought, calls = _split_thought(turn.get("value"))
    rest = {key: kept for key, kept in turn.items() if key not in ("from", "value")}
    return {**rest, "role": "assistant", "content": thought, "tool_calls": calls if listed(calls) else [None]}
