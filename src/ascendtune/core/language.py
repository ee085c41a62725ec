"""The language of a command's output: English, or Chinese with `--lang zh` or a Chinese locale.

A room with output in both languages has a file `phrases.zh.toml` beside its modules and one `Phrases` object, in
`language.py` where several modules use it:

    say = Phrases(__package__)
    say("{count} {count:device is|devices are} free", count=4)

    # phrases.zh.toml
    "{count} {count:device is|devices are} free" = "{count} 个设备空闲"

The English template is the key, as in gettext; a template without a translation is printed in English.
`{count:one|several}` is the word for that number.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, Literal, TypeVar, get_args

from ascendtune.core.errors import InputError

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = get_args(Language)

Answer = TypeVar("Answer")

_chosen: Language = "en"


def current() -> Language:
    return _chosen


def choose(option: str | None, environment: Mapping[str, str], encoding: str | None) -> Language:
    """The language of a command's output: that of `--lang`, else of the locale. To be used with `using`.

    Args:
        option: the value of `--lang`; None if it is absent.
        environment: of LC_ALL, LC_MESSAGES and LANG the first that is set decides; unless it is C, the first language
            of LANGUAGE, a list, takes precedence, as in gettext.
        encoding: of the output stream; a Chinese locale counts only if the stream can encode Chinese.

    Raises:
        InputError: `option` is not a known language.
    """
    if option is not None:
        language = next((each for each in LANGUAGES if each == option), None)
        if language is None:
            raise InputError(f"--lang {option} is not valid", code="invalid-value", remedy="choose en or zh")
        return language
    locale = next(filter(None, map(environment.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "C")
    is_c = locale.partition(".")[0] in ("C", "POSIX")
    names = [locale] if is_c else [*environment.get("LANGUAGE", "").split(":"), locale]
    known = next((each[:2] for each in names if each.startswith(LANGUAGES)), "en")
    return "zh" if known == "zh" and _can_write_chinese(encoding) else "en"


@contextmanager
def using(language: Language) -> Iterator[None]:
    """`Phrases` use `language` inside the block, in all threads of this process."""
    global _chosen
    before, _chosen = _chosen, language
    try:
        yield
    finally:
        _chosen = before


def in_each_language(sentence: Callable[[], Answer]) -> dict[Language, Answer]:
    """The results of `sentence`, called once in each language."""
    answers = dict[Language, Answer]()
    for each in LANGUAGES:
        with using(each):
            answers[each] = sentence()
    return answers


class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        one, bar, several = format_spec.partition("|")
        if not bar:
            return str(super().format_field(value, format_spec))
        return one if value in (1, "1") else several


_FORMATTER = _Formatter()


class Phrases:
    """The sentences of one room.

    Args:
        package: the room whose folder contains `phrases.zh.toml`.
    """

    def __init__(self, package: str) -> None:
        self._package = package

    def __call__(self, english: str, /, **values: object) -> str:
        """`english` in the current language, with `values` in place of {names}."""
        template = self.chinese.get(english, english) if _chosen == "zh" else english
        return _FORMATTER.vformat(template, (), values) if values else template

    @cached_property
    def chinese(self) -> dict[str, Any]:
        # Every command loads this module, and few need a translation.
        import tomllib
        from importlib.resources import files

        return tomllib.loads((files(self._package) / "phrases.zh.toml").read_text(encoding="utf-8"))


def _can_write_chinese(encoding: str | None) -> bool:
    with suppress(LookupError, UnicodeEncodeError):
        "中文".encode(encoding or "ascii")
        return True
    return False
