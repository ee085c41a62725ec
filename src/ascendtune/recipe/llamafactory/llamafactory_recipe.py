"""A LLaMA-Factory recipe, checked key by key, and the native document that a translation builds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ascendtune.core.config import line_of
from ascendtune.core.document import Document
from ascendtune.core.errors import MOST_ERRORS_SHOWN, RecipeError, combined_error
from ascendtune.core.files import expanded
from ascendtune.core.suggest import did_you_mean
from ascendtune.recipe.llamafactory.ignored_keys import IGNORED_KEYS
from ascendtune.recipe.llamafactory.keys import (
    ALIASES,
    NOT_OFFERED,
    OTHER_VALUES,
    TRANSLATED,
    UNSUPPORTED_VALUES,
    Key,
    Kind,
)
from ascendtune.recipe.llamafactory.unsupported import UNSUPPORTED_KEYS, UnsupportedKey


class NativeRecipe:
    """A native recipe, built key by key; each value has its place in the LLaMA-Factory file."""

    def __init__(self, source: str, dialect: Dialect) -> None:
        self.document = Document({}, source, other_names=dialect.names_of_native_keys())

    def put(self, key: str, value: Any, place: str) -> None:
        *parents, last = key.split(".")
        target = self.document.values
        for part in parents:
            target = target.setdefault(part, {})
        target[last] = value
        path = (*parents, last)
        self.document.places[path] = place
        for length in range(1, len(path)):
            self.document.places.setdefault(path[:length], place)

    def note(self, sentence: str) -> None:
        """Add a note for the user on a difference from LLaMA-Factory."""
        self.document.notes.append(sentence)

    def note_ignored(self, keys: str, why: str) -> None:
        """Add a note on keys that have no effect here."""
        self.document.ignored.append(f"{keys}: no effect: {why}")
        self.note(self.document.ignored[-1])


def final_weights(path: str) -> str:
    """`path`, or its subdirectory `model` if `path` is a run directory."""
    run = expanded(path)
    return str(run / "model") if (run / "run.json").is_file() and (run / "model").is_dir() else path


KEYS = (*TRANSLATED, *IGNORED_KEYS, *UNSUPPORTED_KEYS, *ALIASES)
"""All known LLaMA-Factory keys."""


_ONE_KEY = re.compile(r"[a-z_]+(\.[a-z_]+)+")


@dataclass(frozen=True)
class Dialect:
    """The keys of one of LLaMA-Factory's two forms of recipes."""

    name: str
    """Its name in messages."""
    translated: Mapping[str, Key]
    ignored: Mapping[str, tuple[Any, str]]
    """Key -> (its default, the reason why it has no effect)."""
    refused: Mapping[str, UnsupportedKey]
    aliases: Mapping[str, str]

    def names_of_native_keys(self) -> dict[str, str]:
        """Native key -> the key that is translated into it only; switches with another meaning are excluded.

        An excluded one is `disable_gradient_checkpointing`. Of several keys, those without fixed values come first.
        """
        names: dict[str, str] = {}
        for name, key in sorted(self.translated.items(), key=lambda each: isinstance(each[1].kind, tuple)):
            if _ONE_KEY.fullmatch(key.becomes) and (key.copied or key.kind != "truth"):
                names.setdefault(key.becomes, name)
        return names

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.translated, *self.ignored, *self.refused, *self.aliases)


