"""Faulty recipe files are refused with file and line, with no more work than for the largest valid file."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from pathlib import Path

import pytest

from ascendtune.core.document import Document, parse_document, read_document
from ascendtune.core.errors import InputError, RecipeError, combined_error
from ascendtune.core.files import expanded, is_endless
from ascendtune.core.overrides import apply_overrides
from ascendtune.hub.snapshot.fetch_list import read_fetch_list
from ascendtune.recipe.recipe import Recipe

HOSTILE = {
    "alias bomb": (
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in pairwise("abcdefgh")),
        "more than 10,000 values",
    ),
    "merge bomb": (
        "a: &a {k: 1}\n"
        + "".join(f"{new}: &{new}\n  <<: [{', '.join(['*' + old] * 20)}]\n" for old, new in pairwise("abcdefgh")),
        "more than 10,000 values",
    ),
    "anchor in itself": ("a: &a [*a]\n", "an alias refers to a value that contains it"),
    "merge bomb of nothing": (
        "a: &a {}\n"
        + "".join(f"{new}: &{new}\n  <<: [{', '.join(['*' + old] * 20)}]\n" for old, new in pairwise("abcdefgh")),
        "more than 10,000 values",
    ),
    "merge of itself": ("a: &a\n  <<: *a\n", "an alias refers to a value that contains it"),
    "many keys": ("".join(f"k{number}: 1\n" for number in range(15_000)), "more than 10,000 values"),
    "deep flow": ("a: " + "[" * 20_000, "levels"),
    "deep block": ("".join(f"{' ' * depth}a:\n" for depth in range(300)), "levels"),
    "tag": ("a: !!int abc\n", "tag '!!int'"),
    "tag of Python": ("a: !!python/object/apply:os.system [id]\n", "YAML tag"),
    "digits": (f"a: {'9' * 5000}\n", "looks like a number"),
    "half a surrogate pair": ('a: "\\ud800"\n', "half a surrogate pair"),
    "control character": ('a: "x\\e]52;c;eA==\\a"\n', "control character U.001B"),
    "null character": ('a: "x\\0"\n', "control character U.0000"),
    "key of a list": ("? [a, b]\n: 1\n", "a key is a list or a mapping"),
    "merge of a number": ("<<: 3\n", "not a mapping"),
}  # fmt: skip


@pytest.fixture(scope="module")
def most_seconds() -> float:
    """What the largest file that is read takes here and now, twice: a file that is refused may cost so much."""
    began = time.process_time()
    assert len(parse_document("".join(f"k{number}: 1\n" for number in range(9_999)), "r.yaml").values) == 9_999
    return 2 * (time.process_time() - began)


@pytest.mark.long
@pytest.mark.parametrize(("text", "said"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_refused_with_its_line_for_bounded_work(text: str, said: str, most_seconds: float) -> None:
    seconds = []
    # A garbage collection may fall into one of them.
    for _ in range(3):
        began = time.process_time()
        with pytest.raises(RecipeError, match=r"(?s)" + said) as caught:
            parse_document(text, "r.yaml")
        seconds.append(time.process_time() - began)
        if seconds[-1] < most_seconds:
            break
    assert min(seconds) < most_seconds
    assert caught.value.where is not None
    assert caught.value.where.startswith("r.yaml:")


def test_a_large_file_is_refused_unread(tmp_path: Path, most_seconds: float) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("# comment\n" * 5_000_000)
    began = time.process_time()
    with pytest.raises(RecipeError) as caught:
        read_document(file)
    assert caught.value.code == "document-too-large"
    assert time.process_time() - began < most_seconds


def test_aliases_and_merge_keys_within_bounds_are_written_out() -> None:
    document = parse_document("a: &a {x: 1, y: [2]}\nb: {<<: *a, x: 3}\nc: [*a, *a]\n", "r.yaml")
    assert document.values == {
        "a": {"x": 1, "y": [2]},
        "b": {"x": 3, "y": [2]},
        "c": [{"x": 1, "y": [2]}, {"x": 1, "y": [2]}],
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:30:00", "1:30:00"), ("1:30.5", "1:30.5"), ("2024-02-30", "2024-02-30"), ("2024-01-01", "2024-01-01"),
        ("0x_", "0x_"), ("0x1f", 31), ("1e-4", 1e-4), ("1_000", 1000), ("-7", -7), ("0", 0), (".5", 0.5), ("1.", 1.0),
        ("yes", True), ("null", None), ("~", None), ("'5'", "5"), ("1.2.3", "1.2.3"), ("٣", "٣"),
    ],
)  # fmt: skip
def test_plain_scalar_has_the_same_type_in_file_and_override(text: str, value: object) -> None:
    found = parse_document(f"a: {text}\n", "r.yaml").values["a"]
    assert (found, type(found)) == (value, type(value))
    document = Document({}, "r.yaml")
    apply_overrides(document, [f"a={text}"])
    assert document.values["a"] == value


def test_places_are_those_of_the_values_that_win() -> None:
    text = "a: &a\n  s: {x: 1, gone: 2}\nb: &b\n  s: {x: 5}\n  y: 2\nc:\n  <<: [*a, *b]\nd:\n  <<: *a\n  s: {z: 3}\n"
    document = parse_document(text, "r.yaml")
    assert document.values["c"] == {"s": {"x": 1, "gone": 2}, "y": 2}
    assert document.values["d"] == {"s": {"z": 3}}
    assert document.places["c", "s"] == document.places["c", "s", "x"] == "r.yaml:2"
    assert document.places["c", "y"] == "r.yaml:5"
    assert {path for path in document.places if path[:1] == ("d",)} == {("d",), ("d", "s"), ("d", "s", "z")}


FAULTS = {
    "form feed": (b"a: 1\n\x0cb: 2\n", "invalid-yaml", 2, "U+000C"),
    "UTF-16 without a mark": ("a: 1\n".encode("utf-16-be"), "invalid-yaml", 1, "UTF-8"),
    "GB18030": ("a: 1\r\n# \u5b66\u4e60\u7387\r\n".encode("gb18030"), "not-utf8", 2, "UTF-8"),
    "full-width colon of a section": ("a\uff1a\n  b: 1\n".encode(), "invalid-yaml", 2, "full-width colon"),
    "full-width colon of a value": ("a: 1\nb\uff1a2\n".encode(), "invalid-yaml", 3, "full-width colon"),
    "full-width space": ("a:\n\u3000b: 1\n".encode(), "key-beside-odd-space", 2, "U+3000"),
    "no-break space": ("a:\n \u00a0b: 1\n".encode(), "key-beside-odd-space", 2, "U+00A0"),
    "tab after the value": (b"a: 1\nb: 1\t\n", "invalid-yaml", 2, "replace the tabs"),
    "second document": (b"a: 1\n---\nb: 2\n", "invalid-yaml", 2, "a second document"),
    "key given twice": (b"a: 1\nb: 2\na: 3\n", "duplicate-key", 3, "first in line 1"),
    "leading zero": (b"a: 1\nb: 010\n", "number-ambiguous", 2, "octal"),
}


@pytest.mark.parametrize(("content", "code", "line", "said"), FAULTS.values(), ids=FAULTS)
def test_a_slip_of_the_pen_is_named_with_its_line(
    content: bytes, code: str, line: int, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "r.yaml"
    file.write_bytes(content)
    with pytest.raises(RecipeError) as caught:
        read_document(file)
    assert (caught.value.code, caught.value.where) == (code, f"{file}:{line}")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("missing", "meant"), [("recip.yaml", "recipe.yaml"), ("recipe.yml", "recipe.yaml"), ("supplies.yaml", None)]
)
def test_a_missing_file_is_not_taken_for_any_other_with_its_suffix(
    missing: str, meant: str | None, tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").touch()
    with pytest.raises(RecipeError) as caught:
        read_document(tmp_path / missing)
    assert (f"did you mean '{tmp_path / 'recipe.yaml'}'?" == caught.value.remedy) == (meant is not None)


@pytest.mark.parametrize("text", ["0", "00x", "'010'", "0.10", "0x10", "089"])
def test_a_leading_zero_without_ambiguity_is_read(text: str) -> None:
    assert parse_document(f"a: {text}\n", "r.yaml").values


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["name=" + "n" * 300], "300 bytes is too long"),
        (["name=a/b"], "not a name for a directory"),
        (["batch.per_device=100000000000000000000"], "less than or equal to 65536"),
        (["optim.max_steps=1e300"], "exceeded maximum size"),
        (["data.processes=1000000"], "less than or equal to 1024"),
        (["optim.learning_rate=1:30:00"], "write a number"),
        (["optim.learning_rate=" + "9" * 5000], "looks like a number"),
        (["model.path=\udcff"], "not valid YAML"),
        (["data.train[0]" + "0" * 5000 + ".path=a"], "unknown key|does not lead"),
    ],
)
def test_impossible_values_are_refused(words: list[str], said: str, tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("model: {path: m}\ndata: {train: d.json}\n")
    with pytest.raises(RecipeError, match=said):
        Recipe.load(file, words)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("data.train.0.limit=3", "data.train is 'd.json', which has no keys below it"),
        ("data.eval.2.path=x", "data.eval has 1 entry, numbered from 0"),
        ("data.eval.path=x", "data.eval is a list, whose entries are data.eval.0"),
        ("seed.x=1", "seed is '3', which has no keys below it"),
        ("optim.0=1", "there is no such section"),
    ],
)
def test_an_override_that_leads_nowhere_says_where_it_ends(word: str, said: str) -> None:
    text = "seed: 3\nmodel: {path: m}\ndata: {train: d.json, eval: [e.json]}\noptim: {epochs: 1}\n"
    with pytest.raises(RecipeError) as caught:
        apply_overrides(parse_document(text, "r.yaml"), [word])
    assert caught.value.code == "override-path-missing" and said in caught.value.what


@pytest.mark.parametrize("word", ["optim.learning_rate=", "optim.learning_rate= "])
def test_override_of_a_shell_variable_that_is_not_set_is_refused(word: str) -> None:
    with pytest.raises(RecipeError) as caught:
        apply_overrides(Document({}, "r.yaml"), [word])
    assert caught.value.what == "'optim.learning_rate' has no value" and "null for none" in caught.value.remedy


def test_the_home_directory_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        expanded("~nosuchuser/model")
    assert caught.value.code == "unknown-user"
    assert expanded("~/model") == Path.home() / "model"


@pytest.mark.skipif(not os.path.ismount("/proc"), reason="no /proc")
def test_files_of_the_kernel_count_as_endless(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc/kmsg")
    (tmp_path / "file").write_text("text")
    assert is_endless(Path("/proc/kmsg"))
    assert is_endless(tmp_path / "link")
    assert is_endless(Path("/dev/zero"))
    assert not is_endless(tmp_path / "file")


@pytest.mark.parametrize("text", ["models: a/b\n", "models:\n"])
def test_a_list_that_is_none_is_named_without_words_of_the_language(text: str, tmp_path: Path) -> None:
    (tmp_path / "supplies.yaml").write_text(text)
    with pytest.raises(RecipeError) as caught:
        read_fetch_list(tmp_path / "supplies.yaml")
    assert caught.value.remedy.startswith("write a list")


def test_the_first_of_very_many_errors_of_one_check_are_reported() -> None:
    errors = [RecipeError(f"fault {number}", code="invalid-value", remedy="mend it") for number in range(9000)]
    told = combined_error(errors)
    assert told.what == "fault 0" and len(told.further) == 50
    assert (told.further[-1].code, told.further[-1].what[:5]) == ("further-errors", "8,950")
    assert len(combined_error(errors[100:150]).further) == 49
