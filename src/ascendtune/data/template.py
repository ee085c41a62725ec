"""Chat templates: convert messages to the text for the model, and mark the part of it that is trained on."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import jinja2

from ascendtune.core.errors import DataError, RecipeError, read_fault
from ascendtune.core.files import expanded, is_endless
from ascendtune.data.conversation import Conversation, Message
from ascendtune.data.jinja import ChatEnvironment, split_generation_marks
from ascendtune.data.spans import NeededSpans, Rendered, TemplateRefusedRow, find_spans
from ascendtune.data.spec import LAST_THOUGHT, NAMED, unknown
from ascendtune.data.template_limits import LimitExceeded, require_short
from ascendtune.data.tokenizer import Tokenizer

_MARKER = re.compile(r"<\|[^|<>\s]+\|>")

# Every other fault of a template raises one of these.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, NameError, RuntimeError
)  # fmt: skip


_LONGEST_REASON = 500
_NOT_OPTIONS = ("messages", "tools", "add_generation_prompt")
"""Names that are not options, because a row has its own fields for them."""
_UNUSUAL, _THOUGHT = "7302946185", "8206514973"
"""An answer and a thought that no template itself contains, unlike the word in `</answer>`, and that a change of case
does not change."""
# Bytes; longer files are refused.
_LONGEST_FILE = 4_000_000


class TemplateTooCostly(DataError):
    """A template that would not end or fill the memory; one conversation suffices to detect it.

    Attributes:
        row: number of the conversation, if known.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            what,
            code="template-too-costly",
            remedy=f"check the template and this row; or set data.template to one of {', '.join(NAMED)}",
        )
        self.row: int | None = None


