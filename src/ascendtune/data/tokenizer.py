"""The model's tokenizer, read with the `tokenizers` library alone: no transformers, so it loads in a blink.

Text is tokenised as transformers' `apply_chat_template` does it: what the template wrote, with no special tokens added
(a template writes its own BOS), special tokens in the text recognised.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from ascendtune.core.errors import RecipeError, read_fault, translated_disk_errors
from ascendtune.core.files import write_atomically, write_json

_VOCABULARY_FILES = ("vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json", "special_tokens_map.json")
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """Made by `Tokenizer.load`.

    Attributes:
        backend: the `tokenizers.Tokenizer`, without truncation and padding.
        named_tokens: texts of the named special tokens that exist: {"eos_token": "</s>", …}.
        added_tokens: texts that are one token wherever they stand; special_tokens: those of them that are special.
        chat_templates: Jinja texts by name; the usual one is "default".
        vocab_size: rows that the embeddings need: the largest token id + 1.
    """

    def __init__(self, directory: Path, backend: tokenizers.Tokenizer, config: dict[str, Any]) -> None:
        self.directory = directory
        self.backend = backend
        self.config = config
        self.named_tokens = _named_tokens(directory, config)
        backend.no_truncation()
        backend.no_padding()
        _add_missing_tokens(backend, directory, config, self.named_tokens)
        self._read_added_tokens()
        self.chat_templates = _chat_templates(directory, config)

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
        if not path.is_file():
            raise RecipeError(
                "the model has no tokenizer.json",
                remedy=(
                    'convert its tokenizer once: python -c "from transformers import AutoTokenizer; '
                    f"AutoTokenizer.from_pretrained('{directory}').save_pretrained('{directory}')\""
                ),
                where=directory,
            )
        content = path.read_bytes()
        try:
            backend = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:  # The library raises bare Exception.
            raise RecipeError(
                f"tokenizer.json cannot be read: {error}",
                remedy="download it again, or update the `tokenizers` package",
                where=path,
            ) from error
        tokenizer = cls(directory, backend, _read_json(directory / "tokenizer_config.json"))
        tokenizer.add(new_tokens)
        return tokenizer

    def add(self, new_tokens: Sequence[str]) -> None:
        """Make these texts single special tokens."""
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
    def bos(self) -> str | None:
        return self.named_tokens.get("bos_token")

    @property
    def eos_id(self) -> int | None:
        return self.id_of(self.eos)

    @property
    def bos_id(self) -> int | None:
        return self.id_of(self.bos)

    @property
    def pad_id(self) -> int:
        """The id that fills up batches; any will do, since padding is masked, so there always is one."""
        for text in (self.named_tokens.get("pad_token"), self.eos):
            if (number := self.id_of(text)) is not None:
                return number
        return 0

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends a text: the tokenizer's EOS, and what generation_config.json lists."""
        listed = _read_json(self.directory / "generation_config.json").get("eos_token_id")
        ids = [self.eos_id, *(listed if isinstance(listed, list) else [listed])]
        return tuple(dict.fromkeys(each for each in ids if isinstance(each, int)))

    @property
    def text_prefix(self) -> list[int]:
        """Ids that stand before a text without a chat template: BOS, or nothing.

        As in transformers 5, tokenizer.json decides (its post-processor), not `add_bos_token` in tokenizer_config.json.
        """
        plain, whole = self.encode("a"), list[int](self.backend.encode("a").ids)
        places = range(len(whole) - len(plain) + 1)
        return whole[: next((at for at in places if whole[at : at + len(plain)] == plain), 0)]

    def id_of(self, text: str | None) -> int | None:
        """The id of a text that is one token as it stands, or None."""
        number: int | None = None if text is None else self.backend.token_to_id(text)
        return number

    def text_of(self, number: int) -> str | None:
        text: str | None = self.backend.id_to_token(number)
        return text

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def save(self, directory: str | Path, *, chat_template: str | None = None) -> None:
        """Write files from which transformers' AutoTokenizer makes the same tokenizer.

        Args:
            chat_template: the template that the model was trained with, when it is not the model's own.

        Raises:
            MachineError: the place cannot be written.
        """
        target = Path(directory)
        with translated_disk_errors(target, "saving the tokenizer"):
            target.mkdir(parents=True, exist_ok=True)
            for name in _VOCABULARY_FILES:
                if (self.directory / name).is_file() and self.directory.resolve() != target.resolve():
                    shutil.copyfile(self.directory / name, target / name)
        write_atomically(target / "tokenizer.json", self.backend.to_str(pretty=True))
        config = {**self.config, **self.named_tokens}
        config.pop("chat_template", None)
        config.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
        if "added_tokens_decoder" in config:
            config["added_tokens_decoder"] = _added_tokens_as_json(self.backend)
        templates = {**self.chat_templates, **({"default": chat_template} if chat_template else {})}
        default = templates.pop("default", None)
        if default is not None:
            write_atomically(target / "chat_template.jinja", default)
        for name, text in templates.items():
            with translated_disk_errors(target, "saving the tokenizer"):
                (target / "additional_chat_templates").mkdir(exist_ok=True)
            write_atomically(target / "additional_chat_templates" / f"{name}.jinja", text)
        write_json(target / "tokenizer_config.json", config)


def _named_tokens(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    """{"eos_token": "</s>", …} from tokenizer_config.json, and where that says nothing from special_tokens_map.json."""
    found: dict[str, str] = {}
    extra = config.get("extra_special_tokens")
    for source in (config, extra if isinstance(extra, dict) else {}, _read_json(directory / "special_tokens_map.json")):
        for name, value in source.items():
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str) and (name in _NAMED or name.endswith("_token")):
                found.setdefault(name, text)
    return found


def _add_missing_tokens(
    backend: tokenizers.Tokenizer, directory: Path, config: dict[str, Any], named: dict[str, str]
) -> None:
    """Tokens that only the files beside tokenizer.json know; transformers adds them when it loads."""
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    declared = sorted(config.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0]))
    wanted = [tokenizers.AddedToken(**values) for _, values in declared]
    for text, _ in sorted(_read_json(directory / "added_tokens.json").items(), key=lambda item: int(item[1])):
        wanted.append(
            tokenizers.AddedToken(text, special=text in named.values(), normalized=text not in named.values())
        )
    wanted += [tokenizers.AddedToken(text, special=True, normalized=False) for text in named.values()]
    for token in wanted:
        if token.content not in present:
            present.add(token.content)
            (backend.add_special_tokens if token.special else backend.add_tokens)([token])


def _added_tokens_as_json(backend: tokenizers.Tokenizer) -> dict[str, dict[str, Any]]:
    keys = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    decoder = backend.get_added_tokens_decoder()
    return {str(number): {key: getattr(token, key) for key in keys} for number, token in sorted(decoder.items())}


def _chat_templates(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    """A file of its own comes before the entry in tokenizer_config.json, as in transformers."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return {"default": _read_text(path)}
    given = _read_json(directory / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(given, str):
        return {"default": given}
    if isinstance(given, list):
        return {each["name"]: each["template"] for each in given}
    return dict(given) if isinstance(given, dict) else {}


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(_read_text(path))
    except ValueError as error:
        raise RecipeError(f"not valid JSON: {error}", remedy="download this file again", where=path) from error
    return content if isinstance(content, dict) else {}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fault = RecipeError(f"cannot be read: {error}", remedy="check the file", where=path)
        raise read_fault(error, path) or fault from error
