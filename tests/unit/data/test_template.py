from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.errors import RecipeError
from ascendtune.data.conversation import Conversation, Message
from ascendtune.data.skeleton import SkeletonRenderer
from ascendtune.data.spans import TemplateRefusedRow
from ascendtune.data.spec import NAMED
from ascendtune.data.template import ChatTemplate
from ascendtune.data.tokenizer import Tokenizer

TEMPLATES = sorted((Path(__file__).parent / "templates").glob("*.jinja"))
SHIPPED = sorted((Path(__file__).parents[3] / "src/ascendtune/data/templates").glob("*.jinja"))

SYSTEM: Message = {"role": "system", "content": "  Be <brief> & 'kind'.\n"}
HELLO: list[Message] = [{"role": "user", "content": " Hello \n"}, {"role": "assistant", "content": "\nHi there  "}]
MORE: list[Message] = [
    {"role": "user", "content": "天气?"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nfine"},
]
CALLS: list[Message] = [
    {"role": "user", "content": "Weather in Oslo?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Orléans <3"}}}],
    },
    {"role": "tool", "content": "7 °C"},
    {"role": "assistant", "content": "Cold."},
]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": 'it\'s "now"', "parameters": {}}}]

CONVERSATIONS: list[tuple[list[Message], list[dict[str, Any]] | None]] = [
    (HELLO, None),
    ([SYSTEM, *HELLO], None),
    ([*HELLO, *MORE], None),
    ([SYSTEM, *HELLO, *MORE, *HELLO], None),
    ([*HELLO, *CALLS], TOOLS),
    ([SYSTEM, *CALLS, *HELLO], TOOLS),
]


@pytest.mark.parametrize("path", [*TEMPLATES, *SHIPPED], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_templates_write_what_transformers_writes(path: Path, make_model: Callable[..., Path]) -> None:
    from jinja2 import TemplateError
    from transformers import AutoTokenizer

    source = path.read_text()
    directory = make_model(chat_template=source)
    template = ChatTemplate.load("auto", Tokenizer.load(directory))
    reference = AutoTokenizer.from_pretrained(directory)
    for messages, tools in CONVERSATIONS:
        for prompt in (False, True):
            try:
                expected = reference.apply_chat_template(
                    messages, tools=tools, tokenize=False, add_generation_prompt=prompt
                )
            except TemplateError as refusal:
                with pytest.raises(TemplateRefusedRow) as caught:
                    template.text_of(messages, tools, add_generation_prompt=prompt)
                assert caught.value.reason == str(refusal)
                continue
            assert template.text_of(messages, tools, add_generation_prompt=prompt)[0] == expected
            if prompt:
                assert template.render_prompt(messages, tools) == expected


def test_options_of_a_row_are_variables_of_the_template(make_model: Callable[..., Path]) -> None:
    """As in transformers and TRL; SmolTalk 2 has tools and the mode of thinking there."""
    from transformers import AutoTokenizer

    source = (
        "{% if enable_thinking is defined and not enable_thinking %}/no_think {% endif %}{{ custom | default('') }}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    directory = make_model(chat_template=source, eos_token="<|im_end|>")
    template, theirs = ChatTemplate.load("auto", Tokenizer.load(directory)), AutoTokenizer.from_pretrained(directory)
    messages: list[Message] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    drawn: list[dict[str, Any]] = [
        {"enable_thinking": False},
        {"custom": "Be brief."},
        {"messages": [], "custom": "x"},
        {},
    ]
    for options in drawn:
        found = template.render(Conversation(messages, options=options))
        kept = {name: value for name, value in options.items() if name != "messages"}
        assert found.text == theirs.apply_chat_template(messages, tokenize=False, **kept)
        assert [found.text[begin:end] for begin, end in found.spans] == ["a<|im_end|>"]
        assert (SkeletonRenderer(template).render(Conversation(messages, options=options)) is None) == bool(options)


# For what matters here that of Mistral's reasoning models.
_PARTS = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% elif m.role == 'tool' %}"
    "[RESULT]{{ m.content }}[/RESULT]{% else %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% else %}"
    "{{ '[THINK]' + part.thinking + '[/THINK]' }}{% endif %}{% endfor %}{% endif %}"
    "{% for call in m.tool_calls or [] %}[CALL]{{ call.function.name }}{% endfor %}{{ eos_token }}"
    "{% endif %}{% endfor %}"
)


