"""The model's tokenizer, read with the `tokenizers` library only: importing transformers takes seconds.

Text is tokenised as by transformers' `apply_chat_template`: the rendered text, without added special tokens (a template
writes its own BOS), and with special tokens in the text recognised.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers

from ascendtune.core.errors import AscendtuneError, RecipeError, translated_disk_errors
from ascendtune.core.files import write_atomically
from ascendtune.core.foreign_json import bad_field, first_line, read_json_object, read_regular_file, remedy_for_damaged
from ascendtune.core.records import write_json
from ascendtune.data.text_growth import require_bounded_growth

_VOCABULARY_FILES = ("vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json", "special_tokens_map.json")
_MOST_VOCABULARY_BYTES = 256 << 20
_MOST_TEMPLATE_BYTES = 4 << 20
_LONGEST_TEMPLATE_NAME = 200
"""Bytes; below the limit of file systems, because the file name has a suffix, and another while it is written."""
_LARGEST_ID = 100_000_000
_OTHER_TOKENS = ("auto_map", "split_special_tokens")
"""Keys of tokenizer_config.json that replace tokenizer.json: a class in a Python file that is not saved, and special
tokens that are spelled like other text."""
_MAP = "special_tokens_map.json"
_DECODER = "added_tokens_decoder"
_TOKEN_FLAGS = ("lstrip", "normalized", "rstrip", "single_word", "special")
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """A tokenizer, created by `Tokenizer.load`.

    Attributes:
        backend: the `tokenizers.Tokenizer`, without truncation and padding.
        named_tokens: texts of the named special tokens that exist: {"eos_token": "</s>", …}.
        added_tokens: texts that are always one token; special_tokens: those of them that are special.
        chat_templates: Jinja texts by name; the usual one is "default".
        chat_template_file: the file that contains "default".
        vocab_size: required rows of the embeddings: largest token id + 1.
        generation_config: the file that lists further tokens that end a text; it may be absent.
    """

    def __init__(self, directory: Path, backend: tokenizers.Tokenizer, config: dict[str, Any]) -> None:
        self.directory = directory
        self.generation_config = directory / "generation_config.json"
        self.backend = backend
        self.config = config
        self.named_tokens = _named_tokens(directory, config)
        backend.no_truncation()
        backend.no_padding()
        _add_missing_tokens(backend, directory, config, self.named_tokens)
        self._read_added_tokens()
        self.chat_templates, self.chat_template_file = _chat_templates(directory, config)

    @classmethod
    def load(cls, model_directory: str | Path, new_tokens: Sequence[str] = ()) -> Tokenizer:
        """Read the tokenizer of a model directory in Hugging Face format.

        Args:
            new_tokens: special tokens to add; those that exist already keep their id.

        Raises:
            RecipeError: a file is missing or cannot be read.
        """
        directory = Path(model_directory)
        path = directory / "tokenizer.json"
        if not path.exists():
            raise RecipeError(
                "the model has no tokenizer.json",
                code="tokenizer-missing",
                remedy=_conversion(directory),
                where=directory,
            )
        content = read_regular_file(path, _MOST_VOCABULARY_BYTES)
        with _translated_faults(path):
            backend = tokenizers.Tokenizer.from_buffer(content)
        require_bounded_growth(backend, path)
        config = _read_json(directory / "tokenizer_config.json")
        with _translated_faults(path):
            tokenizer = cls(directory, backend, config)
            tokenizer.add(new_tokens)
            # A damaged pipeline fails at its first use.
            tokenizer.decode(tokenizer.encode("a"))
        return tokenizer

    def add(self, new_tokens: Sequence[str]) -> None:
        """Add texts as single special tokens."""
        if new_tokens:
            self.backend.add_special_tokens(
                [tokenizers.AddedToken(text, special=True, normalized=False) for text in new_tokens]
            )
            self._read_added_tokens()

    def _read_added_tokens(self) -> None:
        added = self.backend.get_added_tokens_decoder()
        self.added_tokens = frozenset(token.content for token in added.values())
        self.special_tokens = frozenset(token.content for token in added.values() if token.special)
        self.vocab_size = max([self.backend.get_vocab_size(with_added_tokens=False), *(number + 1 for number in added)])

    @property
    def eos(self) -> str | None:
        return self.named_tokens.get("eos_token")

    @property
    def eos_id(self) -> int | None:
        return self.id_of(self.eos)

    @property
    def pad_id(self) -> int:
        """The id for padding; any id works, since padding is masked."""
        for text in (self.named_tokens.get("pad_token"), self.eos):
            if (number := self.id_of(text)) is not None:
                return number
        return 0

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends a text: the tokenizer's EOS, and those in generation_config.json."""
        path = self.generation_config
        listed = _read_json(path).get("eos_token_id")
        ids = [self.eos_id, *(listed if isinstance(listed, list) else [listed])]
        if not all(each is None or (type(each) is int and -1 <= each <= _LARGEST_ID) for each in ids):
            raise bad_field(path, "eos_token_id", listed, "a token id, or a list of them")
        return tuple(dict.fromkeys(each for each in ids if each is not None))

    @property
    def text_prefix(self) -> list[int]:
        """Ids at the beginning of a text without a chat template: BOS, or nothing.

        As in transformers 5, tokenizer.json decides (its post-processor), not `add_bos_token` in tokenizer_config.json.
        """
        plain, whole = self.encode("a"), list[int](self.backend.encode("a").ids)
        places = range(len(whole) - len(plain) + 1)
        return whole[: next((at for at in places if whole[at : at + len(plain)] == plain), 0)]

    def id_of(self, text: str | None) -> int | None:
        """The id of a text that is a single token, or None."""
        number: int | None = None if text is None else self.backend.token_to_id(text)
        return number

    def text_of(self, number: int) -> str | None:
        text: str | None = self.backend.id_to_token(number)
        return text

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str], *, offsets: bool = True) -> list[tokenizers.Encoding]:
        """One encoding per text; without `offsets` they have no character positions and take a fifth less time.

        Raises:
            RecipeError: the tokenizer fails on a text.
        """
        encode = self.backend.encode_batch if offsets else self.backend.encode_batch_fast
        with _translated_faults(self.directory / "tokenizer.json"):
            encodings: list[tokenizers.Encoding] = encode(texts, add_special_tokens=False)
        return encodings

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def save(self, directory: str | Path, *, chat_template: str | None = None) -> None:
        """Write files from which transformers' AutoTokenizer creates the same tokenizer.

        Args:
            chat_template: the template that the model was trained with, if it is not the model's own.

        Raises:
            MachineError: the directory cannot be written.
        """
        target = Path(directory)
        with translated_disk_errors(target, "saving the tokenizer"):
            target.mkdir(parents=True, exist_ok=True)
            for name in _VOCABULARY_FILES:
                if (self.directory / name).is_file() and self.directory.resolve() != target.resolve():
                    shutil.copyfile(self.directory / name, target / name)
        write_atomically(target / "tokenizer.json", self.backend.to_str(pretty=True))
        config = {**self.config, **self.named_tokens}
        for key in ("chat_template", *_OTHER_TOKENS):
            config.pop(key, None)
        # Since transformers 5, classes of one model (LlamaTokenizer, GPT2Tokenizer) build their own pipeline from the
        # vocabulary, with other tokens than those of tokenizer.json, which the model was trained with.
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        # In transformers 4 this class also returns token_type_ids, which most models refuse.
        config.setdefault("model_input_names", ["input_ids", "attention_mask"])
        if _DECODER in config:
            config[_DECODER] = _added_tokens_as_json(self.backend)
        templates = {**self.chat_templates, **({"default": chat_template} if chat_template else {})}
        default = templates.pop("default", None)
        if default is not None:
            write_atomically(target / "chat_template.jinja", default)
        for name, text in templates.items():
            with translated_disk_errors(target, "saving the tokenizer"):
                (target / "additional_chat_templates").mkdir(exist_ok=True)
            write_atomically(target / "additional_chat_templates" / f"{name}.jinja", text)
        write_json(target / "tokenizer_config.json", config)


