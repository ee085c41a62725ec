"""The characters of a rendered conversation that are trained on: exactly those that the model has to generate.

A template may trim, rewrite or drop the content of a message, so searching for the content in the rendered text does
not suffice. The text of turn i is found by a second rendering with other content in its place: the results are equal
before and after it, and only there. From there the beginning is moved back to the end of the generation prompt (a
template may write something in between, such as an empty thought, that the model has to generate), and the end is moved
behind the stop token.

A template with {% generation %} tags marks the trained text, as in transformers; a stop token that directly follows the
tags is added if the tags contain none.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from ascendtune.core.errors import DataError
from ascendtune.data.conversation import Conversation, Message
from ascendtune.data.omissions import leaves_out_text_of_calls, omission
from ascendtune.data.tokenizer import Tokenizer

# Unicode's noncharacters: templates do not contain them, and data rarely does.
_BORDERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]

_AFTER: Mapping[str, tuple[str, ...]] = {"system": ("user",), "user": ("assistant",), "assistant": ("user",)}
# Conversations up to this length are always rendered completely.
_MANY_MESSAGES = 64
# Turns over all renderings of one conversation: about ten seconds.
_MOST_RENDERED = 2_000_000

Span = tuple[int, int]


class TemplateRefusedRow(DataError):
    """The template refuses this conversation; `reason` is the template's own message."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the chat template refuses this conversation: {reason}",
            code="template-refuses-row",
            remedy="change the conversation, or choose another template",
        )
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Rendered:
    """`text`, and the character ranges [begin, end) of it that are trained on, ascending and disjoint."""

    text: str
    spans: list[Span]
    leaves_out_text: bool = False
    """Whether the text beside a tool call that is trained on is not in `text`."""


class NeededSpans(NamedTuple):
    """The part of a text whose spans are needed, in characters."""

    whole: int
    """All spans are needed for a text up to this length."""
    beginning: int
    """For a longer text: the spans that begin before this are needed; others may be missing."""


class Template(Protocol):
    """The part of `ChatTemplate` that is used here."""

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


def find_spans(template: Template, conversation: Conversation, needed: NeededSpans | None = None) -> Rendered:
    """Render a conversation, and find the spans that are trained on.

    Args:
        needed: the part of the text whose spans are needed; by default all of it.

    Raises:
        TemplateRefusedRow: the template refuses the conversation, or it has too many turns to find their spans in time.
    """
    text, marked = template.text_of(conversation.messages, conversation.tools)
    if reason := omission(template, conversation, text):
        raise TemplateRefusedRow(reason)
    leaves_out = leaves_out_text_of_calls(template, conversation, text)
    if needed is not None and len(text) > needed.whole and len(conversation.messages) > _MANY_MESSAGES:
        shorter = _beginning(template, conversation, text, needed.beginning)
        if shorter is not None:
            spans = find_spans(template, shorter).spans
            return Rendered(text, [(begin, end) for begin, end in spans if begin < needed.beginning], leaves_out)
    return Rendered(*_text_and_spans(template, conversation, text, marked), leaves_out)


def _beginning(template: Template, conversation: Conversation, text: str, enough: int) -> Conversation | None:
    """The first turns of a long conversation, if the template renders them as in the whole conversation."""
    messages = conversation.messages
    count = 4 + 2 * enough * len(messages) // len(text)
    while count < len(messages) // 2:
        while count < len(messages) and messages[count - 1]["role"] != "assistant":
            count += 1
        shorter = Conversation(messages[:count], conversation.tools)
        if _agreement(text, template.text_of(shorter.messages, shorter.tools)[0]) >= enough:
            return shorter
        count *= 2
    return None


