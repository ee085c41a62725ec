from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascendtune.cli.side_by_side import beside, fits_beside
from ascendtune.core.terminal_text import columns_of
from ascendtune.data.inspect import Segment


def _segment(text: str, is_trained: bool = False, is_cut: bool = False) -> Segment:
    return Segment(text, tokens=1, is_trained=is_trained, is_cut=is_cut)


def _marked(segment: Segment) -> str:
    return f"«{segment.text}»" if segment.is_trained else segment.text


def _lines(left: list[Segment], right: list[Segment], columns: int) -> list[str]:
    return list(beside(("chosen", left), ("rejected", right), columns, _marked, _marked))


def test_texts_stand_beside_each_other_under_their_titles() -> None:
    prompt = _segment("What is\nthe sum?\n")
    lines = _lines([prompt, _segment("It is five, as two and three are.", True)], [prompt, _segment("No.", True)], 51)
    assert lines == [
        "chosen                   │ rejected",
        "──────────────────────── │ ────────────────────────",
        "What is                  │ What is",
        "the sum?                 │ the sum?",
        "«It is five, as two and» │ «No.»",
        "«three are.»             │",
    ]


def test_words_wider_than_a_column_and_chinese_are_broken() -> None:
    lines = _lines([_segment("a" * 50)], [_segment("数据" * 14, True)], 51)
    assert lines[2:] == [
        f"{'a' * 24} │ «{'数据' * 5}数»",
        f"{'a' * 24} │ «据{'数据' * 5}»",
        f"aa{' ' * 22} │ «{'数据' * 3}»",
    ]


def test_a_control_character_of_the_data_stands_as_json_writes_it() -> None:
    (line,) = _lines([_segment("a\x1b[2Jb\tc")], [_segment("d")], 60)[2:]
    assert line.split(" │ ") == ["a\\u001b[2Jb c".ljust(28), "d"]


@pytest.mark.parametrize(("columns", "fits"), [(None, False), (50, False), (51, True)])
def test_there_must_be_room(columns: int | None, fits: bool) -> None:
    assert fits_beside(columns) is fits


_TEXTS = st.lists(st.builds(_segment, st.text(alphabet="ab \n数é", min_size=1, max_size=80), st.booleans()), min_size=1)


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(_TEXTS, _TEXTS, st.integers(51, 90))
def test_no_line_is_too_wide_and_no_character_is_lost(left: list[Segment], right: list[Segment], columns: int) -> None:
    lines = _lines(left, right, columns)[2:]
    assert all(columns_of(line) <= columns for line in lines)
    halves = [line.partition("│") for line in lines]
    for number, segments in ((0, left), (2, right)):
        shown = "".join(half[number] for half in halves)
        assert _letters(shown) == _letters("".join(each.text for each in segments))


def _letters(text: str) -> str:
    return "".join(text.split()).replace("«", "").replace("»", "")
