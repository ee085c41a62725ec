"""LLaMA-Factory's templates, read from the source that registers them without running it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendtune.data.conversation import Message

Slot = Any
"""Text with {{content}} in it, a set of one special token's name, or {"token": text}."""

_THOUGHT_WORDS = ("<think>\n", "\n</think>\n\n")
Piece = tuple[str, bool]
"""Text, and whether it is learnt."""


@dataclass(frozen=True)
class TheirTemplate:
    name: str
    slots: dict[str, list[Slot]]
    """prefix, system, user, assistant."""
    default_system: str
    stop_words: list[str]
    efficient_eos: bool
    replace_eos: bool
    kind: str
    """Their class."""
    thought_words: tuple[str, str]

    def eos(self, own: str) -> str:
        """The token that ends a text, where the tokenizer's own is `own`."""
        return self.stop_words[0] if self.replace_eos else own

    def write(self, messages: list[Message], *, bos: str, eos: str, last_only: bool) -> list[Piece]:
        """What theirs writes for a conversation that ends with an answer.

        Args:
            last_only: as for preferences, where only the last answer is learnt, and keeps its thought.
        """
        system = messages[0]["content"] if messages[0]["role"] == "system" else self.default_system
        turns = messages[1:] if messages[0]["role"] == "system" else messages
        fused = self.kind == "Llama2Template"
        before = _filled(self.slots["system"], system, bos, eos) if system else ""
        pieces = [(_filled(self.slots["prefix"], "", bos, eos) + ("" if fused else before), False)]
        for number, message in enumerate(turns):
            content, is_last = message["content"], number == len(turns) - 1
            if message["role"] == "user":
                text = (before if fused and not number else "") + content
                pieces.append((_filled(self.slots["user"], text, bos, eos), False))
                continue
            thought = ""
            if self._thinks and last_only and not is_last:
                begin, end = map(re.escape, self.thought_words)
                content = re.sub(f"{begin}(.*?){end}", "", content, flags=re.DOTALL).lstrip("\n")
            elif self._thinks and not any(word.strip() in content for word in self.thought_words):
                thought = self._empty_thought
            ending = eos if self.efficient_eos and is_last else ""
            pieces.append(
                (thought + _filled(self.slots["assistant"], content, bos, eos) + ending, is_last or not last_only)
            )
        return pieces

    @property
    def _thinks(self) -> bool:
        return self.kind in ("ReasoningTemplate", "Glm47ReasoningTemplate")

    @property
    def _empty_thought(self) -> str:
        return self.thought_words[1] if self.kind == "Glm47ReasoningTemplate" else "".join(self.thought_words)


def read_templates(source: Path) -> dict[str, TheirTemplate]:
    """Name -> template, from their data/template.py."""
    calls = [
        node.value
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ]
    made = [_template(call) for call in calls if getattr(call.func, "id", "") == "register_template"]
    return {each.name: each for each in made}


def _template(call: ast.Call) -> TheirTemplate:
    given = {keyword.arg: keyword.value for keyword in call.keywords}

    def plain(name: str, default: Any) -> Any:
        return ast.literal_eval(given[name]) if name in given else default

    def slots(name: str, default: list[Slot]) -> list[Slot]:
        if name not in given:
            return default
        formatter = given[name]
        assert isinstance(formatter, ast.Call)
        found = {keyword.arg: keyword.value for keyword in formatter.keywords}
        return list(ast.literal_eval(found["slots"])) if "slots" in found else default

    efficient = plain("efficient_eos", False)
    return TheirTemplate(
        plain("name", ""),
        {
            "prefix": slots("format_prefix", []),
            "system": slots("format_system", ["{{content}}"]),
            "user": slots("format_user", ["{{content}}"]),
            "assistant": slots("format_assistant", ["{{content}}"] if efficient else ["{{content}}", {"eos_token"}]),
        },
        plain("default_system", ""),
        plain("stop_words", []),
        efficient,
        plain("replace_eos", False),
        getattr(given.get("template_class"), "id", "Template"),
        plain("thought_words", _THOUGHT_WORDS),
    )


def _filled(slots: list[Slot], content: str, bos: str, eos: str) -> str:
    written = []
    for slot in slots:
        if isinstance(slot, set):
            written.append(bos if "bos_token" in slot else eos)
        elif isinstance(slot, dict):
            written.append(slot["token"])
        else:
            written.append(slot.replace("{{content}}", content))
    return "".join(written)