def test_a_template_that_takes_thoughts_as_parts_gets_them_so(make_model: Callable[..., Path]) -> None:
    template = ChatTemplate.load("auto", Tokenizer.load(make_model(chat_template=_PARTS, eos_token="<|im_end|>")))
    asked: Message = {"role": "user", "content": "q"}
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    messages: list[Message] = [
        asked,
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "use f"},
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": "one", "reasoning_content": "so"},
        asked,
        {"role": "assistant", "content": "two"},
        asked,
        {"role": "assistant", "content": "three", "reasoning_content": "hm"},
    ]
    for options in (None, {"k": 1}):
        found = template.render(Conversation(messages, options=options))
        assert [found.text[begin:end] for begin, end in found.spans] == [
            "[THINK]use f[/THINK][CALL]f<|im_end|>", "[THINK]so[/THINK]one<|im_end|>", "two<|im_end|>",
            "[THINK]hm[/THINK]three<|im_end|>",
        ]  # fmt: skip


@pytest.mark.parametrize(
    "written", ["{{ m.content }}", "{{ m.content | tojson }}", "{% for part in m.content %}{{ part.text }}{% endfor %}"]
)
def test_a_template_that_writes_no_thought_refuses_the_row(written: str, make_model: Callable[..., Path]) -> None:
    source = "{% for m in messages %}" + written + "{% endfor %}"
    template = ChatTemplate.load("auto", Tokenizer.load(make_model(chat_template=source, eos_token="<|im_end|>")))
    with pytest.raises(TemplateRefusedRow):
        template.render(Conversation([HELLO[0], {**HELLO[1], "reasoning_content": "hm"}]))


@pytest.mark.parametrize("name", sorted({*NAMED} - {"auto"}))
def test_white_space_of_a_message_is_kept(name: str, make_model: Callable[..., Path]) -> None:
    """As LLaMA-Factory writes it, whose templates these are."""
    messages: list[Message] = [{"role": "user", "content": "\n why? "}, {"role": "assistant", "content": "\t so \n"}]
    text = ChatTemplate.load(name, Tokenizer.load(make_model())).render(Conversation(messages)).text
    assert "\n why? " in text and "\t so \n" in text


def test_a_template_file_comes_before_the_config(make_model: Callable[..., Path], tmp_path: Path) -> None:
    directory = make_model(chat_template="config")
    assert Tokenizer.load(directory).chat_templates == {"default": "config"}
    (directory / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert Tokenizer.load(directory).chat_templates == {"default": "json"}
    (directory / "chat_template.jinja").write_text("file")
    assert Tokenizer.load(directory).chat_templates == {"default": "file"}


def test_default_of_a_list_of_templates_is_taken(make_model: Callable[..., Path]) -> None:
    given = [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
    template = ChatTemplate.load("auto", Tokenizer.load(make_model(chat_template=given)))
    assert template.render_prompt(HELLO) == "D"


def test_no_template_names_the_shipped_ones(make_model: Callable[..., Path]) -> None:
    with pytest.raises(RecipeError) as caught:
        ChatTemplate.load("auto", Tokenizer.load(make_model()))
    assert all(name in caught.value.remedy for name in NAMED)


def test_invalid_template_of_the_model_names_the_file_that_holds_it(make_model: Callable[..., Path]) -> None:
    directory = make_model(chat_template="{% for %}")
    for name, content in (
        ("tokenizer_config.json", None),
        ("chat_template.json", json.dumps({"chat_template": "{% for %}"})),
        ("chat_template.jinja", "\n{% for %}"),
    ):
        if content is not None:
            (directory / name).write_text(content)
        with pytest.raises(RecipeError, match=r"the model's chat template is not valid Jinja: ") as caught:
            ChatTemplate.load("auto", Tokenizer.load(directory))
        assert caught.value.where == str(directory / name)
    assert "(line 2 of the template)" in caught.value.what


def test_template_is_loaded_from_a_path(make_model: Callable[..., Path], tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("{{ messages[0].content }}!")
    assert ChatTemplate.load(str(path), Tokenizer.load(make_model())).render_prompt(HELLO) == " Hello \n!"


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "neither a name nor"), ("{% for %}", "not valid Jinja"), ("\n{{ x | nope }}", "line 2")],
)
def test_a_template_that_is_none(
    content: str | None, words: str, make_model: Callable[..., Path], tmp_path: Path
) -> None:
    path = tmp_path / "mine.jinja"
    if content is not None:
        path.write_text(content)
    with pytest.raises(RecipeError, match=words) as caught:
        ChatTemplate.load(str(path), Tokenizer.load(make_model()))
    assert caught.value.where == str(path)


