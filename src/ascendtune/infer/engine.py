"""Answers conversations with the chat template of training: messages become a prompt, tokens become text.

engine = load("runs/alpaca-qwen")
[answer] = engine.generate([[{"role": "user", "content": "Who are you?"}]])

This module does not import torch, so that wrong paths are reported at once.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascendtune.core.errors import InputError
from ascendtune.core.files import expanded
from ascendtune.core.rundir import RunDir
from ascendtune.data.conversation import BadRow, Message
from ascendtune.data.format.messages import messages_of
from ascendtune.data.spans import TemplateRefusedRow
from ascendtune.data.spec import NAMED
from ascendtune.data.template import ChatTemplate
from ascendtune.data.tokenizer import Tokenizer
from ascendtune.hub.adapter_files import check_adapter
from ascendtune.hub.download import fetch_weights
from ascendtune.hub.model_config import require_rows_for_tokens
from ascendtune.hub.model_directories import base_of_adapter, is_reward_model, weights_of_run
from ascendtune.hub.verify import check_model_directory, require_unquantised
from ascendtune.infer.answer import Answer, AnswerMarks

if TYPE_CHECKING:
    from ascendtune.infer.transformers_model import TransformersModel
    from ascendtune.machine.torch_backend.device import Device

_NO_CHARACTER = "\ufffd"
"""Written by tokenizers for bytes that are not a character, or only a part of one."""


def load(
    path: str | Path, device: Device | None = None, *, template: str = "auto", trust_remote_code: bool = False
) -> Engine:
    """Load a run's final weights, a model or adapter directory, or a hub id.

    Args:
        device: the default is the best one that torch can use.
        template: `auto` is the template saved with the weights, for a run that of its training; otherwise a name or a
            path, as `data.template` in a recipe.
        trust_remote_code: run the Python code in the model directory.

    Raises:
        InputError: the weights do not exist, or have no chat template.
        MachineError: a download failed, or the device cannot be used.
    """
    weights = find_weights(path)
    tokenizer = Tokenizer.load(weights.tokenizer)
    if not tokenizer.generation_config.is_file():
        # For an adapter the tokens that end an answer include those of its base.
        tokenizer.generation_config = weights.model / "generation_config.json"
    if weights.adapter is None:
        # An adapter contains the embeddings of its own tokens.
        require_rows_for_tokens(weights.model / "config.json", tokenizer.vocab_size, 0)
    return Engine(tokenizer, _template(template, tokenizer), _load_model(weights, tokenizer, device, trust_remote_code))


_BATCHES_AT_ONCE = 16
"""Batches after which answers are yielded: what follows may take hours, and may be interrupted."""


@dataclass(frozen=True)
class Sampling:
    """The number of generated tokens, and the method of choosing them.

    Args:
        temperature: 0 always chooses the most likely token; above 0, tokens are sampled with `top_p` and `seed`.

    Raises:
        InputError: a number is out of range.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise _out_of_range("max_new_tokens", self.max_new_tokens, "1 or more")
        # A comparison with NaN is false.
        if not 0 <= self.temperature < math.inf:
            raise _out_of_range("temperature", self.temperature, "0, or a number above it")
        if not 0 < self.top_p <= 1:
            raise _out_of_range("top_p", self.top_p, "a number above 0, at most 1")


