from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.core.errors import RecipeError
from ascendtune.data.tokenizer import Tokenizer
from ascendtune.hub.verify import has_vocabulary

TEXTS = [
    "Hello  world\n\n",
    "天气很好 é e\u0301",
    "<s>[INST] a [/INST] b </s>",
    "<|im_start|>user\nx<|im_end|>",
    " <new> <new>",
    "",
]


@pytest.mark.parametrize("kind", ["byte_level", "metaspace", "prepending"])
@pytest.mark.parametrize("new_tokens", [[], ["<new>", "<|im_end|>"]])
def test_transformers_tokenises_the_same_before_and_after_saving(
    kind: str, new_tokens: list[str], make_model: Callable[..., Path], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    directory = make_model(kind, chat_template="{{ messages[0].content }}", pad_token="<|endoftext|>")
    ours = Tokenizer.load(directory, new_tokens)
    ours.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert len(theirs) == ours.vocab_size == again.vocab_size
    assert theirs.chat_template == again.chat_templates["default"] == ours.chat_templates["default"]
    assert (theirs.eos_token_id, theirs.pad_token_id) == (ours.eos_id, ours.pad_id)
    assert theirs.bos_token_id == ours.id_of(ours.named_tokens.get("bos_token"))
    for text in TEXTS:
        ids = ours.encode(text)
        assert theirs.encode(text, add_special_tokens=False) == ids == again.encode(text)
        assert theirs.decode(ids) == ours.decode(ids)
        assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids, skip_special_tokens=True)
    if not new_tokens:
        original = AutoTokenizer.from_pretrained(directory)
        assert [original.encode(text, add_special_tokens=False) for text in TEXTS] == [ours.encode(t) for t in TEXTS]


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("metaspace", {"tokenizer_class": "LlamaTokenizer", "legacy": False}),
        ("prepending", {"tokenizer_class": "LlamaTokenizer", "legacy": False}),
        # Without the NFC of tokenizer.json; Granite 4, OLMo 3 and SmolLM name this class beside another pipeline.
        ("byte_level", {"tokenizer_class": "GPT2Tokenizer"}),
        ("byte_level", {"split_special_tokens": True}),
        ("byte_level", {"auto_map": {"AutoTokenizer": ["own.Slow", "own.Fast"]}, "tokenizer_class": "Own"}),
    ],
)
@pytest.mark.parametrize("model_type", ["llama", None])
def test_transformers_takes_the_pipeline_of_the_saved_tokenizer_json(
    kind: str, config: dict[str, object], model_type: str | None, make_model: Callable[..., Path], tmp_path: Path
) -> None:
    """Whatever class the base names: some take the vocabulary alone, since transformers 5.

    `model_type` is None for an adapter, which has no config.json.
    """
    from transformers import AutoTokenizer

    ours = Tokenizer.load(make_model(kind, **config))
    ours.save(tmp_path)
    if model_type is not None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert [theirs.encode(text, add_special_tokens=False) for text in TEXTS] == [ours.encode(text) for text in TEXTS]


def test_new_tokens_get_the_next_ids_and_known_ones_keep_theirs(make_model: Callable[..., Path]) -> None:
    directory = make_model()
    plain = Tokenizer.load(directory)
    grown = Tokenizer.load(directory, ["<|im_end|>", "<a>", "<b>", "<a>"])
    assert grown.vocab_size == plain.vocab_size + 2
    assert [grown.id_of(text) for text in ("<|im_end|>", "<a>", "<b>")] == [
        plain.id_of("<|im_end|>"), plain.vocab_size, plain.vocab_size + 1,
    ]  # fmt: skip
    assert grown.encode("x<a>")[-1] == plain.vocab_size


def test_templates_of_other_names_are_saved_too(make_model: Callable[..., Path], tmp_path: Path) -> None:
    both = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]
    Tokenizer.load(make_model(chat_template=both)).save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").chat_templates == {"default": "one", "tool_use": "two"}


@pytest.mark.parametrize("name", ["../x", "a/b", ".x", "", "a\0b", "a\x1b]0;b", "a" * 250])
def test_a_template_whose_name_cannot_be_a_files_is_refused_when_it_is_read(
    name: str, make_model: Callable[..., Path]
) -> None:
    """Not at the end of a training, when it is saved."""
    both = [{"name": "default", "template": "one"}, {"name": name, "template": "two"}]
    with pytest.raises(RecipeError, match="name of a chat_template"):
        Tokenizer.load(make_model(chat_template=both))


def test_the_template_that_was_trained_with_is_saved(make_model: Callable[..., Path], tmp_path: Path) -> None:
    Tokenizer.load(make_model(chat_template="old")).save(tmp_path / "saved", chat_template="new")
    assert Tokenizer.load(tmp_path / "saved").chat_templates == {"default": "new"}


