from __future__ import annotations

import os
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from ascendtune.core import dataset_card, process
from ascendtune.core.dataset_card import choose_files


def test_each_pattern_of_a_card_is_translated_once_for_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [f"data/train-{number}.parquet" for number in range(600)]
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n- data_files: [{', '.join(files)}]\n---\n")
    translated: list[str] = []
    expression_of = dataset_card._expression_of
    monkeypatch.setattr(
        dataset_card, "_expression_of", lambda pattern: translated.append(pattern) or expression_of(pattern)
    )
    chosen = choose_files(tmp_path, None, None)
    assert chosen is not None
    assert all(map(chosen.includes, files)) and not chosen.includes("data/train-600.parquet")
    assert translated == files


def test_a_card_is_parsed_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    load = yaml.load
    monkeypatch.setattr(yaml, "load", lambda text, loader: parsed.append(text) or load(text, loader))
    card = tmp_path / "README.md"
    subsets = "- {config_name: a, data_files: a.jsonl}\n- {config_name: b, data_files: b.jsonl}\n"
    card.write_text(f"---\nconfigs:\n{subsets}---\n")
    for subset in "aba":
        chosen = choose_files(tmp_path, subset, None)
        assert chosen is not None and chosen.patterns == (f"{subset}.jsonl",)
    assert len(parsed) == 1
    card.write_text("---\nconfigs: []\n---\n")
    assert choose_files(tmp_path, "a", None) is None


@pytest.mark.parametrize("named", ["config_name: *z", "data_files: [{split: *z, path: a.jsonl}]"])
def test_a_name_that_is_a_tree_of_aliases_is_not_written_out(named: str, tmp_path: Path) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    lines = ["a: &a [x, x, x]"]
    lines += [f"{name}: &{name} [*{before}, *{before}, *{before}]" for before, name in pairwise(letters)]
    card = "\n".join(
        ["---", *lines, "configs:", f"- {{{named}}}", "- {config_name: b, data_files: b.jsonl}", "---", ""]
    )
    (tmp_path / "README.md").write_text(card)
    chosen = choose_files(tmp_path, None, None)
    assert chosen is None or chosen.patterns == ("b.jsonl",)


@pytest.mark.parametrize(
    ("pattern", "path", "is_held"),
    [
        ("data/*-*-of-*.parquet", "data/train-1-of-2.parquet", True),
        ("data/*-*-of-*.parquet", "data/deep/train-1-of-2.parquet", False),
        ("**/train-?.*", "a/b/train-7.jsonl", True),
        ("*a*b", "aXaXb", True),
    ],
)
def test_patterns_are_those_of_a_shell(tmp_path: Path, pattern: str, path: str, is_held: bool) -> None:
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n- data_files: '{pattern}'\n---\n")
    chosen = choose_files(tmp_path, None, None)
    assert chosen is not None and chosen.includes(path) is is_held


@pytest.mark.parametrize("pattern", ["*a" * 60, "**/" * 30 + "x"])
def test_a_hostile_pattern_takes_no_time(tmp_path: Path, pattern: str) -> None:
    """Tried with all divisions of the name it would take longer than anybody waits."""
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n- data_files: '{pattern}'\n---\n")
    chosen = choose_files(tmp_path, None, None)
    assert chosen is None or not chosen.includes("a/" + "a" * 250 + "b")


_FILES = "configs:\n- {config_name: %s, data_files: a.jsonl}\n"
_MERGES = "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 4))


@pytest.mark.parametrize(
    "header",
    [f"a0: &a0 {{key: value}}\n{_MERGES}{_FILES % 'a'}", _FILES % ("9" * 4000), _FILES % ("1" + ":59" * 9_000)],
    ids=["merges", "number", "number of base 60"],
)
def test_a_hostile_header_names_no_files(tmp_path: Path, header: str) -> None:
    (tmp_path / "README.md").write_text(f"---\n{header}---\n")
    assert choose_files(tmp_path, None, None) is None


@pytest.mark.parametrize("bracket", ["[", "{a: "])
def test_a_header_that_is_nested_deeply_does_not_end_the_process(tmp_path: Path, bracket: str) -> None:
    """libyaml's own loader overflows the stack."""
    (tmp_path / "README.md").write_text(f"---\nconfigs: {bracket * 200_000}\n---\n")
    ask = "import sys; from pathlib import Path; from ascendtune.core.dataset_card import choose_files as choose; "
    done = process.run([sys.executable, "-c", f"{ask}print(choose(Path(sys.argv[1]), None, None))", str(tmp_path)])
    assert (done.exit_code, done.output) == (0, "None\n")


def test_a_card_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "README.md")
    assert choose_files(tmp_path, None, None) is None
