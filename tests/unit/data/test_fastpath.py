"""The fast path gives what the slow one gives, or says that it cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascendtune.data.conversation import Conversation, Message
from ascendtune.data.skeleton import SkeletonRenderer
from ascendtune.data.spec import NAMED
from ascendtune.data.template import ChatTemplate
from ascendtune.data.tokenizer import Tokenizer

TEMPLATES = Path(__file__).parent / "templates"
FAST = [*NAMED, "qwen2.5", "qwen3", "llama3", "llama2", "gemma", "generation", "macro"]


@pytest.fixture(scope="module")
def renderers(make_model: Callable[..., Path]) -> dict[str, tuple[ChatTemplate, SkeletonRenderer]]:
    tokenizer = Tokenizer.load(make_model())
    found = {}
    for name in [*FAST, "mistral", "no_stop"]:
        path = TEMPLATES / f"{name}.jinja"
        template = ChatTemplate.load(str(path) if path.exists() else name, tokenizer)
        found[name] = template, SkeletonRenderer(template)
    return found


def conversation(*contents: str, system: str | None = None, train: bool = True) -> Conversation:
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for number, content in enumerate(contents):
        if number % 2:
            messages.append({"role": "assistant", "content": content, "train": train})
        else:
            messages.append({"role": "user", "content": content})
    return Conversation(messages)


texts = st.one_of(
    st.text(min_size=1, max_size=12),
    st.lists(
        st.sampled_from(["<think>", "</think>", "<tool_response>", "\n", " ", "b", "天", "user", "content-0-of-a-row"]),
        min_size=1,
        max_size=4,
    ).map("".join),
)


@pytest.mark.long
@pytest.mark.parametrize("name", [*FAST, "mistral", "no_stop"])
@given(contents=st.lists(texts, min_size=2, max_size=4), system=st.none() | texts)
@settings(max_examples=60, deadline=None)
def test_fast_rendering_equals_the_template(
    name: str, contents: list[str], system: str | None, renderers: dict[str, tuple[ChatTemplate, SkeletonRenderer]]
) -> None:
    template, renderer = renderers[name]
    row = conversation(*contents[: len(contents) // 2 * 2], system=system)
    fast = renderer.render(row)
    if fast is not None:
        assert fast == template.render(row)


@pytest.mark.parametrize("name", [*FAST, "no_stop"])
def test_eos_in_an_answer_is_not_doubled(
    name: str, renderers: dict[str, tuple[ChatTemplate, SkeletonRenderer]]
) -> None:
    template, renderer = renderers[name]
    row = conversation("q", f"a{template.tokenizer.eos}")
    assert (renderer.render(row) or template.render(row)) == template.render(row)


@pytest.mark.parametrize("name", FAST)
def test_plain_rows_are_fast(name: str, renderers: dict[str, tuple[ChatTemplate, SkeletonRenderer]]) -> None:
    template, renderer = renderers[name]
    row = conversation("What\nis user?", "It's <b>this</b>.", "And?", "天气\n\n很好")
    fast = renderer.render(row)
    assert fast is not None and fast == template.render(row)
    assert renderer.render(conversation("q", "a", train=False)) == template.render(conversation("q", "a", train=False))


@pytest.mark.parametrize(
    "row",
    [
        conversation("q", " a"),
        conversation("q", "a\n"),
        conversation("q", ""),
        conversation("q\u00a0", "a"),
        conversation("q", "thought</think>a"),
        conversation("<tool_response>", "a"),
        Conversation(conversation("q", "a").messages, tools=[{"name": "f"}]),
        Conversation(
            [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning_content": "r"}]
        ),
        Conversation([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "tool_calls": []}]),
    ],
)
def test_other_rows_are_slow(row: Conversation, renderers: dict[str, tuple[ChatTemplate, SkeletonRenderer]]) -> None:
    assert renderers["qwen3"][1].render(row) is None


# What a template may do with a content so that a row is not rendered as its placeholder was.
LOOKS = [
    "{{ c | upper }}",
    "{{ c | tojson }}",
    "{{ c | length }}",
    "{{ c[0] }}",
    "{{ c[:2] }}",
    "{{ c | replace('a', 'b') }}",
    "{{ c.replace('a', 'b') }}",
    "{{ c.upper() }}",
    "{{ c.split()[0] }}",
    "{{ c.strip('ab') }}",
    "{{ c | first }}",
    "{{ 'long' if c | length > 3 else 'short' }}",
    "{% for letter in c %}{{ letter }}-{% endfor %}",
    "{{ '%s' % c }}{{ 'x' if ('%s' % c) is string }}",
    "{{ '{}'.format(c) }}",
    "{% set d = 'x' ~ c %}{{ 'yes' if 'xa' in d else 'no' }}",
    "{% set d = 'x' + c %}{{ 'yes' if 'xa' in d else 'no' }}",
    "{% set d = ['x', c] | join %}{{ 'yes' if 'xa' in d else 'no' }}",
    "{% set d = ''.join([c]) %}{{ 'yes' if 'a' in d else 'no' }}",
    "{% set d %}x{{ c }}{% endset %}{{ 'yes' if 'xa' in d else 'no' }}",
    "{% macro m(t) %}x{{ t }}{% endmacro %}{{ 'yes' if 'xa' in m(c) else 'no' }}",
    "{{ 'same' if messages[0].content == messages[1].content }}",
    "{{ 'more' if c > 'b' }}",
    "{{ {'a': 'found'}[c] }}",
    "{{ c * 2 }}",
    "{{ c.count('a') }}{{ c.isdigit() }}",
    "{{ messages | tojson }}",
]


@pytest.mark.parametrize("look", LOOKS)
def test_a_template_that_looks_into_contents_is_slow(look: str, make_model: Callable[..., Path]) -> None:
    source = "{% for m in messages %}{% set c = m.content %}" + look + "{{ c }}{% endfor %}"
    template = ChatTemplate(source, Tokenizer.load(make_model()))
    assert SkeletonRenderer(template).render(conversation("abcd", "a")) is None


@pytest.mark.parametrize(
    ("question", "slow"),
    [
        ("'needle' in c", ["a needle", "needle"]),
        ("c == 'needle'", ["needle"]),
        ("c != 'needle'", ["needle"]),
        ("c in ['needle', 'pin']", ["needle", "pin"]),
        ("c.startswith('needle')", ["needles"]),
        ("c.endswith(('needle', 'pin'))", ["a pin"]),
        ("c.split('needle')[0] == 'x'", ["aneedleb"]),
        ("(c | trim).startswith('needle')", ["needle"]),
    ],
)
def test_a_row_that_a_question_concerns_is_slow(
    question: str, slow: list[str], make_model: Callable[..., Path]
) -> None:
    source = "{% for m in messages %}{% set c = m.content %}{{ 'yes' if " + question + " else c }}{% endfor %}"
    template = ChatTemplate(source, Tokenizer.load(make_model()))
    renderer = SkeletonRenderer(template)
    plain = conversation("hay", "stack")
    assert renderer.render(plain) == template.render(plain)
    for content in slow:
        assert renderer.render(conversation("hay", content)) is None
