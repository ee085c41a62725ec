"""The chat templates of public models, as TRL ships them: labels are those of transformers' own mask.

TRL has many templates twice: as their models have them, and with {% generation %} tags. Labels of the tagged ones are
compared with `return_assistant_tokens_mask`, labels of the others with the mask of their tagged twins, where both write
the same text: a statement of what is learnt that was written without looking at ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from ascendtune.data.conversation import Conversation, Message
from ascendtune.data.skeleton import SkeletonRenderer
from ascendtune.data.spans import TemplateRefusedRow
from ascendtune.data.template import ChatTemplate
from ascendtune.data.token_ranges import trained_tokens
from ascendtune.data.tokenizer import Tokenizer

_TRL = find_spec("trl")
pytestmark = pytest.mark.skipif(_TRL is None, reason="the templates are TRL's")
_DIRECTORY = Path(_TRL.origin).parent / "chat_templates" if _TRL and _TRL.origin else Path()
# Templates for lists of parts: of a text they write nothing, and are refused.
_PARTS_ONLY = {"idefics3", "smolvlm", "llava_next"}
TAGGED = sorted(path.stem.removesuffix("_training") for path in _DIRECTORY.glob("*_training.jinja"))
TEXT = [name for name in TAGGED if name not in _PARTS_ONLY]
# Where TRL's tags teach something else than the model's own template has a model write, and why.
_HEADER = "the tags hold the assistant's header, which the generation prompt writes"
_THOUGHT = "the tags hold the beginning of a thought, which the generation prompt writes"
OTHER_AIM = {
    "glm4moe": "the tags hold the token that opens the next turn",
    "phi3": "the tags hold the EOS at the end of the text",
    "phi3_5": "the tags hold the EOS at the end of the text",
    **dict.fromkeys(["deepseek_r1_distill", "deepseekv3", "gptoss", "muse_glimmer"], _HEADER),
    **dict.fromkeys(["qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8"], _THOUGHT),
    **{f"nemotron_3_{size}": _THOUGHT for size in ("5_lightning", "nano", "super", "ultra")},
}
_MARKERS = re.compile(r"<\|[^|<>\s{}]+\|?>|<[a-z_]+\|?>|\[/?[A-Z_]+\]|\[gMASK\]|<｜[^<>]+｜>|</?s>")
_ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|END_OF_TURN_TOKEN|>", "<|return|>",
    "<｜end▁of▁sentence｜>",
)  # fmt: skip

Load = Callable[[str], tuple[ChatTemplate, Any]]


def _eos_of(name: str, source: str) -> str:
    if name.startswith("phi3"):
        return "<|endoftext|>"
    return next((each for each in _ENDS if each in source), "</s>")


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """A public template with a tokenizer that knows its markers, here and in transformers."""
    from transformers import AutoTokenizer

    made: dict[str, tuple[ChatTemplate, Any]] = {}

    def make(stem: str) -> tuple[ChatTemplate, Any]:
        if stem not in made:
            source = (_DIRECTORY / f"{stem}.jinja").read_text()
            directory = tmp_path_factory.mktemp(stem)
            eos = _eos_of(stem, source)
            markers = sorted({"<s>", "</s>", "<unk>", eos, *_MARKERS.findall(source)} - {"<think>"})
            backend = Backend(models.BPE())
            backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            backend.decoder = decoders.ByteLevel()
            trainer = trainers.BpeTrainer(
                vocab_size=2000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
                special_tokens=[AddedToken(each, special=True, normalized=False) for each in markers],
            )  # fmt: skip
            backend.train_from_iterator(["hello"], trainer)
            backend.save(str(directory / "tokenizer.json"))
            config = {
                "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": eos,
                "unk_token": "<unk>", "chat_template": source,
            }  # fmt: skip
            (directory / "tokenizer_config.json").write_text(json.dumps(config))
            template = ChatTemplate.load("auto", Tokenizer.load(directory))
            made[stem] = template, AutoTokenizer.from_pretrained(directory)
        return made[stem]

    return make


@pytest.fixture(scope="module")
def renderer_of(load: Load) -> Callable[[str], SkeletonRenderer]:
    """The fast path of a template, one for all of its rows, as in a preparation."""
    return cache(lambda stem: SkeletonRenderer(load(stem)[0]))


def _ours(template: ChatTemplate, messages: list[Message]) -> tuple[list[int], list[int]] | None:
    """(token ids, 1 where learnt); None for what is refused."""
    try:
        rendered = template.render(Conversation(messages))
    except TemplateRefusedRow:
        return None
    encoding = template.tokenizer.backend.encode(rendered.text, add_special_tokens=False)
    mask = [0] * len(encoding.ids)
    for first, last in trained_tokens(encoding, rendered.spans, len(rendered.text)):
        mask[first:last] = [1] * (last - first)
    return encoding.ids, mask


def _theirs(tokenizer: Any, messages: list[Message]) -> tuple[list[int], list[int]] | None:
    """The same of transformers; None for what the template refuses."""
    from jinja2 import TemplateError

    try:
        found = tokenizer.apply_chat_template(messages, return_assistant_tokens_mask=True, return_dict=True)
    except TemplateError:
        return None
    return found["input_ids"], found["assistant_masks"]


# One byte a letter: of one with several, transformers' mask holds only the first token where tags end with it.
words = st.lists(st.sampled_from(["a", "b?", "sure", "q", "d", "end", "|>", "\n", "  x "]), min_size=1, max_size=4).map(
    " ".join
)
said = words.filter(str.strip)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """In any order, the assistant at the end; earlier answers may be empty."""
    messages: list[Message] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(said)})
    for _ in range(draw(st.integers(0, 4))):
        role = draw(st.sampled_from(["user", "user", "assistant"]))
        content = draw(st.one_of(said, st.just(""))) if role == "assistant" else draw(said)
        messages.append({"role": role, "content": content})
    return [*messages, {"role": "user", "content": draw(said)}, {"role": "assistant", "content": draw(said)}]


_MANY = settings(
    max_examples=25, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", TEXT)
@given(messages=conversations())
@_MANY
def test_labels_of_tagged_templates_are_transformers_mask(name: str, messages: list[Message], load: Load) -> None:
    template, tokenizer = load(f"{name}_training")
    found, expected = _ours(template, messages), _theirs(tokenizer, messages)
    if expected is None:
        assert found is None
        return
    assert found is not None
    ids, mask = found
    # Where a template ends an answer with no token, EOS is added.
    assert ids[: len(expected[0])] == expected[0] and mask[: len(expected[0])] == expected[1]
    assert ids[len(expected[0]) :] in ([], [template.tokenizer.eos_id])


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in TEXT if name not in OTHER_AIM])
@given(messages=conversations())
@_MANY
def test_labels_of_untagged_templates_are_those_of_their_tagged_twins(
    name: str, messages: list[Message], load: Load
) -> None:
    found = _ours(load(name)[0], messages)
    expected = _theirs(load(f"{name}_training")[1], messages)
    if found is None or expected is None:
        return
    # Special tokens have other numbers in the other tokenizer where a twin names more of them.
    pieces, others = (
        (tokenizer.convert_ids_to_tokens(ids), mask)
        for tokenizer, (ids, mask) in ((load(name)[1], found), (load(f"{name}_training")[1], expected))
    )
    if pieces[0] != others[0]:
        return
    # Tags may hold the white space after the token that ends the turn, which is never generated.
    differing = [token for token, ours, theirs in zip(pieces[0], pieces[1], others[1], strict=True) if ours != theirs]
    assert set(differing) <= {"Ċ"}, differing


@pytest.mark.parametrize("name", TEXT)
def test_twins_mostly_write_the_same(name: str, load: Load) -> None:
    """Or nothing would have been compared above."""
    if name in OTHER_AIM:
        pytest.skip(OTHER_AIM[name])
    messages: list[Message] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    texts = [load(stem)[0].text_of(messages)[0] for stem in (name, f"{name}_training")]
    assert texts[0] == texts[1]


@pytest.mark.long
@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("twin", ["", "_training"])
@given(messages=conversations())
@settings(_MANY, max_examples=10)
def test_the_fast_path_agrees(
    name: str, twin: str, messages: list[Message], load: Load, renderer_of: Callable[[str], SkeletonRenderer]
) -> None:
    template, _ = load(f"{name}{twin}")
    fast = renderer_of(f"{name}{twin}").render(Conversation(messages))
    if fast is not None:
        assert fast == template.render(Conversation(messages))


@pytest.mark.parametrize("name", sorted(_PARTS_ONLY))
def test_templates_that_write_nothing_of_a_text_are_refused(name: str, load: Load) -> None:
    messages: list[Message] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "answered"}]
    with pytest.raises(TemplateRefusedRow):
        load(f"{name}_training")[0].render(Conversation(messages))


_CALLING = ("diffusion_gemma", "gemma4", "gemma4_v3", "gemma4_v5", "glm4moe", "gptoss", "lfm2_2_5", "qwen3")


def _calls(*cities: str) -> Message:
    calls = [{"type": "function", "function": {"name": "weather", "arguments": {"city": city}}} for city in cities]
    return {"role": "assistant", "content": "", "tool_calls": calls}


@pytest.mark.parametrize("name", _CALLING)
@pytest.mark.parametrize("thought", [{}, {"reasoning_content": "hm"}, {"content": "hm"}])
def test_results_of_tools_are_not_trained_on(name: str, thought: dict[str, str], load: Load) -> None:
    """Gemma 4 writes them into the turn that calls, gpt-oss with the name of the function before them."""
    messages: list[Message] = [
        {"role": "user", "content": "asked"},
        {**_calls("Oslo"), **thought},  # type: ignore[typeddict-item]
        {"role": "tool", "content": "seven", "name": "weather"},
        _calls("Rome"),
        {"role": "tool", "content": "nine", "name": "weather"},
        {"role": "assistant", "content": "cold"},
        {"role": "user", "content": "again"},
        {"role": "assistant", "content": "warm"},
    ]
    tools = [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": {}}}]
    rendered = load(name)[0].render(Conversation(messages, tools))
    learnt = [rendered.text[begin:end] for begin, end in rendered.spans]
    assert len(learnt) == 4
    assert all(said in part for said, part in zip(("Oslo", "Rome", "cold", "warm"), learnt, strict=True))
    assert not any(given in part for given in ("seven", "nine", "asked", "again", "to=assistant") for part in learnt)
    if name == "gptoss":
        assert all(part.startswith("<|channel|>final") for part in learnt[2:])


@pytest.mark.parametrize("name", [name for name in _CALLING if name != "gptoss"])
def test_result_behind_a_call_with_thought_and_content_is_not_trained_on(name: str, load: Load) -> None:
    """gpt-oss refuses such a call."""
    messages: list[Message] = [
        {"role": "user", "content": "asked"},
        {**_calls("Oslo"), "content": "so", "reasoning_content": "hm"},
        {"role": "tool", "content": "seven", "name": "weather"},
        {"role": "assistant", "content": "cold", "reasoning_content": "well"},
    ]
    try:
        rendered = load(name)[0].render(Conversation(messages))
    except TemplateRefusedRow as refusal:
        pytest.skip(refusal.reason)
    learnt = [rendered.text[begin:end] for begin, end in rendered.spans]
    assert ["Oslo" in part for part in learnt] == [True, False] and not any("seven" in part for part in learnt)


def test_a_template_that_writes_only_the_first_of_several_calls_is_refused(load: Load) -> None:
    result: Message = {"role": "tool", "content": "seven", "name": "weather"}
    answer: Message = {"role": "assistant", "content": "cold"}
    messages: list[Message] = [{"role": "user", "content": "asked"}, _calls("Oslo", "Rome"), result, result, answer]
    with pytest.raises(TemplateRefusedRow, match="only some"):
        load("gptoss")[0].render(Conversation(messages))
