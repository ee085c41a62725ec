"""The language of the output, and text that takes two columns a character."""

from __future__ import annotations

import numpy as np
import pytest

from ascendtune.core import language
from ascendtune.core.errors import InputError
from ascendtune.core.terminal_text import columns_of, wrap_words


@pytest.mark.parametrize(
    ("option", "environment", "encoding", "expected"),
    [
        (None, {}, "utf-8", "en"),
        (None, {"LANG": "zh_CN.UTF-8"}, "utf-8", "zh"),
        (None, {"LANG": "zh_CN.UTF-8"}, "ascii", "en"),
        (None, {"LANG": "zh_CN.GBK"}, "gbk", "zh"),
        (None, {"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "utf-8", "en"),
        (None, {"LANG": "zh_CN.UTF-8", "LC_ALL": ""}, None, "en"),
        (None, {"LANG": "en_US.UTF-8", "LANGUAGE": "zh_CN:en"}, "utf-8", "zh"),
        (None, {"LANG": "zh_CN.UTF-8", "LANGUAGE": "en_GB:zh"}, "utf-8", "en"),
        (None, {"LANG": "zh_CN.UTF-8", "LANGUAGE": "de:zh"}, "utf-8", "zh"),
        (None, {"LANG": "zh_CN.UTF-8", "LANGUAGE": "de"}, "utf-8", "zh"),
        (None, {"LANG": "zh_CN.UTF-8", "LANGUAGE": ""}, "utf-8", "zh"),
        # Where the locale is C, gettext does not read it.
        (None, {"LANGUAGE": "zh_CN"}, "utf-8", "en"),
        (None, {"LC_ALL": "C.UTF-8", "LANG": "zh_CN.UTF-8", "LANGUAGE": "zh"}, "utf-8", "en"),
        (None, {"LANG": "POSIX", "LANGUAGE": "zh"}, "utf-8", "en"),
        ("en", {"LANG": "zh_CN.UTF-8"}, "utf-8", "en"),
        ("zh", {}, "ascii", "zh"),
    ],
)
def test_language_follows_option_then_locale(
    option: str | None, environment: dict[str, str], encoding: str | None, expected: str
) -> None:
    assert language.choose(option, environment, encoding) == expected


def test_language_ends_with_its_block() -> None:
    with language.using("zh"):
        assert language.current() == "zh"

    assert language.current() == "en"


def test_unknown_language_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        language.choose("de", {}, "utf-8")

    assert caught.value.code == "invalid-value"


def test_chinese_text_is_wrapped_by_columns_and_keeps_words_and_punctuation() -> None:
    text = "设备内存不足：请求 20.00 GiB，设备 /dev/davinci0 只剩 1.32 GiB。设置 PYTORCH_NPU_ALLOC_CONF 后重试。"
    lines = wrap_words(text, 34, "原因     ", "         ")

    assert all(columns_of(line) <= 34 for line in lines)
    assert "".join("".join(line.split()) for line in lines) == "原因" + "".join(text.split())
    assert any("PYTORCH_NPU_ALLOC_CONF" in line for line in lines)
    assert not any(line.strip()[0] in "，。：" for line in lines)


def test_text_without_wide_characters_breaks_at_blanks() -> None:
    assert wrap_words("one two three", 9, "- ", "  ") == ["- one two", "  three"]


def test_ascii_text_behind_a_chinese_label_keeps_to_the_columns() -> None:
    lines = wrap_words("one two three four", 14, "原文     ", "         ")

    assert lines == ["原文     one", "         two", "         three", "         four"]


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (1, "1 check of   a is ok"),
        (0, "0 checks of   a are ok"),
        (1200, "1,200 checks of   a are ok"),
        (np.int64(1), "1 check of   a is ok"),
    ],
)
def test_word_after_a_number_is_of_that_number(count: int, said: str) -> None:
    say = language.Phrases("ascendtune.check.doctor")
    assert say("{count:,} {count:check|checks} of {name:>3} {count:is|are} ok", count=count, name="a") == said


def test_number_that_is_already_text_has_its_word() -> None:
    say = language.Phrases("ascendtune.check.doctor")
    assert [say("{n} {n:time|times}", n=n) for n in ("1", "1.5")] == ["1 time", "1.5 times"]