def _conversion(directory: Path) -> str:
    """The command that writes tokenizer.json for a tokenizer of another format."""
    place, condition = repr(str(directory)), ""
    convert = f"from transformers import AutoTokenizer as T; T.from_pretrained({place})"
    if (directory / "tekken.json").is_file():
        condition = ", after `pip install mistral-common`"
        convert = "from transformers.integrations.mistral import convert_tekken_tokenizer as convert; "
        convert += f"convert({str(directory / 'tekken.json')!r})"
    elif (directory / "tokenizer.model").is_file():
        # transformers 5 merges runs of spaces before everything else: other tokens than SentencePiece's.
        condition = ", in an environment of its own with `pip install 'transformers<5' sentencepiece protobuf`"
    command = shlex.join(["python", "-c", f"{convert}.save_pretrained({place})"])
    return f"convert its tokenizer once{condition}: {command}"


@contextmanager
def _translated_faults(path: Path) -> Iterator[None]:
    """Translate the tokenizers library's errors into RecipeError.

    Raises:
        RecipeError: names the file.
    """
    try:
        yield
    except AscendtuneError:
        raise
    except BaseException as error:
        # Where its own code fails, the library raises bare Exception, or PanicException, which is not an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise RecipeError(
            f"tokenizer.json cannot be used: {first_line(error)}",
            code="tokenizer-damaged",
            remedy=f"update the `tokenizers` package; or {remedy_for_damaged(path)}",
            where=path,
        ) from error


