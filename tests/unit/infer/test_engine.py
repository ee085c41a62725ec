"""Answers of a model whose next token depends on the last one alone, so that every answer is known beforehand."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

from ascendtune.core.errors import InputError
from ascendtune.data.conversation import Message
from ascendtune.data.template import ChatTemplate
from ascendtune.data.tokenizer import Tokenizer
from ascendtune.infer.engine import Engine, Sampling, Weights
from ascendtune.infer.transformers_model import TransformersModel
from ascendtune.machine.torch_backend.find import find_device

ASKED: list[Message] = [{"role": "user", "content": "hello"}]
END_OF_TEXT, END_OF_TURN = "<|endoftext|>", "<|im_end|>"


def chain(words: list[int], vocabulary: int) -> Any:
    """A model that goes through `words`, each the likeliest after the one before it, and round again."""
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=vocabulary, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        head_dim=8, tie_word_embeddings=False, bos_token_id=None, eos_token_id=2, pad_token_id=0,
        max_position_embeddings=64,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = LlamaForCausalLM(config)
        for parameter in model.model.layers.parameters():
            parameter.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(vocabulary))
        model.lm_head.weight.zero_()
        for before, after in zip(words, [*words[1:], words[0]], strict=True):
            model.lm_head.weight[after, before] = 1
    return model.eval()


@pytest.fixture
def make_engine(tiny_model: Path, tmp_path: Path) -> Callable[..., Engine]:
    """An engine whose model says " Paris France", then ends with the given token, and would begin again after it."""
    directory = tmp_path / "model"
    shutil.copytree(tiny_model, directory)
    tokenizer = Tokenizer.load(directory)
    ends = [tokenizer.id_of(END_OF_TURN), tokenizer.id_of(END_OF_TEXT)]
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))

    def make(end: str, said: str = " Paris France", template: str = "auto") -> Engine:
        template = ChatTemplate.load(template, Tokenizer.load(directory))
        prompt = tokenizer.encode(template.render_prompt(ASKED))
        words = tokenizer.encode(said + end)
        assert len({prompt[-1], *words}) == 1 + len(words), "each token must be followed by one other"
        model = chain([prompt[-1], *words], tokenizer.vocab_size)
        return Engine(template.tokenizer, template, TransformersModel(model, find_device()))

    return make


@pytest.mark.parametrize("end", [END_OF_TURN, END_OF_TEXT])
def test_an_answer_ends_at_whichever_stop_token_comes(make_engine: Callable[..., Engine], end: str) -> None:
    engine = make_engine(end)
    assert engine.generate([ASKED, ASKED], 30) == ["Paris France"] * 2
    pieces: list[str] = []
    assert engine.stream(ASKED, pieces.append, 30) == "Paris France"
    assert "".join(pieces) == " Paris France"


def test_each_prompt_is_written_with_its_own_options(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}{% if thinks is defined and not thinks %}, briefly{% endif %}:")
    engine = make_engine(END_OF_TURN, template=str(template))
    prompts: list[list[int]] = []
    monkeypatch.setattr(engine.model, "generate", lambda given, *_, **__: prompts.extend(given) or [[]] * len(given))
    list(engine.answers([ASKED, ASKED], template_options=[{"thinks": False}, None]))
    question = ASKED[0]["content"]
    assert sorted(map(engine.tokenizer.decode, prompts)) == [f"{question}, briefly:", f"{question}:"]


@pytest.mark.parametrize("end", [END_OF_TURN, END_OF_TEXT])
def test_generation_stops_at_the_end_token(make_engine: Callable[..., Engine], end: str) -> None:
    engine = make_engine(end)
    seen: list[int] = []
    stop_ids = engine.template.stop_ids
    prompt = engine.tokenizer.encode(engine.template.render_prompt(ASKED))
    [answer] = engine.model.generate([prompt], Sampling(30), stop_ids, 0, on_token=seen.append)
    assert seen == [*answer, engine.tokenizer.id_of(end)]


def test_an_answer_ends_at_text_that_is_not_a_token(
    make_engine: Callable[..., Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.role == 'assistant' %}<#>{% endif %}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    engine = make_engine("<#>", template=str(template))
    assert engine.template.turn_end == "<#>" and "<#>" not in engine.tokenizer.added_tokens
    computed: list[int] = []
    generate = engine.model.generate

    def noted(*arguments: Any, **named: Any) -> list[list[int]]:
        found = generate(*arguments, **named)
        computed.extend(map(len, found))
        return found

    monkeypatch.setattr(engine.model, "generate", noted)
    assert engine.generate([ASKED], 40) == ["Paris France"]
    pieces: list[str] = []
    assert engine.stream(ASKED, pieces.append, 40) == "Paris France"
    assert "".join(pieces) == " Paris France"
    whole = len(engine.tokenizer.encode(" Paris France<#>"))
    assert computed == [whole, whole], "nothing is computed behind the end"


@pytest.mark.parametrize(
    ("said", "shown"),
    [(" Paris<#>", " Paris"), (" a < b <# c", " a < b <# c"), (" a<", " a<"), (" a<#> b<#> c", " a"), ("<#>", "")],
)
def test_textual_end_and_what_follows_is_not_shown(
    make_engine: Callable[..., Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, shown: str
) -> None:
    engine = make_engine(END_OF_TURN)
    monkeypatch.setattr(engine, "_stop_text", "<#>")

    def generate(prompts: Any, *_: Any, on_token: Callable[[int], None] | None = None, **__: Any) -> list[list[int]]:
        # A token may hold the end of the turn and more: the model is asked for an end only behind a token.
        ids = engine.tokenizer.encode(said)
        for token in ids if on_token else ():
            on_token(token)  # type: ignore[misc]
        return [ids]

    monkeypatch.setattr(engine.model, "generate", generate)
    pieces: list[str] = []
    assert engine.stream(ASKED, pieces.append) == shown.strip()
    assert "".join(pieces) == shown
    assert engine.generate([ASKED]) == [shown.strip()]


@pytest.mark.parametrize(
    ("said", "pieces"),
    [
        (["<0xE4>", "<0xBD>", "<0xA0>", "a"], ["你", "a"]),
        (["a", "<0xE4>", "b"], ["a", "\ufffdb"]),
        (["a", "<0xE4>", "<0xBD>"], ["a", "\ufffd\ufffd"]),
        (["<0x41>", "<0xE4>", "a"], ["A", "\ufffda"]),
        (["a", "beyond", "b"], ["a", "b"]),
    ],
)
def test_bytes_that_are_not_characters_are_shown_as_that(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, said: list[str], pieces: list[str]
) -> None:
    """As of Llama 2 and Gemma: a token for each byte that has no other, which a model may draw in any order."""
    names = [*(f"<0x{number:02X}>" for number in range(256)), "a", "b"]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE({name: number for number, name in enumerate(names)}, [], byte_fallback=True)
    )
    backend.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()])
    engine = make_engine(END_OF_TURN)
    prompt = engine.tokenizer.encode(engine.template.render_prompt(ASKED))
    ids = [names.index(name) if name in names else len(names) for name in said]
    monkeypatch.setattr(engine, "_prompt", lambda *_: prompt)
    monkeypatch.setattr(engine.tokenizer, "backend", backend)
    monkeypatch.setattr(engine, "template", SimpleNamespace(stop_ids=()))

    def generate(*_: Any, on_token: Callable[[int], None], **__: Any) -> list[list[int]]:
        for token in ids:
            on_token(token)
        return [ids]

    monkeypatch.setattr(engine.model, "generate", generate)
    shown: list[str] = []
    answer = engine.stream(ASKED, shown.append)
    assert shown == pieces
    # The decoder takes bytes beside each other as one text, of which an A that has been shown was the beginning.
    assert answer == "".join(pieces).replace("A", "\ufffd")


def test_special_tokens_inside_an_answer_are_not_shown(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(END_OF_TURN, said=" Paris<|im_start|> France")
    assert engine.generate([ASKED], 30) == ["Paris France"]
    pieces: list[str] = []
    assert engine.stream(ASKED, pieces.append, 30) == "Paris France"
    assert "".join(pieces) == " Paris France"


def test_an_answer_is_cut_at_the_number_of_tokens_that_was_asked_for(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(END_OF_TEXT)
    whole = engine.tokenizer.encode(" Paris France")
    assert engine.generate([ASKED], 2) == [engine.tokenizer.decode(whole[:2]).strip()]


def test_a_conversation_longer_than_the_context_is_refused(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(END_OF_TEXT)
    with pytest.raises(InputError) as refused:
        engine.generate([[{"role": "user", "content": "hello " * 60}]], 5)
    assert refused.value.code == "prompt-too-long" and "64" in refused.value.what
    assert refused.value.code == "prompt-too-long"


def test_drawn_answers_follow_temperature_top_p_and_seed(tiny_model: Path) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    # After 7 comes each of four tokens, one of them with a larger share.
    shares = {20: 0.55, 21: 0.15, 22: 0.15, 23: 0.15}
    model = chain([7, 20], tokenizer.vocab_size)
    with torch.no_grad():
        model.lm_head.weight.fill_(-10)
        for token, share in shares.items():
            # The norm before the head makes a one-hot vector larger by the root of its length.
            model.lm_head.weight[token, 7] = math.log(share) / tokenizer.vocab_size**0.5
    generating = TransformersModel(model, find_device())

    def drawn(**changes: Any) -> Counter[int]:
        sampling = Sampling(1, **{"temperature": 1.0, **changes})
        return Counter(ids[0] for ids in generating.generate([[7]] * 400, sampling, (2,), 0))

    found = drawn()
    assert found.keys() == shares.keys()
    assert all(count / 400 == pytest.approx(shares[token], abs=0.08) for token, count in found.items())
    assert drawn() == found != drawn(seed=1)
    assert set(drawn(top_p=0.5)) == {20}
    assert set(drawn(temperature=0.0)) == set(drawn(temperature=1e-300)) == {20}
    # Shares to the power of 1 / temperature: the larger one gains below 1, and loses above.
    assert drawn(temperature=0.3)[20] > 370 and drawn(temperature=9.0)[20] < 160


@pytest.mark.parametrize(
    ("saved", "supports", "expected"),
    [
        ("bfloat16", {"supports_bf16"}, torch.bfloat16),
        ("bfloat16", {"supports_fp16"}, torch.float32),
        ("float16", {"supports_fp16"}, torch.float16),
        ("float16", {"supports_bf16"}, torch.float32),
        ("float32", {"supports_bf16", "supports_fp16"}, torch.float32),
    ],
)
def test_weights_are_held_as_they_were_saved_where_the_device_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: str, supports: set[str],
    expected: torch.dtype,
) -> None:  # fmt: skip
    directory = tmp_path / "model"
    LlamaForCausalLM.from_pretrained(make_llama(tmp_path / "llama"), dtype=getattr(torch, saved)).save_pretrained(
        directory
    )
    device = find_device()
    for name in ("supports_bf16", "supports_fp16"):
        monkeypatch.setattr(type(device), name, name in supports)
    loaded = TransformersModel.load(Weights(directory), device, vocabulary=16)
    assert {each.dtype for each in loaded.model.parameters()} == {expected}
    assert not loaded.model.training


def test_a_prompt_in_a_batch_is_answered_as_alone(tmp_path: Path) -> None:
    model = TransformersModel.load(Weights(make_llama(tmp_path / "llama")), find_device(), vocabulary=16)
    draw = random.Random(0)
    prompts = [[draw.randrange(3, 16) for _ in range(length)] for length in (1, 9, 4, 15, 2)]
    settings: dict[str, Any] = {"stop_ids": (2,), "pad_id": 0}
    together = model.generate(prompts, Sampling(12), **settings)
    assert together == [model.generate([each], Sampling(12), **settings)[0] for each in prompts]
    assert len({str(each) for each in together}) == 5, "answers that differ, so that a mix-up would show"


@pytest.mark.parametrize("fields", [{"hidden_act": "new"}, {"rope_parameters": {"rope_type": "new"}}])
def test_name_that_transformers_does_not_know_is_refused_with_its_field(tmp_path: Path, fields: dict[str, Any]) -> None:
    directory = make_llama(tmp_path / "llama")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **fields}))
    with pytest.raises(InputError) as caught:
        TransformersModel.load(Weights(directory), find_device(), vocabulary=16)
    assert caught.value.code == "invalid-field" and next(iter(fields)) in caught.value.what


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    directory = make_llama(tmp_path / "llama")
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError) as caught:
        TransformersModel.load(Weights(directory), find_device(), vocabulary=16)
    assert caught.value.code == "weights-missing" and "model.norm.weight" in caught.value.what


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("value", "code"), [(math.nan, "weights-not-finite"), (3e38, "logits-not-finite")])
def test_model_that_computes_no_numbers_is_refused(tmp_path: Path, value: float, code: str, temperature: float) -> None:
    """Sampling would end in an error of torch; the largest of NaN is some token."""
    directory = make_llama(tmp_path / "llama")
    tensors = load_file(directory / "model.safetensors")
    tensors["lm_head.weight"][:] = value
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    model = TransformersModel.load(Weights(directory), find_device("cpu"), vocabulary=16)
    with pytest.raises(InputError) as caught:
        model.generate([[3, 4, 5]], Sampling(4, temperature=temperature), [2], 0)
    assert caught.value.code == code
    assert ("lm_head.weight" in caught.value.what) == (code == "weights-not-finite")


def make_llama(directory: Path) -> Path:
    config = LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        bos_token_id=None, eos_token_id=2, pad_token_id=0, initializer_range=0.5,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.mark.parametrize(
    "conversation",
    [["hello"], [None], {"role": "user", "content": "hello"}, "hello", 3, [{"role": "user", "content": 3}],
     [{"content": "hello"}], [{"role": "nobody", "content": "hello"}]],
)  # fmt: skip
def test_values_that_are_not_conversations_are_refused(make_engine: Callable[..., Engine], conversation: Any) -> None:
    engine = make_engine(END_OF_TURN)
    for ask in (lambda: engine.generate([conversation], 3), lambda: engine.stream(conversation, print, 3)):
        with pytest.raises(InputError) as caught:
            ask()
        assert caught.value.code == "not-a-conversation"


@pytest.mark.parametrize(
    "options",
    [{"max_new_tokens": 0}, {"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_p": 1.5}],
    ids=str,
)
def test_an_option_out_of_range_is_refused(make_engine: Callable[..., Engine], options: dict[str, Any]) -> None:
    engine = make_engine(END_OF_TURN)
    for ask in (lambda: engine.generate([ASKED], **options), lambda: engine.stream(ASKED, print, **options)):
        with pytest.raises(InputError) as caught:
            ask()
        assert caught.value.code == "invalid-value"


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_of_nothing_is_not_an_empty_answer(make_engine: Callable[..., Engine], size: int) -> None:
    with pytest.raises(InputError) as caught:
        make_engine(END_OF_TURN).generate([ASKED], 3, batch_size=size)
    assert caught.value.code == "invalid-value"


def test_messages_are_read_in_all_forms_of_training_data(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(END_OF_TURN)
    parts: Any = ({"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]},)
    assert engine.generate([parts], 30) == engine.generate([ASKED], 30) == ["Paris France"]


@pytest.mark.parametrize("text", [b"caf\xe9".decode(errors="surrogateescape"), "half \ud83d of a pair"])
def test_message_that_is_not_utf8_is_refused_as_that(make_engine: Callable[..., Engine], text: str) -> None:
    engine = make_engine(END_OF_TURN)
    for ask in (lambda asked: engine.generate([asked]), lambda asked: engine.stream(asked, print)):
        with pytest.raises(InputError) as caught:
            ask([{"role": "user", "content": text}])
        assert caught.value.code == "not-utf8"


def test_a_prompt_gets_its_answer_whole_beside_one_that_fills_the_context() -> None:
    """The model goes round 5, 6, 7 and holds 64 tokens."""
    model = TransformersModel(chain([5, 6, 7], 16), find_device())
    settings: dict[str, Any] = {"stop_ids": (), "pad_id": 0}
    prompts = [[5] * 61, [7], [6] * 61, [5, 6]]
    answers = model.generate(prompts, Sampling(20), **settings)
    assert [len(each) for each in answers] == [3, 20, 3, 20]
    assert answers == [model.generate([each], Sampling(20), **settings)[0] for each in prompts]


def test_a_longer_prompt_does_not_change_the_rotary_frequencies_of_others() -> None:
    """LongRoPE's frequencies change at a length, here 16, and transformers takes the longest row's for all."""
    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 16,
        "short_factor": [1.0] * 4, "long_factor": [4.0, 3.0, 2.0, 8.0],
    }  # fmt: skip
    config = Phi3Config(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, original_max_position_embeddings=16, rope_parameters=rope,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        network = Phi3ForCausalLM(config).eval()
        for parameter in network.parameters():
            parameter *= 4
    model = TransformersModel(network, find_device())
    settings: dict[str, Any] = {"stop_ids": (), "pad_id": 0}
    draw = random.Random(0)
    prompts = [[draw.randrange(3, 97) for _ in range(length)] for length in (4, 30, 7, 12, 20)]
    alone = [model.generate([each], Sampling(8), **settings)[0] for each in prompts]
    assert model.generate(prompts, Sampling(8), **settings) == alone