class ChatTemplate:
    """A Jinja chat template together with the tokenizer whose special tokens it writes.

    Args:
        source: the Jinja text.
        name: for messages.
        loss_on: train on the assistant's turns, or on everything.
        environment: compiles the template.

    Raises:
        RecipeError: the source is not valid Jinja.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        name: str = "auto",
        loss_on: Literal["assistant", "all"] = "assistant",
        environment: ChatEnvironment | None = None,
    ) -> None:
        self.source = source
        self.tokenizer = tokenizer
        self.name = name
        self.loss_on = loss_on
        self.environment = environment or ChatEnvironment()
        self._options: dict[str, Any] = {}
        self._compiled = self._compile()

    def _compile(self) -> jinja2.Template:
        what = f"{self._title} is not valid Jinja"
        try:
            require_short(self.source)
            # Jinja computes constants when it compiles.
            self.environment.meter.start(0, len(self.source))
            return self.environment.from_string(self.source)
        except jinja2.TemplateSyntaxError as error:
            what += f": {error.message} (line {error.lineno} of the template)"
            cause: Exception = error
        except LimitExceeded as error:
            what, cause = f"{self._title} is refused: {error}", error
        except (RecursionError, MemoryError) as error:
            what, cause = f"{what}: nested too deeply", error
        except (SyntaxError, *_TEMPLATE_FAULTS) as error:
            what, cause = f"{what}: {error}", error
        raise RecipeError(
            what,
            code="invalid-template",
            remedy=f"correct it, or set data.template to one of {', '.join(NAMED)}",
            where=self._file,
        ) from cause

    @property
    def _title(self) -> str:
        return "the model's chat template" if self.name == "auto" else f"the chat template '{self.name}'"

    @property
    def _file(self) -> Path | None:
        """The file that a user may correct."""
        if self.name == "auto":
            return self.tokenizer.chat_template_file
        return None if self.name in NAMED else expanded(self.name)

    @classmethod
    def load(
        cls, template: str, tokenizer: Tokenizer, *, loss_on: Literal["assistant", "all"] = "assistant"
    ) -> ChatTemplate:
        """The template for a value of `data.template`.

        Raises:
            RecipeError: the model has none, the name or file does not exist, or it is not valid Jinja.
        """
        return cls(template_source(template, tokenizer), tokenizer, name=template, loss_on=loss_on)

    def render(self, conversation: Conversation, needed: NeededSpans | None = None) -> Rendered:
        """The whole conversation, with EOS if the template itself ends the answer without a stop token.

        Args:
            needed: the part of the text whose spans are needed; by default all of it.

        Raises:
            TemplateRefusedRow: the template refuses the conversation.
        """
        return find_spans(self.with_options(conversation.options), conversation, needed)

    def with_options(self, options: dict[str, Any] | None) -> ChatTemplate:
        """This template, with `options` as variables of every rendering."""
        if not options:
            return self
        # The copy shares the cached values of this one, and is not compiled again.
        for known in ("stop_tokens", "_takes_arguments_as_text", "_takes_thoughts_as_parts"):
            getattr(self, known)
        changed = copy(self)
        changed._options = {name: value for name, value in options.items() if name not in _NOT_OPTIONS}
        return changed

    def render_prompt(self, messages: Sequence[Message], tools: list[dict[str, Any]] | None = None) -> str:
        """The text after which the model answers.

        Raises:
            TemplateRefusedRow: the template refuses it.
        """
        return self.text_of(messages, tools, add_generation_prompt=True)[0]

    def text_of(
        self,
        messages: Sequence[Message],
        tools: list[dict[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = False,
    ) -> tuple[str, list[tuple[int, int]]]:
        """The rendered text, and the ranges that its {% generation %} tags mark (none without such tags)."""
        shown = [self._as_expected(message) for message in messages]
        # `str.__len__`, because the length of a placeholder must not be asked for (see `skeleton`).
        given = sum(str.__len__(each.get("content") or "") for each in messages)
        self.environment.meter.start(len(messages), given)
        try:
            text = self._compiled.render(
                {"documents": None, **self._options},
                messages=shown,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                **self.tokenizer.named_tokens,
            )
            text = "".join((text,))
            # A template can escape a lone surrogate, which no tokenizer accepts.
            text.encode()
        except LimitExceeded as error:
            raise TemplateTooCostly(f"{self._title} was stopped: {error}") from error
        except (RecursionError, MemoryError) as error:
            raise TemplateTooCostly(f"{self._title} was stopped: its calls do not end") from error
        except _TEMPLATE_FAULTS as error:
            raise TemplateRefusedRow(str(error)[:_LONGEST_REASON] or type(error).__name__) from error
        return split_generation_marks(text)

    def _as_expected(self, message: Message) -> dict[str, Any]:
        """The message without our own key; reasoning also under its older name, as transformers passes it on; arguments
        as text for a template that cannot write objects."""
        shown: dict[str, Any] = {key: value for key, value in message.items() if key != "train"}
        if shown.get("reasoning_content") is not None:
            shown.setdefault("thinking", shown["reasoning_content"])
        if shown.get("tool_calls") and self._takes_arguments_as_text:
            shown["tool_calls"] = [_with_arguments_as_text(call) for call in shown["tool_calls"]]
        if shown.get("reasoning_content") and self._takes_thoughts_as_parts:
            shown["content"] = _as_parts(shown["reasoning_content"], shown["content"])
        return shown

    @cached_property
    def _takes_arguments_as_text(self) -> bool:
        """Whether the template writes arguments as they are, not as JSON: DeepSeek-V3's fails on objects, others would
        write them as Python does."""
        call = {"type": "function", "function": {"name": "probe", "arguments": {"key": "value"}}}
        turn: dict[str, Any] = {"role": "assistant", "content": ""}
        texts = [self._written_turn({**turn, "tool_calls": [each]}) for each in (call, _with_arguments_as_text(call))]
        return (texts[0] is None or "{'key': 'value'}" in texts[0]) and texts[1] is not None

    @cached_property
    def _takes_thoughts_as_parts(self) -> bool:
        """Whether the template writes thoughts only if they are parts of the content, like Mistral's."""
        turn: dict[str, Any] = {"role": "assistant", "content": _UNUSUAL}
        beside = self._written_turn({**turn, "reasoning_content": _THOUGHT, "thinking": _THOUGHT}) or ""
        within = self._written_turn({**turn, "content": _as_parts(_THOUGHT, _UNUSUAL)}) or ""
        writes_list = any(word in within for word in ("'type'", '"type"'))
        return _THOUGHT not in beside and all(each in within for each in (_THOUGHT, _UNUSUAL)) and not writes_list

    def _written_turn(self, turn: dict[str, Any]) -> str | None:
        """The rendering of a turn after a question; None if it fails."""
        messages = [{"role": "user", "content": "question"}, turn]
        self.environment.meter.start(len(messages), 0)
        try:
            return self._compiled.render(
                messages=messages, tools=None, add_generation_prompt=False, **self.tokenizer.named_tokens
            )
        except (LimitExceeded, RecursionError, MemoryError, *_TEMPLATE_FAULTS):
            return None

    @cached_property
    def turn_end(self) -> str | None:
        """The text that the template writes directly after an answer to end it: `<|im_end|>`, `</s>`, …; None if
        nothing.

        Several tokens if generation stops at a later one: Cohere writes `<|END_RESPONSE|><|END_OF_TURN_TOKEN|>`. EOS if
            it is
        written only before the next question (Apertus).
        """
        question: Message = {"role": "user", "content": "question"}
        answered: list[Message] = [question, {"role": "assistant", "content": _UNUSUAL}]
        try:
            rest = self._after_answer(answered)
        except TemplateRefusedRow:
            return self.tokenizer.eos
        tokens = self._tokens_at_beginning(rest)
        ends = {self.tokenizer.text_of(number) for number in self.tokenizer.eos_ids}
        at = next((number for number, token in enumerate(tokens) if token in ends), 0)
        # A marker that is not a token of this tokenizer must be generated by the model nevertheless.
        end = "".join(tokens[: at + 1]) or (rest if rest and not re.search(r"\s", rest) else None)
        return end or self._eos_before([*answered, question])

    def _eos_before(self, continued: Sequence[Message]) -> str | None:
        eos = self.tokenizer.eos
        try:
            return eos if eos and self._after_answer(continued).startswith(eos) else None
        except TemplateRefusedRow:
            return None

    def _after_answer(self, messages: Sequence[Message]) -> str:
        """The text after the answer `_UNUSUAL`, without surrounding white space."""
        text, _ = self.text_of(messages)
        return text.rpartition(_UNUSUAL)[2].strip() if _UNUSUAL in text else ""

    def _tokens_at_beginning(self, text: str) -> list[str]:
        """The consecutive added tokens at the beginning of `text`."""
        added = sorted(self.tokenizer.added_tokens, key=len, reverse=True)
        tokens: list[str] = []
        while token := next((token for token in added if token and text.startswith(token)), None):
            tokens.append(token)
            text = text.removeprefix(token)
        return tokens

    @cached_property
    def stop_tokens(self) -> tuple[str, ...]:
        """Single tokens that end a turn."""
        texts = [self.turn_end, *map(self.tokenizer.text_of, self.tokenizer.eos_ids)]
        return tuple(dict.fromkeys(text for text in texts if text and text in self.tokenizer.added_tokens))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Token ids at which generation stops; the template's own turn end first."""
        ids = [*map(self.tokenizer.id_of, self.stop_tokens), *self.tokenizer.eos_ids]
        return tuple(dict.fromkeys(each for each in ids if each is not None))

    @property
    def warnings(self) -> list[str]:
        """Warnings about mismatches between template and tokenizer."""
        messages = []
        split = sorted({marker for marker in _MARKER.findall(self.source) if marker not in self.tokenizer.added_tokens})
        if split and self.name != "auto":
            messages.append(
                f"the template '{self.name}' writes {', '.join(split)}, which this tokenizer splits into several "
                f"tokens; set model.new_tokens: [{', '.join(split)}] to make each one token"
            )
        if not self.stop_tokens:
            messages.append(
                "neither tokenizer nor template names a token that ends an answer: the model cannot learn to stop"
            )
        if prefix := self._prefix_not_learnt:
            messages.append(
                f"prompts end with {prefix!r}, which the template does not write before an answer without a thought: "
                "such answers are trained on after another prompt than at inference; give them "
                "thoughts (reasoning_content), or choose a data.template that writes it"
            )
        return messages

    @property
    def _prefix_not_learnt(self) -> str:
        """The end of a prompt that an answer without a thought does not begin with: `<think>` of DeepSeek-R1's
        distilled models and MiniMax-M2, an empty thought of Gemma 4. White space does not count."""
        question: Message = {"role": "user", "content": "question"}
        try:
            prompt = self.render_prompt([question])
            before, _ = self.text_of([question])
            text, _ = self.text_of([question, {"role": "assistant", "content": _UNUSUAL}])
        except TemplateRefusedRow:
            return ""
        if "".join(text.split()).startswith("".join(prompt.split())):
            return ""
        # The header is written before every answer.
        written = text.removeprefix(before).partition(_UNUSUAL)[0]
        header = prompt.removeprefix(before)
        return header.removeprefix(written).strip() or header.strip()