def _named_tokens(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    """{"eos_token": "</s>", …} from tokenizer_config.json and special_tokens_map.json.

    As in transformers, the map takes precedence if the config has no `added_tokens_decoder`, as in older ones.
    """
    tokens: dict[str, str] = {}
    config_path, map_path = directory / "tokenizer_config.json", directory / _MAP
    extra = config.get("extra_special_tokens")
    sources = [(config_path, config), (config_path, extra if isinstance(extra, dict) else {})]
    sources.insert(2 if _DECODER in config else 0, (map_path, _read_json(map_path)))
    for path, source in sources:
        for name, value in source.items():
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str) and (name in _NAMED or name.endswith("_token")):
                tokens.setdefault(name, text)
            elif text is not None and name in _NAMED:
                raise bad_field(path, name, value, "the text of a token, or an object with its content")
    # In the order in which transformers adds missing tokens.
    return dict(sorted(tokens.items(), key=lambda item: _NAMED.index(item[0]) if item[0] in _NAMED else len(_NAMED)))


def _add_missing_tokens(
    backend: tokenizers.Tokenizer, directory: Path, config: dict[str, Any], named: dict[str, str]
) -> None:
    """Add tokens that only the files beside tokenizer.json contain; transformers adds them when it loads."""
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    missing = _declared_tokens(directory / "tokenizer_config.json", config.get(_DECODER))
    for text in _tokens_by_id(directory / "added_tokens.json"):
        missing.append(
            tokenizers.AddedToken(text, special=text in named.values(), normalized=text not in named.values())
        )
    missing += [tokenizers.AddedToken(text, special=True, normalized=False) for text in named.values()]
    missing += _extra_tokens(directory, config)
    for token in missing:
        if token.content not in present:
            present.add(token.content)
            (backend.add_special_tokens if token.special else backend.add_tokens)([token])


def _declared_tokens(path: Path, declared: Any) -> list[tokenizers.AddedToken]:
    """The tokens of `added_tokens_decoder` in the order of their ids."""
    if declared is None:
        return []
    if not isinstance(declared, dict):
        raise bad_field(path, _DECODER, declared, "an object of ids and tokens")
    for number, token in declared.items():
        if not (number.isascii() and number.isdecimal() and len(number) < 10):
            raise bad_field(path, _DECODER, number, "keyed by token ids")
        _require_token(path, f"{_DECODER}.{number}", token)
    ordered = sorted(declared.items(), key=lambda item: int(item[0]))
    return [tokenizers.AddedToken(token["content"], **_flags_of(token)) for _, token in ordered]