def test_special_tokens_from_the_older_files(make_model: Callable[..., Path]) -> None:
    directory = make_model(eos_token=None, added_tokens_decoder={"900": {"content": "<late>", "special": True}})
    (directory / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    (directory / "added_tokens.json").write_text(json.dumps({"<later>": 901}))
    tokenizer = Tokenizer.load(directory)
    assert tokenizer.eos == "<|im_end|>" and tokenizer.eos_ids == (tokenizer.id_of("<|im_end|>"),)
    assert len(tokenizer.encode("<late><later>")) == 2
    assert "<late>" in tokenizer.special_tokens and "<later>" not in tokenizer.special_tokens


@pytest.mark.parametrize(
    ("config", "tokens_map"),
    [
        ({"additional_special_tokens": ["<s>", "<one>", "<two>"]}, {}),
        ({"extra_special_tokens": ["<one>"], "additional_special_tokens": ["<two>"]}, {}),
        ({"extra_special_tokens": {"image_token": "<one>"}, "additional_special_tokens": ["<two>"]}, {}),
        ({"additional_special_tokens": [{"content": "<one>", "lstrip": True, "__type": "AddedToken"}]}, {}),
        ({}, {"additional_special_tokens": ["<one>"]}),
        ({"added_tokens_decoder": {}}, {"additional_special_tokens": ["<one>"], "eos_token": "<s>"}),
        ({"cls_token": "<one>", "additional_special_tokens": ["<two>"]}, {"pad_token": "<three>"}),
        # The older file counts more where the newer key is missing.
        ({}, {"eos_token": "<|im_end|>"}),
    ],
)
def test_special_tokens_are_those_of_transformers(
    config: dict[str, object], tokens_map: dict[str, object], make_model: Callable[..., Path], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    directory = make_model(**config)
    (directory / "special_tokens_map.json").write_text(json.dumps(tokens_map))
    ours = Tokenizer.load(directory)
    ours.save(tmp_path)
    for theirs in (AutoTokenizer.from_pretrained(directory), AutoTokenizer.from_pretrained(tmp_path)):
        assert {number: token.content for number, token in theirs.added_tokens_decoder.items()} == {
            number: token.content for number, token in ours.backend.get_added_tokens_decoder().items()
        }
        assert theirs.eos_token == ours.eos
        text = "a <one><two> <three>x"
        assert theirs.encode(text, add_special_tokens=False) == ours.encode(text)


def test_every_eos_of_the_generation_config_is_taken(make_model: Callable[..., Path]) -> None:
    directory = make_model(eos_token="</s>")
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 2]}))
    assert Tokenizer.load(directory).eos_ids == (2, 5)


def test_padding_has_an_id_even_without_a_token(make_model: Callable[..., Path]) -> None:
    assert Tokenizer.load(make_model(eos_token="</s>")).pad_id == 2
    assert Tokenizer.load(make_model(eos_token=None)).pad_id == 0


def test_truncation_and_padding_of_the_file_are_off(make_model: Callable[..., Path]) -> None:
    directory = make_model()
    path = directory / "tokenizer.json"
    backend = Tokenizer.load(directory).backend
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    backend.save(str(path))
    assert 3 < len(Tokenizer.load(directory).encode("a longer text, word after word")) < 50


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja"])
def test_a_pointer_of_git_lfs_in_place_of_a_file_is_named(name: str, make_model: Callable[..., Path]) -> None:
    directory = make_model()
    (directory / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7031645\n")
    with pytest.raises(RecipeError) as caught:
        Tokenizer.load(directory)
    assert caught.value.code == "git-lfs-pointer" and caught.value.where == str(directory / name)


@pytest.mark.parametrize("damage", ["missing", "broken", "config"])
def test_damaged_tokenizer_file_is_named(damage: str, make_model: Callable[..., Path]) -> None:
    directory = make_model()
    if damage == "missing":
        (directory / "tokenizer.json").unlink()
    elif damage == "broken":
        (directory / "tokenizer.json").write_text('{"version": "1.0"')
    else:
        (directory / "tokenizer_config.json").write_text("{")
    with pytest.raises(RecipeError) as caught:
        Tokenizer.load(directory)
    assert str(directory) in str(caught.value)
    if damage == "missing":
        assert "save_pretrained" in caught.value.remedy


@pytest.mark.parametrize("file", ["tekken.json", "vocab.json"])
def test_conversion_of_a_vocabulary_is_one_command_for_a_directory_of_any_name(file: str, tmp_path: Path) -> None:
    (hostile := tmp_path / 'it\'s "$(reboot)"').mkdir()
    (hostile / file).write_text("{}")
    with pytest.raises(RecipeError) as caught:
        Tokenizer.load(hostile)
    python, option, code = shlex.split(caught.value.remedy[caught.value.remedy.index("python -c ") :])
    assert (python, option) == ("python", "-c")
    assert str(hostile) in {each.value for each in ast.walk(ast.parse(code)) if isinstance(each, ast.Constant)}


@pytest.mark.parametrize(
    ("file", "needed"),
    [
        ("tekken.json", "convert_tekken_tokenizer"),
        ("tokenizer.model", "'transformers<5'"),
        ("vocab.json", "AutoTokenizer"),
    ],
)
def test_model_without_tokenizer_json_is_told_what_converts_its_vocabulary(
    file: str, needed: str, tmp_path: Path
) -> None:
    (tmp_path / file).write_text("{}")
    with pytest.raises(RecipeError) as caught:
        Tokenizer.load(tmp_path)
    assert needed in caught.value.remedy and str(tmp_path) in caught.value.remedy
    assert has_vocabulary(tmp_path)