V0 = Dialect("LLaMA-Factory", TRANSLATED, IGNORED_KEYS, UNSUPPORTED_KEYS, ALIASES)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def names_of(value: Any) -> list[str] | None:
    """Names from a list, or from text with commas; None for other values and for no name."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        return None
    return [each.strip() for each in value if each.strip()] or None


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "text": (lambda value: isinstance(value, str) and bool(value.strip()), "text"),
    "whole number": (lambda value: _is_number(value) and float(value).is_integer(), "a whole number"),
    "number": (_is_number, "a number"),
    "numbers": (lambda value: isinstance(value, list) and all(map(_is_number, value)), "a list of numbers"),
    "truth": (lambda value: isinstance(value, bool), "true or false"),
    "names": (lambda value: names_of(value) is not None, "a list of names, or names with commas between them"),
    "text or truth": (lambda value: isinstance(value, str | bool), "a path, true or false"),
    "text or mapping": (lambda value: isinstance(value, str | dict), "the path of a file, or a mapping"),
}
"""Kind of a key -> a test of its values, and words for the expected value."""
_AS_KIND: dict[str, Callable[[Any], Any]] = {"whole number": int, "names": names_of}


class LlamaFactoryRecipe:
    """A LLaMA-Factory recipe, checked, with LLaMA-Factory's defaults; null and empty text mean not set.

    Args:
        document: the LLaMA-Factory recipe.
        dialect: its keys.

    Attributes:
        errors: the errors found so far; the translation adds to them.
    """

    def __init__(self, document: Document, dialect: Dialect = V0) -> None:
        self._document, self._dialect = document, dialect
        self._values: dict[str, Any] = {}
        self._invalid: set[str] = set()
        self.errors: list[RecipeError] = []
        for written, value in document.values.items():
            key = dialect.aliases.get(written, written)
            if written != key:
                self._require_one_name(written, key)
            if (value is None or value == "") and key in dialect.keys:
                continue
            if key in dialect.translated:
                self._take(key, written, value)
            elif key in dialect.refused:
                self._refuse_unless_default(key, value)
            elif key not in dialect.ignored:
                # The search for a similar key takes a millisecond, so it is done only for errors that are shown.
                valid = dialect.keys if len(self.errors) < MOST_ERRORS_SHOWN else ()
                remedy = did_you_mean(key, valid, "docs/compat.md lists the keys that are known", cutoff=0.75)
                self.add_error(key, f"{dialect.name} has no key '{key}'", remedy, code="unknown-recipe-key")

    def _require_one_name(self, old: str, new: str) -> None:
        """Add an error if a file contains both names of a key; the command line may set either to another value."""
        values, places = self._document.values, self._document.places
        starts = {str(places.get((name,), "")).rpartition(":")[0] for name in (old, new)}
        if new in values and values[old] != values[new] and len(starts) == 1:
            what = f"{old} and {new} are names of one key, and their values differ"
            self.add_error(old, what, f"remove {old}, the older name", code="conflicting-keys")

    def __getitem__(self, key: str) -> Any:
        """The value, or LLaMA-Factory's default; names as a list, or None."""
        return self._values[key] if key in self._values else self._dialect.translated[key].default

    def given(self, key: str) -> bool:
        """Whether the recipe sets it."""
        return key in self._values

    def is_invalid(self, key: str) -> bool:
        """Whether the recipe sets the key to an invalid value; the default replaces it."""
        return key in self._invalid

    def place(self, key: str) -> str:
        """The place where the key is set, or a note that the value is LLaMA-Factory's default."""
        aliases = self._dialect.aliases.items()
        written = next((old for old, new in aliases if new == key and old in self._document.values), key)
        return self._document.places.get((written,), f"{self._document.source}, by LLaMA-Factory's default")

    @property
    def source(self) -> str:
        return self._document.source

    def ignored_keys(self) -> dict[str, list[str]]:
        """Reason -> the keys with other values than their defaults that have no effect for that reason."""
        ignored: dict[str, list[str]] = {}
        for written, value in self._document.values.items():
            key = self._dialect.aliases.get(written, written)
            default, why = self._dialect.ignored.get(key, (value, ""))
            if value is not None and value != default:
                ignored.setdefault(why, []).append(written)
        return ignored

    def copy_equivalent_keys(self, native: NativeRecipe) -> None:
        """Copy the values of keys with one native counterpart of the same meaning."""
        for name, key in self._dialect.translated.items():
            if key.copied and (self.given(name) or key.filled):
                native.put(key.becomes, self[name], self.place(name))

    def add_error(self, key: str, what: str, remedy: str, *, code: str) -> None:
        self.errors.append(RecipeError(what, code=code, remedy=remedy, where=self.place(key)))

    def refuse(self, key: str, what: str, remedy: str) -> None:
        """Add an error for a feature that this version does not support."""
        self.add_error(key, f"{what} is not supported in this version", remedy, code="not-in-this-version")

    def refuse_value(self, key: str, remedy: str) -> None:
        """Add an error for a value of the right kind that is not valid."""
        self.add_error(key, f"'{key}: {self[key]}' is not valid", remedy, code="invalid-value")

    def add_errors(self, error: RecipeError) -> None:
        """Add an error, and the further errors in it."""
        self.errors += [error, *(each for each in error.further if isinstance(each, RecipeError))]
        error.further = ()

    def raise_errors(self) -> None:
        if self.errors:
            raise combined_error(sorted(self.errors, key=lambda error: line_of(error.where or "")))

    def _take(self, key: str, written: str, value: Any) -> None:
        kind = self._dialect.translated[key].kind
        converted = _of_kind(kind, value)
        if converted is not None:
            self._values[key] = converted
            return
        self._invalid.add(key)
        if unsupported := UNSUPPORTED_VALUES.get((key, str(value))):
            self.add_error(key, *unsupported, code="not-in-this-version")
            return
        if isinstance(kind, tuple) and (found := OTHER_VALUES.get((key, str(value)))):
            remedy = found
        elif isinstance(kind, tuple):
            offered = [name for name in kind if (key, name) not in NOT_OFFERED]
            remedy = f"{did_you_mean(str(value), offered)} choose one of: {', '.join(offered)}".lstrip()
        else:
            remedy = f"it should be {_KINDS[kind][1]}"
        self.add_error(key, f"'{written}: {value}' is not valid", remedy, code="invalid-value")

    def _refuse_unless_default(self, key: str, value: Any) -> None:
        default, what, remedy = self._dialect.refused[key]
        harmless = value == default or (value is False and default is not True)
        if key == "metric_for_best_model":
            harmless = value in ("loss", "eval_loss")
        if not harmless:
            self.add_error(key, f"{key}: {what}", remedy, code="not-in-this-version")


def _of_kind(kind: Kind, value: Any) -> Any:
    """The value converted to its kind, or None if it is not valid."""
    if isinstance(kind, str):
        return _AS_KIND.get(kind, lambda same: same)(value) if _KINDS[kind][0](value) else None
    if value is False:
        # YAML 1.1 reads `no` and `off` without quotes as false.
        return next((word for word in ("no", "off") if word in kind), None)
    return value if value in kind else None
