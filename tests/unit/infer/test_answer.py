"""Thoughts and answers told apart by what templates write around them, whole and while they are generated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ascendtune.cli.generate import _as_plain
from ascendtune.data.conversation import Message
from ascendtune.data.template import ChatTemplate
from ascendtune.data.tokenizer import Tokenizer
from ascendtune.infer.answer import Answer, AnswerMarks
from ascendtune.infer.engine import Engine
from ascendtune.infer.prompts import Prompt

ASKED: list[Message] = [{"role": "user", "content": "hello"}]
_NEW_TOKENS = [
    "<|channel|>",
    "<|message|>",
    "<|start|>",
    "<|end|>",
    "<|return|>",
    "<|channel>",
    "<channel|>",
    "<turn|>",
    "[THINK]",
    "[/THINK]",
]
_PROMPT = "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
# As those of gpt-oss and Gemma 4, for what matters here.
TEMPLATES = {
    "gptoss": "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'user' %}<|message|>{{ m.content }}<|end|>"
    "{% else %}{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant{% endif %}"
    "<|channel|>final<|message|>{{ m.content }}<|return|>{% endif %}{% endfor %}" + _PROMPT,
    "gemma": "{% for m in messages %}<|start|>{{ m.role }}\n{% if m.reasoning_content %}<|channel>thought\n"
    "{{ m.reasoning_content }}\n<channel|>{% endif %}{{ m.content }}<turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}",
    "opened": "{% for m in messages %}<|start|>{{ m.role }}\n{% if m.role == 'assistant' %}<|channel>"
    "{{ m.reasoning_content or '' }}<channel|>{% endif %}{{ m.content }}<turn|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n<|channel>{% endif %}",
    "mistral": "{% for m in messages %}{% if m.role == 'user' %}<|start|>{{ m.content }}<|end|>{% else %}"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{{ '[THINK]' + part.thinking + '[/THINK]' if part.type == 'thinking' else part.text }}{% endfor %}{% endif %}"
    "<turn|>{% endif %}{% endfor %}",
    "plain": "{% for m in messages %}<|start|>{{ m.content }}<turn|>{% endfor %}",
    "prompted otherwise": "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<turn|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n<|channel><channel|>{% endif %}",
    "chatml": "{% for m in messages %}<|start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n"
    "{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}",
}
# (template, what is generated, answer, thought)
SAID = [
    ("gptoss", "<|channel|>analysis<|message|>They greet.<|end|><|start|>assistant<|channel|>final<|message|>Hi!",
     "Hi!", "They greet."),
    ("gptoss", "<|channel|>final<|message|>Hi!", "Hi!", ""),
    ("gptoss", "<|channel|>analysis<|message|>They greet.<|end|><|start|>", "", "They greet."),
    ("gptoss", ' to=f<|channel|>commentary json<|message|>{"a": 1}',
     'to=f<|channel|>commentary json<|message|>{"a": 1}', ""),
    ("gemma", "<|channel>thought\nThey\n\ngreet.\n<channel|>Hi <turn!", "Hi <turn!", "They\n\ngreet."),
    ("gemma", "Hi!", "Hi!", ""),
    ("gemma", "<|channel>thought\n<channel|>Hi!", "Hi!", ""),
    ("opened", "They greet.<channel|>Hi!", "Hi!", "They greet."),
    ("opened", "<channel|>Hi!", "Hi!", ""),
    ("mistral", "[THINK]They greet.[/THINK]Hi!", "Hi!", "They greet."),
    ("mistral", "[THINK]They greet.", "", "They greet."),
    ("mistral", "Hi!", "Hi!", ""),
    ("plain", "[THINK]They greet.[/THINK]Hi!", "Hi!", "They greet."),
]  # fmt: skip


@pytest.fixture
def load(tiny_model: Path) -> Callable[[str], ChatTemplate]:
    def make(name: str) -> ChatTemplate:
        return ChatTemplate(TEMPLATES[name], Tokenizer.load(tiny_model, _NEW_TOKENS))

    return make


@pytest.mark.parametrize(("name", "said", "answer", "thought"), SAID)
def test_parts_are_told_apart_and_grow_while_they_are_generated(
    name: str, said: str, answer: str, thought: str, load: Callable[[str], ChatTemplate]
) -> None:
    marks = AnswerMarks.of(load(name))
    assert marks is not None
    whole = marks.split(said, is_whole=True)
    assert (whole.text.strip(), whole.thought) == (answer, thought)
    shown = Answer("")
    for size in range(len(said) + 1):
        parts = marks.split(said[:size], is_whole=False)
        assert parts.text.startswith(shown.text) and parts.thought.startswith(shown.thought), said[:size]
        shown = parts
    assert whole.text.startswith(shown.text) and whole.thought.startswith(shown.thought)


def test_marks_are_not_looked_for_in_an_answer_that_does_not_begin_with_the_prompt(
    load: Callable[[str], ChatTemplate],
) -> None:
    assert AnswerMarks.of(load("prompted otherwise")) == AnswerMarks("", "[THINK]", "[/THINK]")


def test_marks_of_ordinary_text_stay_in_the_answer(load: Callable[[str], ChatTemplate]) -> None:
    assert AnswerMarks.of(load("chatml")) is None


@pytest.mark.parametrize(("name", "said", "answer", "thought"), SAID)
def test_engine_gives_answer_and_thought(
    name: str, said: str, answer: str, thought: str, load: Callable[[str], ChatTemplate]
) -> None:
    template = load(name)
    ids = template.tokenizer.encode(said)

    def generate(*_: Any, on_token: Callable[[int], None] | None = None, **__: Any) -> list[list[int]]:
        for token in ids if on_token else ():
            on_token(token)  # type: ignore[misc]
        return [ids]

    engine = Engine(template.tokenizer, template, cast(Any, SimpleNamespace(generate=generate)))
    assert list(engine.answers([ASKED])) == [Answer(answer, thought)]
    assert engine.generate([ASKED]) == [answer]
    pieces: list[str] = []
    thoughts: list[str] = []
    assert engine.stream(ASKED, pieces.append, on_thought=thoughts.append) == answer
    assert ("".join(pieces).strip(), "".join(thoughts)) == (answer, thought)


def test_json_has_the_thought_beside_the_answer() -> None:
    asked = Prompt(ASKED, expected="Hello.")
    assert _as_plain(asked, Answer("Hi!", "They greet.")) == {
        "messages": [{"role": "user", "content": "hello"}],
        "answer": "Hi!",
        "reasoning_content": "They greet.",
        "expected": "Hello.",
    }
    assert _as_plain(Prompt(ASKED), Answer("Hi!")).items() >= {"reasoning_content": None, "expected": None}.items()