def template_source(template: str, tokenizer: Tokenizer) -> str:
    """The Jinja text for `auto`, a name, or a path."""
    if template == "auto":
        if source := tokenizer.chat_templates.get("default"):
            return source
        raise RecipeError(
            "the model has no chat template",
            code="template-missing",
            remedy=f"set data.template to one of {', '.join(NAMED)}, or to a path of a Jinja file",
            where=tokenizer.directory,
        )
    if template in NAMED:
        file = template.removesuffix(LAST_THOUGHT)
        source = files("ascendtune.data").joinpath("templates", f"{file}.jinja").read_text(encoding="utf-8")
        return source if file == template else "{%- set last_thought_only = true %}\n" + source
    path = expanded(template)
    try:
        if is_endless(path):
            raise RecipeError(
                "a pipe or a device, not a file",
                code="not-a-regular-file",
                remedy="write the template into a file",
                where=path,
            )
        with path.open("rb") as opened:
            return opened.read(_LONGEST_FILE).decode()
    except (OSError, UnicodeDecodeError) as error:
        what, remedy = unknown(template)
        raise read_fault(error, path) or RecipeError(
            what, code="unknown-template", remedy=remedy, where=path
        ) from error


def _as_parts(thought: str, content: str) -> list[dict[str, str]]:
    parts = [{"type": "thinking", "thinking": thought}, {"type": "text", "text": content}]
    return parts if content else parts[:1]


def _with_arguments_as_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}
