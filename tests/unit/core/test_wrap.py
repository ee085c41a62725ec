from __future__ import annotations

from ascendtune.core.wrap import wrapped


def test_a_line_goes_on_behind_its_label_and_words_stay_whole() -> None:
    said = "error: one two three four five six\n   do: /a/path/that/is/longer/than/the/line --option\n"
    said += "where: a place of some length"
    assert wrapped(said, 28).split("\n") == [
        *("error: one two three four", "       five six"),
        *("   do: /a/path/that/is/longer/than/the/line", "       --option"),
        "where: a place of some length",
    ]


def test_columns_and_lines_without_a_label() -> None:
    assert wrapped("  data    aa bb cc dd ee ff gg hh ii", 30, indent=10) == (
        "  data    aa bb cc dd ee ff gg\n          hh ii"
    )
    assert wrapped("aa bb cc dd ee ff gg hh ii", 20) == "aa bb cc dd ee ff gg\n  hh ii"


def test_what_is_piped_and_what_fits_stays_as_it_is() -> None:
    assert wrapped("a  b " * 50, None) == "a  b " * 50
    assert wrapped("a  b", 4) == "a  b"