class Engine:
    """Answers conversations; created by `load`."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, model: TransformersModel) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.model = model
        end = template.turn_end
        # The end of a turn may be text that is not a single token of this tokenizer.
        self._stop_text = end if end is not None and end not in tokenizer.added_tokens else None
        self._marks = AnswerMarks.of(template)

    def generate(
        self, conversations: Sequence[Sequence[Message]], max_new_tokens: int = 256, **options: Any
    ) -> list[str]:
        """The texts of `answers`, which has the same options."""
        return [each.text for each in self.answers(conversations, max_new_tokens, **options)]

    def answers(
        self,
        conversations: Sequence[Sequence[Message]],
        max_new_tokens: int = 256,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        batch_size: int = 32,
        tools: Sequence[list[dict[str, Any]] | None] | None = None,
        template_options: Sequence[dict[str, Any] | None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Iterator[Answer]:
        """One answer for each conversation, in order, without surrounding white space.

        They are yielded after every 16 batches, within which prompts of similar length are answered together.

        Args:
            temperature: 0 always chooses the most likely token; above 0, tokens are sampled with `top_p` and `seed`.
            batch_size: number of conversations that are answered together.
            tools: for each conversation the JSON schemas of its tools.
            template_options: for each conversation variables of the chat template: `{"enable_thinking": False}`.
            progress: called with (answered, total) after every batch.

        Raises:
            InputError: a conversation is not a list of messages, the template rejects it, or it is longer than the
                model's context; or an option is out of range.
        """
        sampling = Sampling(max_new_tokens, temperature, top_p, seed)
        if batch_size < 1:
            raise _out_of_range("batch_size", batch_size, "1 or more")
        none = [None] * len(conversations)
        prompts = [
            self._prompt(*each) for each in zip(conversations, tools or none, template_options or none, strict=True)
        ]
        at_once = batch_size * _BATCHES_AT_ONCE
        for first in range(0, len(prompts), at_once):
            answers = dict[int, Answer]()
            # Prompts of similar length need the least padding.
            order = sorted(range(first, min(first + at_once, len(prompts))), key=lambda number: len(prompts[number]))
            for start in range(0, len(order), batch_size):
                batch = order[start : start + batch_size]
                of_batch = replace(sampling, seed=seed + first + start)
                results = self._generated([prompts[number] for number in batch], of_batch)
                answers |= {number: self._answer(ids) for number, ids in zip(batch, results, strict=True)}
                if progress is not None:
                    progress(first + start + len(batch), len(prompts))
            yield from (answers[number] for number in sorted(answers))

    def stream(
        self,
        messages: Sequence[Message],
        on_text: Callable[[str], None],
        max_new_tokens: int = 256,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        on_thought: Callable[[str], None] | None = None,
    ) -> str:
        """`generate` for one conversation; `on_text` is called with each piece of the answer, in whole characters, and
        `on_thought` with those of the thought before it."""
        sampling = Sampling(max_new_tokens, temperature, top_p, seed)
        tokens: list[int] = []
        shown = Answer("")

        def show(parts: Answer) -> None:
            nonlocal shown
            if on_thought and len(parts.thought) > len(shown.thought):
                on_thought(parts.thought[len(shown.thought) :])
            if len(parts.text) > len(shown.text):
                on_text(parts.text[len(shown.text) :])
            shown = max(shown, parts, key=lambda each: len(each.thought) + len(each.text))

        def on_token(token: int) -> None:
            if token in self.template.stop_ids:
                return
            tokens.append(token)
            # tokenizers' DecodeStream raises if the bytes of several tokens are not a character.
            text = self._decoded(tokens)
            if not text.endswith(_NO_CHARACTER):
                show(self._parts(self._without_end(text), is_whole=False))

        [ids] = self._generated([self._prompt(messages)], sampling, on_token)
        show(self._parts(self._until_end(self._decoded(ids)), is_whole=True))
        return self._answer(ids).text

    def _generated(
        self, prompts: list[list[int]], sampling: Sampling, on_token: Callable[[int], None] | None = None
    ) -> list[list[int]]:
        stop_ids, is_ended = self.template.stop_ids, self._is_ended if self._stop_text else None
        pad_id = self.tokenizer.pad_id
        return self.model.generate(prompts, sampling, stop_ids, pad_id, is_ended=is_ended, on_token=on_token)

    def _prompt(
        self,
        messages: Sequence[Message],
        tools: list[dict[str, Any]] | None = None,
        options: dict[str, Any] | None = None,
    ) -> list[int]:
        try:
            prompt = self.template.with_options(options).render_prompt(_checked(messages), tools)
        except TemplateRefusedRow as error:
            raise InputError(
                f"the chat template rejects this conversation: {error.reason}",
                code="conversation-rejected",
                remedy="start with at most one system turn, if the template has any, then alternate user and assistant",
            ) from error
        if ids := self.tokenizer.encode(prompt):
            return ids
        raise InputError(
            "the chat template writes nothing for this conversation, so there is nothing to continue",
            code="prompt-empty",
            remedy="give a template that writes the messages: --template FILE.jinja",
        )

    def _is_ended(self, ids: list[int]) -> bool:
        assert self._stop_text is not None
        tail = 4 + len(self.tokenizer.encode(self._stop_text))
        return self._stop_text in self.tokenizer.decode(ids[-tail:])

    def _without_end(self, text: str) -> str:
        """The part of `text` that can be shown: it ends before text that is, or may become, the textual end of a
        turn."""
        end = self._stop_text
        if end is None or end in text:
            return self._until_end(text)
        begins = range(max(0, len(text) - len(end)), len(text) + 1)
        return text[: next(begin for begin in begins if end.startswith(text[begin:]))]

    def _answer(self, ids: Sequence[int]) -> Answer:
        parts = self._parts(self._until_end(self._decoded(ids)), is_whole=True)
        return Answer(parts.text.strip(), parts.thought)

    def _decoded(self, ids: Sequence[int]) -> str:
        # Special tokens may separate the thought from the answer.
        return self.tokenizer.decode(ids, skip_special_tokens=self._marks is None)

    def _until_end(self, text: str) -> str:
        return text.partition(self._stop_text)[0] if self._stop_text else text

    def _parts(self, text: str, *, is_whole: bool) -> Answer:
        return self._marks.split(text, is_whole=is_whole) if self._marks else Answer(text)


def _out_of_range(name: str, value: float, allowed: str) -> InputError:
    return InputError(f"{name} is {value}", code="invalid-value", remedy=f"give {allowed}")


def _checked(messages: Sequence[Message]) -> list[Message]:
    """The messages, parsed like rows of training data: callers may have them from JSON, in any of OpenAI's forms."""
    turns = list(messages) if isinstance(messages, tuple) else messages
    for turn in turns if isinstance(turns, list) else ():
        if isinstance(turn, dict) and isinstance(content := turn.get("content"), str):
            _require_utf8(content)
    try:
        return messages_of(turns)
    except BadRow as bad:
        raise InputError(
            f"this is not a conversation: {bad.reason}: {bad.detail}",
            code="not-a-conversation",
            remedy='give a list of messages for each conversation: [[{"role": "user", "content": "Who are you?"}]]',
        ) from bad