def _text_and_spans(
    template: Template, conversation: Conversation, text: str, marked: list[Span]
) -> tuple[str, list[Span]]:
    messages = conversation.messages
    turns = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    # Finding one turn renders all of them again.
    if len(marked) != len(turns) and len(turns) * len(messages) > _MOST_RENDERED:
        raise TemplateRefusedRow(f"its {len(messages):,} turns take too long to separate; divide it")
    finder = _Finder(template, conversation, text)
    if marked:
        finder.require_turns(roles=["assistant"])
    if not _alternates(messages):
        finder.require_turns()
    trained = [turn for turn in turns if messages[turn].get("train", True)]
    if len(marked) == len(turns):
        of_turn = dict(zip(turns, marked, strict=True))
        spans = [finder.with_stop_after_mark(of_turn[turn], marked, messages[turn]["content"]) for turn in trained]
    elif marked and trained == turns:
        # Several tags per turn: the turn of a tag does not matter if all turns are trained on.
        spans = [finder.with_stop_after_mark(span, marked, "") for span in marked]
    else:
        spans = [span for turn in trained if (span := finder.span_of(turn))]
    is_last_trained = spans and trained[-1:] == [len(messages) - 1]
    if is_last_trained and not text[: spans[-1][1]].rstrip().endswith(template.stop_tokens or ("\0",)):
        # The template writes no token at the end of an answer: the model has to generate the following text, and then
        # EOS.
        text += template.tokenizer.eos or ""
        spans[-1] = (spans[-1][0], len(text))
    return text, [(0, len(text))] if template.loss_on == "all" else spans


def _alternates(messages: Sequence[Message]) -> bool:
    """Whether questions and answers alternate, after an optional system message: every template supports this order."""
    allowed: tuple[str, ...] = ("system", "user")
    for message in messages:
        if message["role"] not in allowed:
            return False
        allowed = _AFTER[message["role"]]
    return True


