"""Which characters of a rendered conversation the model must learn: exactly those that it would have to generate.

A template may trim, rewrite or drop what a message says, so looking for the message's text in the rendered text is not
enough. What turn i wrote is found by rendering once more with another text in its place: the two results agree before
and after it, and only there. From there the beginning moves back to the end of the generation prompt (a template may
put something in between, such as an empty thought, that the model has to write), and the end moves over the stop token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ascendtune.core.errors import DataError
from ascendtune.data.conversation import Conversation, Message
from ascendtune.data.tokenizer import Tokenizer

# Unicode's noncharacters: no template has them, and data hardly ever.
_BORDERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]

Span = tuple[int, int]


class Refused(DataError):
    """The template does not take this conversation; `reason` is said in the template's own words."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the chat template refuses this conversation: {reason}",
            remedy="change the conversation, or choose another template",
        )
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Rendered:
    """`text`, and the character ranges (begin, end) of it that are learnt, ascending and disjoint."""

    text: str
    spans: list[Span]


class Template(Protocol):
    """What has to be known of a `ChatTemplate` here."""

    tokenizer: Tokenizer
    loss_on: Literal["assistant", "all"]

    @property
    def turn_end(self) -> str | None: ...

    @property
    def stop_tokens(self) -> tuple[str, ...]: ...

    def text_of(
        self,
        messages: Sequence[Message],
        tools: list[dict[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = False,
    ) -> tuple[str, list[Span]]: ...


def find_spans(template: Template, conversation: Conversation) -> Rendered:
    """Render, and find what is learnt.

    Raises:
        Refused: the template does not take the conversation.
    """
    messages, tools = conversation.messages, conversation.tools
    text, marked = template.text_of(messages, tools)
    _require_tools_in(text, conversation)
    turns = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    finder = _Finder(template, conversation, text)
    if len(marked) == len(turns):
        found = {
            turn: finder.with_stop(span) for turn, span in zip(turns, marked, strict=True) if _is_learnt(messages[turn])
        }
    else:
        found = {turn: span for turn in turns if _is_learnt(messages[turn]) and (span := finder.span_of(turn))}
    last = len(messages) - 1
    if last in found and not text[: found[last][1]].rstrip().endswith(template.stop_tokens or ("\0",)):
        # The template ends its answers with no token: the model has to write whatever follows, and then EOS.
        text += template.tokenizer.eos or ""
        found[last] = (found[last][0], len(text))
    spans = [(0, len(text))] if template.loss_on == "all" else [*found.values()]
    return Rendered(text, spans)


def _require_tools_in(text: str, conversation: Conversation) -> None:
    """Many templates write role and content and nothing else: a call would vanish, and an empty turn be learnt."""
    calls = [call["function"]["name"] for message in conversation.messages for call in message.get("tool_calls", ())]
    offered = [str(tool.get("function", tool).get("name", "")) for tool in conversation.tools or ()]
    for what, names in (("tool calls", calls), ("tools", offered)):
        if any(name not in text for name in names):
            raise Refused(f"it has no way to write {what}")


def _is_learnt(message: Message) -> bool:
    return message.get("train", True)


class _Finder:
    """Looks at one rendered conversation."""

    def __init__(self, template: Template, conversation: Conversation, text: str) -> None:
        self._template = template
        self._messages = conversation.messages
        self._tools = conversation.tools
        self._text = text
        self._other_text = _text_unlike(text)

    def span_of(self, turn: int) -> Span | None:
        """What has to be generated for the assistant's message number `turn`; None when the template leaves it out."""
        written = self._written_by(turn)
        if written is None:
            return None
        return self.with_stop((self._generation_begins(turn, written), written[1]))

    def with_stop(self, span: Span) -> Span:
        """The span up to and including the stop token that follows it, white space before it included."""
        found = _stops(self._template).match(self._text, span[1])
        return (span[0], found.end()) if found else span

    def _written_by(self, turn: int) -> Span | None:
        refusal: Refused | None = None
        for other in _with_other_text(self._messages[turn], self._other_text):
            try:
                text, _ = self._template.text_of(self._replaced(turn, other), self._tools)
            except Refused as error:
                refusal = error
                continue
            if text == self._text:
                return None
            begin = _agreement(self._text, text)
            end = max(begin, len(self._text) - _agreement(self._text[begin:], text[begin:], at_end=True))
            return begin, self._end_of_calls(end) if other.get("tool_calls") else end
        raise refusal or Refused("the assistant's turn cannot be found in what the template writes")

    def _end_of_calls(self, end: int) -> int:
        """After the other text came the rest of the call's syntax, up to the first special token."""
        specials = self._template.tokenizer.special_tokens
        after = [at for token in specials if (at := self._text.find(token, end)) >= 0]
        return min(after, default=end)

    def _generation_begins(self, turn: int, written: Span) -> int:
        try:
            prompt, _ = self._template.text_of(self._messages[:turn], self._tools, add_generation_prompt=True)
            if self._text.startswith(prompt) and len(prompt) <= written[1]:
                return len(prompt)
            before, _ = self._template.text_of(self._messages[:turn], self._tools)
        except Refused:
            return written[0]
        # Earlier turns look different once later ones follow; the header of this turn does not.
        header = prompt.removeprefix(before) if prompt.startswith(before) else ""
        at = self._text.rfind(header, 0, written[0]) if header else -1
        between = self._text[at + len(header) : written[0]]
        if at < 0 or any(token in between for token in self._template.tokenizer.special_tokens):
            return written[0]
        return at + len(header)

    def _replaced(self, turn: int, other: Message) -> list[Message]:
        return [*self._messages[:turn], other, *self._messages[turn + 1 :]]


def _text_unlike(text: str) -> str:
    """Begins and ends with characters that are not in `text`, so that agreement with it stops exactly there."""
    unused = [border for border in _BORDERS if border not in text]
    if len(unused) < 2:
        raise Refused("it holds nearly all of Unicode's noncharacters, which are no text")
    return f"{unused[0]}other{unused[1]}"


def _with_other_text(message: Message, other_text: str) -> Iterator[Message]:
    """The message saying something else: first as a plain answer, then, where calls must stay, in the same calls."""
    plain: Message = {"role": message["role"], "content": other_text}
    yield plain
    if calls := message.get("tool_calls"):
        other: Message = {
            **message,
            "tool_calls": [
                {**call, "function": {"name": other_text, "arguments": {other_text: other_text}}} for call in calls
            ],
        }
        if message.get("content"):
            other["content"] = other_text
        yield other


def _stops(template: Template) -> re.Pattern[str]:
    texts = {*template.stop_tokens, *([template.turn_end] if template.turn_end else [])}
    choices = "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))
    return re.compile(rf"\s*(?:{choices})" if choices else r"(?!)")


def _agreement(one: str, other: str, *, at_end: bool = False) -> int:
    """How many characters agree, counted from the beginning or from the end. Slices compare at memory speed."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        same = one[-middle:] == other[-middle:] if at_end else one[:middle] == other[:middle]
        low, high = (middle, high) if same else (low, middle - 1)
    return low