def _template(name: str, tokenizer: Tokenizer) -> ChatTemplate:
    if name == "auto" and "default" not in tokenizer.chat_templates:
        raise InputError(
            "these weights have no chat template",
            code="template-missing",
            remedy=f"choose a template: --template {', '.join(NAMED)}, or the path of a Jinja file",
            where=tokenizer.directory,
        )
    return ChatTemplate.load(name, tokenizer)


def _load_model(
    weights: Weights, tokenizer: Tokenizer, device: Device | None, trust_remote_code: bool
) -> TransformersModel:
    from ascendtune.infer.transformers_model import TransformersModel
    from ascendtune.machine.torch_backend.find import find_device

    target = device or find_device()
    target.activate()
    return TransformersModel.load(weights, target, vocabulary=tokenizer.vocab_size, trust_remote_code=trust_remote_code)


@dataclass(frozen=True)
class Weights:
    """The directories to load."""

    model: Path
    """A whole model in Hugging Face format."""
    adapter: Path | None = None
    """A PEFT adapter to apply to it."""

    @property
    def tokenizer(self) -> Path:
        """Directory of tokenizer and chat template; a trained adapter has its own."""
        if self.adapter is not None and (self.adapter / "tokenizer.json").is_file():
            return self.adapter
        return self.model


def find_weights(path_or_id: str | Path) -> Weights:
    """The weights of a run directory, a model or adapter directory, or a hub id.

    Raises:
        InputError: no usable weights, a run without final weights, or a reward model.
        MachineError: the download failed.
    """
    path = expanded(path_or_id)
    if (path / "run.json").is_file():
        path = weights_of_run(RunDir(path))
    elif not path.exists():
        path = fetch_weights(str(path_or_id))
    if (path / "adapter_config.json").is_file():
        _require_text(path)
        model = base_of_adapter(path)
        require_unquantised(model, "generating with")
        check_adapter(path, model)
        return Weights(model, path)
    check_model_directory(path, weights_needed=True)
    _require_text(path)
    require_unquantised(path, "generating with")
    return Weights(path)


def _require_text(directory: Path) -> None:
    if not is_reward_model(directory):
        return
    place, first = repr(str(directory)), ""
    if (directory / "adapter_config.json").is_file():
        place, first = "'scorer'", f"`ascendtune merge {shlex.quote(str(directory))} --to scorer`, then "
    raise InputError(
        "this is a reward model: it scores answers and cannot generate text",
        code="reward-model-cannot-generate",
        remedy=f"compare the scores of answers to one question, higher is better: {first}"
        f"transformers.AutoModelForSequenceClassification.from_pretrained({place}) has the score in logits[0, 0], for "
        "the whole conversation in its chat template; to chat, give a model of another stage",
        where=directory,
    )


def _require_utf8(text: str) -> None:
    """Refuse bytes that are not UTF-8; in text from stdin and the command line they are halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        what = f"byte 0x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"half a surrogate pair (U+{code:04X})"
        raise InputError(
            f"the message is not UTF-8: {what} at character {error.start + 1}",
            code="not-utf8",
            remedy="convert it, e.g. iconv -f GB18030 -t UTF-8",
        ) from error