class _Finder:
    """Finds the spans of one rendered conversation."""

    def __init__(self, template: Template, conversation: Conversation, text: str) -> None:
        self._template = template
        self._messages = conversation.messages
        self._tools = conversation.tools
        self._text = text
        self._other_text = _text_unlike(text)

    def span_of(self, turn: int) -> Span | None:
        """The span that has to be generated for assistant message `turn`; None if the template omits it."""
        written = self._written_by(turn)
        if written is None:
            return None
        begin = self._generation_begins(turn, written)
        if turn and begin < written[0] and self._messages[turn - 1]["role"] in ("assistant", "tool"):
            # A template may write one header for consecutive turns (Gemma 4, Apertus).
            earlier = self._written_by(turn - 1)
            begin = written[0] if earlier and begin < earlier[1] else begin
        end = self._result_begins(turn, begin, written)
        return self.with_stop((begin, self._end_of_turn(turn, begin, end)))

    def require_turns(self, roles: Collection[str] = ("system", "user", "assistant", "tool")) -> None:
        """Raise if the template omits a turn.

        Raises:
            TemplateRefusedRow: the text would be the same without the content of a turn of `roles`.
        """
        behind, rendered = 0, 0
        for turn, message in enumerate(self._messages):
            content = message["content"].strip()
            if message["role"] not in roles or message.get("tool_calls") or not content:
                continue
            # Templates usually write turns in order: searching from the last match keeps long conversations linear.
            at = self._text.find(content, behind)
            if at >= 0:
                behind = at + 1
                continue
            rendered += len(self._messages)
            if rendered > _MOST_RENDERED:
                raise TemplateRefusedRow(f"its {len(self._messages):,} turns take too long to separate; divide it")
            if content not in self._text and self._written_by(turn) is None:
                raise TemplateRefusedRow(f"it omits turn {turn + 1} ({message['role']})")

    def with_stop_after_mark(self, span: Span, marked: Sequence[Span], content: str) -> Span:
        """A tagged span, with the stop token that follows it if neither it nor another tag contains one.

        Args:
            content: content of the message; a stop token in it is not the template's.
        """
        written = self._text[span[0] : span[1]]
        own = written.partition(content.strip())[2] if content.strip() else written
        if own.rstrip().endswith(_stop_texts(self._template)):
            return span
        extended = self.with_stop(span)
        return span if any(span[1] <= begin < extended[1] for begin, _ in marked) else extended

    def with_stop(self, span: Span) -> Span:
        """The span including the stop token that follows it, and the white space before that."""
        stop = _stops(self._template).match(self._text, span[1])
        return (span[0], stop.end()) if stop else span

    def _written_by(self, turn: int) -> Span | None:
        refusal: TemplateRefusedRow | None = None
        for other in _with_other_text(self._messages[turn], self._other_text):
            try:
                text, _ = self._template.text_of(self._replaced(turn, other), self._tools)
            except TemplateRefusedRow as error:
                refusal = error
                continue
            if text == self._text:
                return None
            begin = _agreement(self._text, text)
            end = max(begin, len(self._text) - _agreement(self._text[begin:], text[begin:], at_end=True))
            end = self._end_of_calls(end) if other.get("tool_calls") else self._token_around(end)[1]
            return self._token_around(begin)[0], end
        raise refusal or TemplateRefusedRow("the assistant's turn cannot be found in what the template writes")

    def _end_of_calls(self, end: int) -> int:
        """The end of a tool call's syntax after the other text: the first special token."""
        specials = self._template.tokenizer.special_tokens
        after = [at for token in specials if (at := self._text.find(token, end)) >= 0]
        return min(after, default=end)

    def _generation_begins(self, turn: int, written: Span) -> int:
        try:
            prompt, _ = self._template.text_of(self._messages[:turn], self._tools, add_generation_prompt=True)
            if self._text.startswith(prompt) and len(prompt) <= written[1]:
                return len(prompt)
            before, _ = self._template.text_of(self._messages[:turn], self._tools)
            alone, _ = self._template.text_of(self._messages[: turn + 1], self._tools)
        except TemplateRefusedRow:
            return written[0]
        # Mistral moves the tools to the last question: the generated text is the same after the moved text.
        generated = alone[len(prompt) :] if alone.startswith(prompt) else ""
        at = self._text.rfind(generated, 0, written[0] + len(generated)) if generated else -1
        if 0 <= at <= written[0] < at + len(generated):
            return at
        # Earlier turns are rendered differently when later ones follow; the header of this turn is not.
        header = prompt.removeprefix(before) if prompt.startswith(before) else ""
        at = self._text.rfind(header, 0, written[0]) if header else -1
        if at < 0:
            return written[0]
        between = self._text[at + len(header) : written[0]]
        # Special tokens may belong to other turns (Gemma 4), unless the header directly follows the previous turn.
        is_other = any(token in between for token in self._template.tokenizer.special_tokens)
        if is_other and not self._ends_with(turn - 1, at, before):
            return written[0]
        return at + len(header)

    def _ends_with(self, turn: int, end: int, before: str) -> bool:
        """Whether the text up to `end` ends with the content of `turn` as `before` does, of which it is the last."""
        same = self._text[end - _agreement(self._text[:end], before, at_end=True) : end]
        content = self._messages[turn]["content"].strip()
        return bool(content) and any(form in same for form in (content, json.dumps(content, ensure_ascii=False)[1:-1]))

    def _result_begins(self, turn: int, begin: int, written: Span) -> int:
        """Where a template writes the result of the calls of `turn` into the same turn (Gemma 4), or repeats the name
        of the function before the result (gpt-oss); the end of the written text if it does neither."""
        message, following = self._messages[turn], self._messages[turn + 1 : turn + 2]
        if not message.get("tool_calls") or not following or following[0]["role"] != "tool":
            return written[1]
        # The turn is written without its thought, which may be its content, if a later one answers. Gemma 4 writes its
        # content after the result.
        bare: Message = {"role": "assistant", "content": message["content"], "tool_calls": message["tool_calls"]}
        thoughtful: Message = {**message, "content": ""}
        without_content: Message = {**bare, "content": ""}
        called = Counter(call["function"]["name"] for call in message["tool_calls"])
        for last in (message, thoughtful, bare, without_content):
            ending = Conversation([*self._messages[:turn], last], self._tools)
            try:
                alone = _Finder(self._template, ending, self._template.text_of(ending.messages, ending.tools)[0])
                found = alone._written_by(turn)
            except TemplateRefusedRow:
                continue
            if found is None:
                continue
            for here, there in ((written[0], found[0]), (begin, alone._generation_begins(turn, found))):
                alike = _agreement(self._text[here : written[1]], alone._text[there:])
                end = self._token_around(here + alike)[0]
                calls, rest = self._text[here:end], alone._text[there + end - here :]
                # Apriel writes the ids of calls only if a result follows: the calls continue after the difference.
                is_whole = not rest.strip() or _stops(self._template).match(rest)
                if is_whole and all(calls.count(name) >= times for name, times in called.items()):
                    return end
        return written[1]

    def _end_of_turn(self, turn: int, begin: int, end: int) -> int:
        """The first stop token after the calls of `turn`: a template may write the next turn's header there (Cohere);
        `end` if there is none."""
        message = self._messages[turn]
        calls = message.get("tool_calls")
        if not calls:
            return end
        stops, last = _stops(self._template), self._text.rfind(calls[-1]["function"]["name"], begin, end)
        stop = stops.search(self._text, max(begin, last), end)
        if stop is None or stop.end() == end:
            return end
        # The stop token may be part of an argument: those end where the text with other calls is equal again.
        *_, other = _with_other_text(message, self._other_text)
        try:
            text, _ = self._template.text_of(self._replaced(turn, other), self._tools)
        except TemplateRefusedRow:
            return end
        written = len(self._text) - _agreement(self._text[begin:], text[begin:], at_end=True)
        stop = stops.search(self._text, written, end)
        return stop.end() if stop else end

    def _token_around(self, at: int) -> Span:
        """The special token that contains position `at`; `at` itself if there is none."""
        for token in self._template.tokenizer.special_tokens:
            begin = self._text.find(token, max(0, at - len(token) + 1), at + len(token) - 1)
            if begin >= 0:
                return begin, begin + len(token)
        return at, at

    def _replaced(self, turn: int, other: Message) -> list[Message]:
        return [*self._messages[:turn], other, *self._messages[turn + 1 :]]


