"""Tokens that are trained on, against texts written by hand, and token by token against offsets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ascendtune.data.conversation import Conversation, Message
from ascendtune.data.omissions import omission
from ascendtune.data.spans import TemplateRefusedRow
from ascendtune.data.template import ChatTemplate
from ascendtune.data.token_ranges import trained_tokens
from ascendtune.data.tokenizer import Tokenizer

TEMPLATES = Path(__file__).parent / "templates"


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def says(text: str, **more: object) -> Message:
    return {"role": "assistant", "content": text, **more}  # type: ignore[typeddict-item]


def call(*cities: str, content: str = "") -> Message:
    calls = [{"type": "function", "function": {"name": "weather", "arguments": {"city": city}}} for city in cities]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def tool(text: str) -> Message:
    return {"role": "tool", "content": text}


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
END = "<|im_end|>"
CALL_OSLO = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
CALL_ROME = CALL_OSLO.replace("Oslo", "Rome")
TYPED_OSLO = (
    '[TOOL_CALLS][{"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}][/TOOL_RESULTS]'
)

# (template, messages, tools, what is learnt)
LEARNT: list[tuple[str, list[Message], bool, list[str]]] = [
    ("chatml", [user("a"), says("b")], False, [f"b{END}"]),
    ("chatml", [user("same"), says("same"), user("same"), says("same")], False, [f"same{END}", f"same{END}"]),
    ("chatml", [user("a"), says(" \n b\n\n")], False, [f" \n b\n\n{END}"]),
    ("chatml", [user("a"), says(""), user("c"), says("d")], False, [END, f"d{END}"]),
    ("chatml", [user("a"), says("b", train=False), user("c"), says("d")], False, [f"d{END}"]),
    ("chatml", [user("a"), says("b"), user("c"), says("d", train=False)], False, [f"b{END}"]),
    # The text of an answer looks like the template's own.
    ("chatml", [user("a"), says(f"x{END}\n<|im_start|>assistant\n"), user("c"), says("x")], False,
     [f"x{END}\n<|im_start|>assistant\n{END}", f"x{END}"]),
    ("qwen", [user("a"), call("Oslo", "Rome"), tool("7"), tool("9"), says("cold")], True,
     [f"{CALL_OSLO}\n{CALL_ROME}{END}", f"cold{END}"]),
    ("qwen2.5", [user("a"), call("Oslo"), tool("7"), says("cold")], True, [f"{CALL_OSLO}{END}", f"cold{END}"]),
    ("qwen2.5", [user("a"), call("Oslo", content="I look"), tool("7"), says("cold")], True,
     [f"I look\n{CALL_OSLO}{END}", f"cold{END}"]),
    # Thoughts of earlier turns are dropped; the last turn's are written, even where there were none.
    ("qwen3", [user("a"), says("<think>\nhm\n</think>\n\nb"), user("c"), says("<think>\nso\n</think>\n\nd")], False,
     [f"b{END}", f"<think>\nso\n</think>\n\nd{END}"]),
    ("qwen3", [user("a"), says("b", reasoning_content="hm"), user("c"), says("d", reasoning_content="so")], False,
     [f"b{END}", f"<think>\nso\n</think>\n\nd{END}"]),
    ("qwen3", [user("a"), says("b"), user("c"), says("d")], False, [f"b{END}", f"<think>\n\n</think>\n\nd{END}"]),
    ("qwen3", [user("a"), call("Oslo"), tool("7"), says("d")], True,
     [f"{CALL_OSLO}{END}", f"<think>\n\n</think>\n\nd{END}"]),
    ("qwen3_last_thought", [user("a"), says("<think>\nhm\n</think>\n\nb", train=False), user("c"), says("d")], False,
     [f"<think>\n\n</think>\n\nd{END}"]),
    ("qwen3_last_thought", [user("a"), says("b", reasoning_content="hm", train=False), user("c"),
                            says("d", reasoning_content="so")], False, [f"<think>\nso\n</think>\n\nd{END}"]),
    ("deepseekr1", [user("a"), says("b"), user("c"), says("<think>\nso\n</think>\n\nd")], False,
     ["<think>\n\n</think>\n\nb</s>", "<think>\nso\n</think>\n\nd</s>"]),
    ("glm4_7", [user("a"), says("b"), user("c"), says("d", reasoning_content="so")], False,
     ["</think>\nb", "\n<think>so</think>d</s>"]),
    ("llama3", [user("a"), says("  b\n"), user("c"), says(" d ")], False, ["b<|eot_id|>", "d<|eot_id|>"]),
    ("llama2", [user("a"), says(" b "), user("c"), says("d\n")], False, [" b </s>", " d </s>"]),
    ("mistral", [user("a"), says(" b "), user("c"), says("d")], True, [" b</s>", " d</s>"]),
    ("mistral", [user("a"), call("Oslo", "Rome"), tool("7"), says("d")], True,
     ['[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}}, '
      '{"name": "weather", "arguments": {"city": "Rome"}}]</s>', " d</s>"]),
    # What a tool answers is not learnt, however many rounds follow.
    ("mistral", [user("a"), call("Oslo"), tool("7"), call("Rome"), tool("9"), says("d")], True,
     ['[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}}]</s>',
      '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Rome"}}]</s>', " d</s>"]),
    # The tools stand before the last question.
    ("mistral", [user("a"), call("Oslo"), tool("7"), says("b"), user("c"), says("d")], True,
     ['[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}}]</s>', " b</s>", " d</s>"]),
    ("header_behind_call", [user("a"), call("Oslo"), tool("7"), says("b"), user("c"), call("Rome")], True,
     [f"{TYPED_OSLO}{END}", f"[/INST]b{END}", f"{TYPED_OSLO.replace('Oslo', 'Rome')}{END}"]),
    ("header_behind_call", [user("a"), call(f"Os{END}lo"), tool("7"), says("b")], True,
     [f"{TYPED_OSLO.replace('Oslo', f'Os{END}lo')}{END}", f"[/INST]b{END}"]),
    ("gemma", [user("a"), says(" b "), user("c"), says("d")], False, ["b<end_of_turn>", "d<end_of_turn>"]),
    ("generation", [user("a"), says(" b "), user("c"), says("d")], False, [f" b {END}", f"d{END}"]),
    ("generation", [user("a"), says("b", train=False), user("c"), says("d")], False, [f"d{END}"]),
    # The generation prompt opens a thought that the answers do not have.
    ("macro", [user("a"), says("<think>x</think> b "), user("c"), says(" d")], False, [f"b{END}", f"d{END}"]),
    # No stop token: what the template writes after the last answer is learnt, and an EOS is added.
    ("no_stop", [user("a"), says("b"), user("c"), says("d")], False, ["b", "d\n\n</s>"]),
    # EOS is written only where a question follows.
    ("ended_by_next", [user("a"), says("b"), user("c"), says("d")], False, ["b</s>", "d</s>"]),
    ("alpaca", [user("a"), says(" b"), user("c"), says("d")], False, [" b</s>", "d</s>"]),
    ("plain", [user("a"), says("b")], False, ["b</s>"]),
    # Orders that are the template's affair.
    ("chatml", [says("hi"), user("a"), says("b")], False, [f"hi{END}", f"b{END}"]),
    ("chatml", [user("a"), user("b"), says("c")], False, [f"c{END}"]),
    ("chatml", [user("a"), says("b"), says("c")], False, [f"b{END}", f"c{END}"]),
    ("qwen2.5", [says("hi"), user("a"), says("b")], False, [f"hi{END}", f"b{END}"]),
    ("llama3", [says("hi"), user("a"), says(""), user("b"), says("c")], False,
     ["hi<|eot_id|>", "<|eot_id|>", "c<|eot_id|>"]),
    ("generation", [says("hi"), user("a"), says(""), user("b"), says("c")], False, [f"hi{END}", END, f"c{END}"]),
    # The tags hold the stop token, and the template writes EOS after the last answer.
    ("generation_stop", [user("a"), says("b"), user("c"), says("d")], False, [f"b{END}\n", f"d{END}\n"]),
    ("generation_stop", [user("a"), says(f"b{END}"), user("c"), says("d")], False, [f"b{END}{END}\n", f"d{END}\n"]),
    # EOS after the last answer is tagged too: more tags than answers.
    ("generation_eos", [user("a"), says("b"), user("c"), says("d")], False, [f"b{END}\n", f"d{END}\n", "</s>"]),
    ("generation_eos", [user("a"), says("b", train=False), user("c"), says("d")], False, [f"d{END}"]),
]  # fmt: skip


def load(
    name: str, make_model: Callable[..., Path], loss_on: Literal["assistant", "all"] = "assistant"
) -> ChatTemplate:
    path = TEMPLATES / f"{name}.jinja"
    return ChatTemplate.load(str(path) if path.exists() else name, Tokenizer.load(make_model()), loss_on=loss_on)


@pytest.mark.parametrize(
    ("name", "messages", "tools", "learnt"), LEARNT, ids=[f"{n}-{case[0]}" for n, case in enumerate(LEARNT)]
)
def test_labels_cover_the_expected_text(
    name: str, messages: list[Message], tools: bool, learnt: list[str], make_model: Callable[..., Path]
) -> None:
    template = load(name, make_model)
    rendered = template.render(Conversation(messages, TOOLS if tools else None))
    assert [rendered.text[begin:end] for begin, end in rendered.spans] == learnt
    assert [span for pair in rendered.spans for span in pair] == sorted(
        span for pair in rendered.spans for span in pair
    )
    written = template.text_of(messages, TOOLS if tools else None)[0]
    assert rendered.text in (written, written + "</s>")


@pytest.mark.parametrize("name", sorted({case[0] for case in LEARNT}))
def test_last_label_span_follows_the_generation_prompt(name: str, make_model: Callable[..., Path]) -> None:
    """The last answer is exactly what would have to be generated after the prompt, for one question."""
    template = load(name, make_model)
    rendered = template.render(Conversation([user("question?"), says("answer")]))
    prompt = template.render_prompt([user("question?")])
    begin, end = rendered.spans[-1]
    if name.startswith("generation_"):
        # They write EOS where the conversation is over.
        begin, end = rendered.spans[0][0], len(rendered.text)
    if name != "macro":
        assert rendered.text[:begin] == prompt
    assert rendered.text[end:].strip() == ""


def test_earlier_thoughts_are_dropped_when_only_the_last_answer_is_trained_on(
    make_model: Callable[..., Path],
) -> None:
    template = load("qwen3_last_thought", make_model)
    first = [user("a"), says("<think>\nhm\n</think>\n\nb")]
    text = template.render(Conversation([*first, user("c"), says("<think>\nso\n</think>\n\nd")])).text
    assert text.count("<think>") == 1 and "hm" not in text and text.index("assistant\nb") < text.index("so")
    assert "<think>" not in template.render_prompt([*first, user("c")])


def test_loss_on_all_trains_on_every_token(make_model: Callable[..., Path]) -> None:
    for name in ("chatml", "no_stop"):
        rendered = load(name, make_model, "all").render(Conversation([user("a"), says("b")]))
        assert rendered.spans == [(0, len(rendered.text))]
    assert rendered.text.endswith("</s>")


@pytest.mark.parametrize(
    ("name", "messages", "reason"),
    [
        ("gemma", [{"role": "system", "content": "s"}, user("a"), says("b")], "System role not supported"),
        ("llama2", [user("a"), user("b"), says("c")], "Roles must alternate user/assistant"),
        ("llama2", [says("hi"), user("b"), says("c")], "Roles must alternate user/assistant"),
        ("last_two", [user("first"), user("second"), says("c")], "it omits turn 1 \\(user\\)"),
        ("generation_list", [user("a"), says("b")], "it omits turn 2 \\(assistant\\)"),
        ("chatml", [user("a"), call("Oslo")], "no way to write tools"),
        ("llama3", [user("a"), says("b", reasoning_content="hm")], "it does not write the thought"),
    ],
)
def test_a_refusal_is_in_the_templates_words(
    name: str, messages: list[Message], reason: str, make_model: Callable[..., Path]
) -> None:
    with pytest.raises(TemplateRefusedRow, match=reason):
        load(name, make_model).render(Conversation(messages))


def test_token_that_opens_the_next_turn_is_trained_on_where_generation_stops_at_it(
    make_model: Callable[..., Path],
) -> None:
    """GLM-4 ends an answer with nothing; a model that never learnt to stop after a call would make up its result."""
    openers = ["[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>", "<|system|>"]
    directory = make_model(eos_token="<|endoftext|>")
    stops = [
        Tokenizer.load(directory, openers).id_of(each) for each in ("<|endoftext|>", "<|user|>", "<|observation|>")
    ]
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    template = ChatTemplate.load("glm4", Tokenizer.load(directory, openers))
    assert template.stop_tokens == ("<|endoftext|>", "<|user|>", "<|observation|>")
    rendered = template.render(Conversation([user("a"), says("b"), user("c"), says("d")]))
    assert [rendered.text[begin:end] for begin, end in rendered.spans] == ["\nb<|user|>", "\nd<|endoftext|>"]
    result: Message = {"role": "tool", "content": "rain"}
    writes = (
        "{% for m in messages %}{{ '<|observation|>' if m.role == 'tool' else '<|' + m.role + '|>' }}\n{{ m.content }}"
        "{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}{{ '<|assistant|>' if add_generation_prompt }}"
    )
    calling = ChatTemplate(writes, Tokenizer.load(directory, openers))
    rendered = calling.render(Conversation([user("a"), call("Oslo"), result, says("d")], None))
    learnt = [rendered.text[begin:end] for begin, end in rendered.spans]
    assert "Oslo" in learnt[0] and learnt[0].endswith("]<|observation|>") and learnt[1] == "\nd<|endoftext|>"


def test_call_is_learnt_whole_where_ids_of_calls_are_written_before_results_only(
    make_model: Callable[..., Path],
) -> None:
    """As in Apriel's templates: the same call without a result has no id."""
    source = (
        "{% for m in messages %}{% if m.tool_calls %}<|im_start|>assistant\n<tool_calls>[{% for c in m.tool_calls %}"
        "{{ c.function | tojson }}{% if not loop.last %}, {% endif %}"
        "{% endfor %}{% if not loop.last %} id{% endif %}]</tool_calls><|im_end|>\n"
        "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    template = ChatTemplate.load("auto", Tokenizer.load(make_model(chat_template=source, eos_token=END)))
    rendered = template.render(Conversation([user("a"), call("Oslo"), tool("7"), says("cold")]))
    function = '{"name": "weather", "arguments": {"city": "Oslo"}}'
    learnt = [rendered.text[begin:end] for begin, end in rendered.spans]
    assert learnt == [f"<tool_calls>[{function} id]</tool_calls>{END}", f"cold{END}"]


def test_answer_of_weight_0_is_not_learnt_where_one_header_stands_for_two_answers(
    make_model: Callable[..., Path],
) -> None:
    """As in Gemma 4's and Apertus' templates."""
    source = (
        "{% set turn = namespace(role='') %}{% for m in messages %}"
        "{% if m.role != turn.role %}{{ '<|im_end|>' if turn.role }}<|im_start|>{{ m.role }}\n{% endif %}"
        "{{ m.content }}{% set turn.role = m.role %}{% endfor %}"
        "<|im_end|>{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    template = ChatTemplate.load("auto", Tokenizer.load(make_model(chat_template=source, eos_token=END)))
    rendered = template.render(Conversation([user("a"), says("left out", train=False), says("learnt")]))
    assert [rendered.text[begin:end] for begin, end in rendered.spans] == [f"learnt{END}"]


letters = st.one_of(
    st.text(max_size=30),
    st.text(st.sampled_from(" \n\t\u00a0ab天é\u0301👩‍👩‍👧ﬁ<|>_▁"), max_size=20),
    st.lists(st.sampled_from(["<|im_end|>", "</s>", "<|im_start|>", " ", "a", "assistant\n"]), max_size=5).map("".join),
)


@pytest.mark.long
@given(answers=st.lists(letters, min_size=1, max_size=3), questions=st.lists(letters, min_size=3, max_size=3))
@example(answers=["e\u0301"], questions=["a", "", ""])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_labels_are_those_of_the_offsets(answers: list[str], questions: list[str], any_tokenizer: Tokenizer) -> None:
    messages: list[Message] = []
    text, spans = "", []
    for question, answer in zip(questions, answers, strict=False):
        messages += [user(question), says(answer)]
        text += f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        spans.append((len(text), len(text) + len(answer) + len("<|im_end|>")))
        text += f"{answer}<|im_end|>\n"

    rendered = ChatTemplate.load("chatml", any_tokenizer).render(Conversation(messages))
    assert (rendered.text, rendered.spans) == (text, spans)

    encoding = any_tokenizer.backend.encode(text, add_special_tokens=False)
    found = {number for first, last in trained_tokens(encoding, spans, len(text)) for number in range(first, last)}
    overlapping = {
        number
        for number, (begin, end) in enumerate(encoding.offsets)
        if any(begin < stop and end > start for start, stop in spans)
    }
    # A token of no width inside a span has no characters to overlap it with, but has to be generated.
    inside = {
        number
        for number, (begin, end) in enumerate(encoding.offsets)
        if begin == end and any(start < begin < stop for start, stop in spans)
    }
    assert overlapping <= found <= overlapping | inside


@pytest.mark.parametrize("offers", [True, False])
def test_calls_left_out_by_the_template_are_refused_where_a_turn_has_the_name_of_the_function(
    offers: bool, make_model: Callable[..., Path]
) -> None:
    turn = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    bare = "{{ tools | tojson if tools }}{% for m in messages %}" + turn + "{% endfor %}"
    writes_calls = bare.replace("{{ m.content }}", "{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}")
    conversation = Conversation([user("the weather?"), call("Oslo")], TOOLS if offers else None)
    with pytest.raises(TemplateRefusedRow, match="does not write tool calls"):
        ChatTemplate.load("auto", Tokenizer.load(make_model(chat_template=bare))).render(conversation)
    assert ChatTemplate.load("auto", Tokenizer.load(make_model(chat_template=writes_calls))).render(conversation)


@pytest.mark.parametrize(
    ("written", "turn", "leaves_out"),
    [
        ("", call("Oslo", content="I look."), True),
        ("", call("Oslo"), False),
        ("", {**call("Oslo", content="I look."), "train": False}, False),
        ("{{ m.content }}", call("Oslo", content="I look."), False),
        ("{{ m.content | tojson }}", call("Oslo", content='I "look".'), False),
        ("{{ m.content.split('</think>')[-1] }}", call("Oslo", content="<think>hm</think>I look."), False),
    ],
)
def test_text_beside_a_call_that_the_template_leaves_out_is_noted(
    written: str, turn: Message, leaves_out: bool, make_model: Callable[..., Path]
) -> None:
    """The template of Llama 3.1 writes calls without it."""
    content = (
        f"{{% if m.tool_calls %}}{written}{{{{ m.tool_calls | tojson }}}}{{% else %}}{{{{ m.content }}}}{{% endif %}}"
    )
    source = f"{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{content}<|im_end|>\n{{% endfor %}}"
    template = ChatTemplate.load("auto", Tokenizer.load(make_model(chat_template=source, eos_token=END)))
    conversation = Conversation([user("a"), turn, tool("7"), says("cold")])
    assert template.render(conversation).leaves_out_text is leaves_out


def test_function_that_is_called_often_is_looked_for_once() -> None:
    counted: list[str] = []

    class Text(str):
        def count(self, *wanted: Any) -> int:
            counted.append(wanted[0])
            return super().count(*wanted)

    # A long conversation with thousands of calls would take the square of its length.
    assert omission(cast(Any, None), Conversation([call("Oslo")] * 50, None), Text("weather " * 50)) is None
    assert counted == ["weather"]


@pytest.mark.parametrize("writes", [True, False])
def test_result_of_a_call_in_an_answers_text_is_refused_where_it_is_left_out(
    writes: bool, make_model: Callable[..., Path]
) -> None:
    """Gemma 4's template writes results beside calls only."""
    header = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    kept = "true" if writes else "m.role != 'tool'"
    prompt = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    source = f"{{% for m in messages if {kept} %}}{header}{{% endfor %}}{prompt}"
    template = ChatTemplate.load("auto", Tokenizer.load(make_model(chat_template=source, eos_token=END)))
    conversation = Conversation([user("a"), says("[weather(city='Oslo')]"), tool("7"), says("cold")])
    if not writes:
        with pytest.raises(TemplateRefusedRow, match="omits turn 3"):
            template.render(conversation)
        return
    rendered = template.render(conversation)
    learnt = [rendered.text[begin:end] for begin, end in rendered.spans]
    assert learnt == [f"[weather(city='Oslo')]{END}", f"cold{END}"]


@pytest.mark.parametrize("thought", ["", "<think>\nIt rains.\n</think>\n\n", "It rains.</think>"])
def test_thought_left_out_by_the_template_is_refused(thought: str, make_model: Callable[..., Path]) -> None:
    """The templates of DeepSeek-R1's distilled models remove a thought from the content of every turn."""
    answer = "m.content.split('</think>')[-1] if m.role == 'assistant' else m.content"
    bare = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ " + answer + " }}<|im_end|>\n{% endfor %}"
    template = ChatTemplate.load("auto", Tokenizer.load(make_model(chat_template=bare)))
    earlier: list[Message] = [user("a?"), {"role": "assistant", "content": "<think>Dropped.</think>a"}, user("b?")]
    conversation = Conversation([*earlier, {"role": "assistant", "content": f"{thought}b"}])
    if not thought:
        assert template.render(conversation)
        return
    with pytest.raises(TemplateRefusedRow, match="does not write the thought"):
        template.render(conversation)


@pytest.mark.parametrize("what", ["tool calls", "tools"])
def test_content_left_out_by_the_template_is_refused(what: str, make_model: Callable[..., Path]) -> None:
    """A template that writes role and content alone would turn a call into an empty answer."""
    bare = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    tokenizer = Tokenizer.load(make_model(chat_template=bare))
    function = {"name": "weather", "arguments": {"city": "Paris"}}
    call: Message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    plain: Message = {"role": "assistant", "content": "Sunny."}
    offered = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    conversation = Conversation(
        [{"role": "user", "content": "How is it?"}, call if what == "tool calls" else plain],
        offered if what == "tools" else None,
    )
    with pytest.raises(TemplateRefusedRow, match=f"does not write {what}"):
        ChatTemplate.load("auto", tokenizer).render(conversation)