def test_template_that_reaches_into_python_is_refused(make_model: Callable[..., Path]) -> None:
    source = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    template = ChatTemplate.load("auto", Tokenizer.load(make_model(chat_template=source)))
    with pytest.raises(TemplateRefusedRow):
        template.render_prompt(HELLO)


def test_markers_that_are_not_tokens_are_warned_of(make_model: Callable[..., Path]) -> None:
    directory = make_model(eos_token="</s>")
    assert ChatTemplate.load("chatml", Tokenizer.load(directory)).warnings == []
    path = directory / "tokenizer.json"
    path.write_text(path.read_text().replace("<|im_end|>", "<|other|>"))
    (warning,) = ChatTemplate.load("chatml", Tokenizer.load(directory)).warnings
    assert "<|im_end|>" in warning and "<|im_start|>" not in warning and "model.new_tokens" in warning
    template = ChatTemplate.load("chatml", Tokenizer.load(directory, ["<|im_end|>"]))
    assert template.warnings == [] and template.stop_tokens[0] == "<|im_end|>"


@pytest.mark.parametrize("prefix", ["<think>\n", "<think>\n\n</think>\n\n", ""])
def test_prompt_that_no_answer_is_trained_behind_is_warned_of(prefix: str, make_model: Callable[..., Path]) -> None:
    """As in the templates of DeepSeek-R1's distilled models and of Gemma 4."""
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n" + prefix + "{% endif %}"
    )
    tokenizer = Tokenizer.load(make_model(chat_template=source, eos_token="<|im_end|>"))
    warnings = ChatTemplate.load("auto", tokenizer).warnings
    assert len(warnings) == bool(prefix) and all(repr(prefix.strip()) in each for each in warnings)


@pytest.mark.parametrize("name", NAMED)
def test_answers_of_our_templates_are_trained_on_behind_their_prompt(
    name: str, make_model: Callable[..., Path]
) -> None:
    warnings = ChatTemplate.load(name, Tokenizer.load(make_model())).warnings
    assert not any("prompts end with" in each for each in warnings)


def test_the_turn_end_stops_generation_before_the_eos(make_model: Callable[..., Path]) -> None:
    directory = make_model(eos_token="<|endoftext|>")
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 3]}))
    tokenizer = Tokenizer.load(directory)
    template = ChatTemplate.load("chatml", tokenizer)
    assert template.stop_ids == tuple(map(tokenizer.id_of, ["<|im_end|>", "<|endoftext|>", "</s>"]))


@pytest.mark.parametrize("before, after", [("<answer>", "</answer>"), ("answer: ", "")])
def test_the_end_of_a_turn_is_trained_on_if_the_template_writes_the_word_answer(
    before: str, after: str, make_model: Callable[..., Path]
) -> None:
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
        + f"{before}{{{{ m.content }}}}{after}{{% else %}}{{{{ m.content }}}}{{% endif %}}<|im_end|>\n{{% endfor %}}"
        + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    template = ChatTemplate.load("auto", Tokenizer.load(make_model(chat_template=source, eos_token="<|im_end|>")))
    rendered = template.render(Conversation([*HELLO, *HELLO]))
    answer = f"{before}\nHi there  {after}<|im_end|>"
    assert [rendered.text[begin:end] for begin, end in rendered.spans] == [answer, answer]
    assert rendered.text.endswith(f"{answer}\n")


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ("call.function.arguments + '!'", '{"city": "Orléans <3"}!'),
        ("call.function.arguments", '{"city": "Orléans <3"}'),
        ("call.function.arguments | tojson", '{"city": "Orléans <3"}'),
        ("call.function.arguments.city", "Orléans <3"),
    ],
)
def test_arguments_are_text_where_the_template_cannot_write_objects(
    arguments: str, written: str, make_model: Callable[..., Path]
) -> None:
    calls = "{% for call in m.tool_calls or [] %}{{ call.function.name }} {{ " + arguments + " }}{% endfor %}"
    source = "{% for m in messages %}{{ m.content }}" + calls + "|{% endfor %}"
    template = ChatTemplate.load("auto", Tokenizer.load(make_model(chat_template=source)))
    assert template.text_of(CALLS)[0] == f"Weather in Oslo?|weather {written}|7 °C|Cold.|"