def _text_unlike(text: str) -> str:
    """A text whose first and last characters are not in `text`, so that agreement with it ends exactly there."""
    unused = [border for border in _BORDERS if border not in text]
    if len(unused) < 2:
        raise TemplateRefusedRow("it contains nearly all of Unicode's noncharacters, which are not text")
    return f"{unused[0]}other{unused[1]}"


def _with_other_text(message: Message, other_text: str) -> Iterator[Message]:
    """Copies of the message with another content: as a plain answer, then, for tool calls, within the same calls."""
    # A tool's result has the id of its call, without which a template may refuse it.
    kept: Message = message if message["role"] == "tool" else {"role": message["role"]}
    yield {**kept, "content": other_text}
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
    choices = "|".join(map(re.escape, _stop_texts(template)))
    return re.compile(rf"\s*(?:{choices})" if choices else r"(?!)")


def _stop_texts(template: Template) -> tuple[str, ...]:
    """Texts that can end an answer, longest first.

    If a template writes nothing at the end of an answer, generation stops at the token that opens the next turn:
    GLM-4's models generate `<|user|>` themselves, and `<|observation|>` after calls.
    """
    texts = {*template.stop_tokens, *filter(None, (template.turn_end,))}
    return tuple(sorted(texts, key=len, reverse=True))


def _agreement(one: str, other: str, *, at_end: bool = False) -> int:
    """Number of characters that agree, from the beginning or from the end. Slices are compared at memory speed."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        same = one[-middle:] == other[-middle:] if at_end else one[:middle] == other[:middle]
        low, high = (middle, high) if same else (low, middle - 1)
    return low