def _extra_tokens(directory: Path, config: dict[str, Any]) -> list[tokenizers.AddedToken]:
    """Special tokens without a name: `extra_special_tokens`, called `additional_special_tokens` before
    transformers 5."""
    path, key = directory / "tokenizer_config.json", "extra_special_tokens"
    listed = config.get(key)
    if not listed or isinstance(listed, dict):
        key = "additional_special_tokens"
        listed = config.get(key)
    if not listed and _DECODER not in config:
        path = directory / _MAP
        listed = _read_json(path).get(key)
    if listed is None:
        return []
    if not isinstance(listed, list):
        raise bad_field(path, key, listed, "a list of tokens")
    added = []
    for token in listed:
        if isinstance(token, str):
            added.append(tokenizers.AddedToken(token, special=True, normalized=False))
            continue
        _require_token(path, key, token)
        added.append(tokenizers.AddedToken(token["content"], **{**_flags_of(token), "special": True}))
    return added


def _require_token(path: Path, key: str, token: Any) -> None:
    if not isinstance(token, dict) or not isinstance(token.get("content"), str):
        raise bad_field(path, key, token, "an object with the token's content")
    if wrong := [flag for flag in _TOKEN_FLAGS if not isinstance(token.get(flag, False), bool)]:
        raise bad_field(path, f"{key}.{wrong[0]}", token[wrong[0]], "true or false")


def _flags_of(token: dict[str, Any]) -> dict[str, bool]:
    return {flag: token[flag] for flag in _TOKEN_FLAGS if flag in token}


def _tokens_by_id(path: Path) -> list[str]:
    ids = _read_json(path)
    for text, number in ids.items():
        if type(number) is not int or not 0 <= number <= _LARGEST_ID:
            raise bad_field(path, text, number, "a token id")
    return sorted(ids, key=lambda text: ids[text])


def _added_tokens_as_json(backend: tokenizers.Tokenizer) -> dict[str, dict[str, Any]]:
    keys = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    decoder = backend.get_added_tokens_decoder()
    return {str(number): {key: getattr(token, key) for key in keys} for number, token in sorted(decoder.items())}


def _chat_templates(directory: Path, config: dict[str, Any]) -> tuple[dict[str, str], Path]:
    """The templates by name, and the file of "default".

    Separate files take precedence over the entry in tokenizer_config.json, as in transformers.
    """
    folder = directory / "additional_chat_templates"
    others = sorted(folder.glob("*.jinja"))
    named = {each.stem: _read_template(each) for each in others}
    path = directory / "chat_template.jinja"
    if path.exists():
        return {"default": _read_template(path), **named}, folder / "default.jinja" if "default" in named else path
    if named:
        return named, folder / "default.jinja"
    config_path = directory / "tokenizer_config.json"
    alone = directory / "chat_template.json"
    given = _read_json(alone).get("chat_template")
    where = alone if given else config_path
    given = given or config.get("chat_template")
    if given is None:
        return {}, where
    if isinstance(given, str):
        return {"default": given}, where
    named = given
    if isinstance(given, list) and all(isinstance(each, dict) for each in given):
        named = {each.get("name"): each.get("template") for each in given}
    if not isinstance(named, dict) or not all(isinstance(each, str) for pair in named.items() for each in pair):
        raise bad_field(where, "chat_template", given, "a text, or texts with names")
    if unusable := [name for name in named if not _is_file_name(name)]:
        # Each name becomes a file name when the tokenizer is saved.
        raise bad_field(where, "the name of a chat_template", unusable[0], "a short name without a path")
    return dict(named), where


def _is_file_name(name: str) -> bool:
    is_short = 0 < len(name.encode()) <= _LONGEST_TEMPLATE_NAME
    return is_short and name.isprintable() and Path(name).name == name and not name.startswith(".")


def _read_json(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.exists() else {}


def _read_template(path: Path) -> str:
    try:
        return read_regular_file(path, _MOST_TEMPLATE_BYTES).decode()
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"{path.name} is not UTF-8: {error}", code="not-utf8", remedy=remedy_for_damaged(path), where=path
        ) from error
