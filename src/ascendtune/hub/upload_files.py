"""The files of a model's directory that go to a hub, and their content, without paths of this machine."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendtune.core.errors import InputError
from ascendtune.core.foreign_json import parsed_json, read_regular_file

CARD, PICTURE = "README.md", "loss.png"
_ADAPTER_CONFIG = "adapter_config.json"
_JSON = ("config.json", "generation_config.json", "tokenizer_config.json", _ADAPTER_CONFIG)
_ALLOWED = re.compile(
    r"(?:model(?:-\d{5}-of-\d{5})?|adapter_model)\.safetensors|model\.safetensors\.index\.json"
    r"|(?:config|generation_config|adapter_config)\.json"
    r"|tokenizer(?:_config)?\.json|tokenizer\.model|special_tokens_map\.json|added_tokens\.json|vocab\.(?:json|txt)"
    r"|merges\.txt|spiece\.model|sentencepiece\.bpe\.model|chat_template\.(?:jinja|json)"
)
_ORIGINS = ("_name_or_path", "name_or_path")


@dataclass(frozen=True)
class UploadFile:
    """A file for the repository."""

    name: str
    source: Path | bytes
    """The path of its content, or the content."""

    @property
    def size_bytes(self) -> int:
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size


def is_adapter(directory: Path) -> bool:
    return (directory / _ADAPTER_CONFIG).is_file()


def files_of_model(
    directory: Path, base: str | None, revision: str | None = None
) -> tuple[list[UploadFile], list[str]]:
    """The weights, configs and tokenizer files in `directory`, and the names of the files that are not uploaded.

    Args:
        base: id of the base model on the hub; it replaces a path of this machine in an adapter's config.
        revision: revision of the base on which the adapter was trained; None: that in its config.

    Raises:
        InputError: the directory contains no model, or the base of an adapter is not known.
        RecipeError: a config is damaged.
    """
    entries = sorted(directory.iterdir())
    # A link could lead to any file of this machine.
    included = [each for each in entries if _ALLOWED.fullmatch(each.name) and each.is_file() and not each.is_symlink()]
    if not any(each.suffix == ".safetensors" for each in included):
        raise InputError(
            "there are no weights in safetensors files here",
            code="weights-missing",
            remedy="use a run whose training has ended",
            where=directory,
        )
    files = [UploadFile(each.name, _public(each, base, revision) if each.name in _JSON else each) for each in included]
    return files, [each.name for each in entries if each not in included and each.name != CARD]


def _public(path: Path, base: str | None, revision: str | None) -> Path | bytes:
    """The file, or its content without paths of this machine."""
    content = read_regular_file(path)
    values = parsed_json(content, path)
    if not isinstance(values, dict):
        return content
    kept: dict[str, Any] = {key: value for key, value in values.items() if key not in _ORIGINS}
    if path.name == _ADAPTER_CONFIG:
        if base is None:
            raise InputError(
                "this adapter names a directory of this machine as its base model",
                code="base-model-unknown",
                remedy="give --base OWNER/NAME, the base model on the hub",
                where=path,
            )
        kept["base_model_name_or_path"] = base
        if revision is not None:
            kept["revision"] = revision
    return content if kept == values else json.dumps(kept, indent=2, ensure_ascii=False).encode() + b"\n"
