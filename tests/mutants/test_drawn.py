"""Faults that are drawn: which ones there are, that a seed decides, and which tests they concern."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SOURCE = '''"""A module."""

LIMIT = 10


class Box:
    size: int = 3

    def fill(self, items, *, deep=False):
        if items:
            self.put(items[1:], order="up")
        return self.size * len(items) <= LIMIT


def put(what, where):
    move(what, where)
    raise ValueError("this is a sentence")
'''


@pytest.fixture
def mutate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("mutate")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "box.py").write_text(SOURCE)
    return tmp_path


def test_faults_are_of_every_kind_and_none_is_of_words_for_people(mutate: Any, root: Path) -> None:
    found = [mutate.made(root, each) for each in mutate.candidates(root, "job/box.py")]
    changes = {(each.function, each.old, each.new) for each in found}
    put = 'self.put(items[1:], order="up")'
    assert changes >= {
        ("", "LIMIT = 10", "LIMIT = 11"),
        ("", "LIMIT = 10", "LIMIT = 9"),
        ("Box", "size: int = 3", "size: int = 4"),
        ("Box.fill", "if items:", "if not (items):"),
        ("Box.fill", put, 'self.put(items[:], order="up")'),
        ("Box.fill", put, "self.put(items[1:], )"),
        ("Box.fill", put, "pass"),
        ("Box.fill", "return self.size * len(items) <= LIMIT", "return self.size / len(items) <= LIMIT"),
        ("Box.fill", "return self.size * len(items) <= LIMIT", "return self.size * len(items) < LIMIT"),
        ("put", "move(what, where)", "move(where, what)"),
    }
    assert not any("sentence" in each.old for each in found)
    for each in found:
        compile(each.text, "box.py", "exec")
        assert each.text != SOURCE and each.room == "job"
    assert len({each.key for each in found}) == len(found)


def test_a_change_elsewhere_leaves_the_faults_of_a_function_as_they_are(mutate: Any, root: Path) -> None:
    before = {each.key for each in mutate.candidates(root, "job/box.py")}
    (root / "job" / "box.py").write_text(SOURCE.replace("LIMIT = 10", "\nLIMIT = 20"))
    found = list(mutate.candidates(root, "job/box.py"))
    of_functions = {each.key for each in found if "20" not in mutate.made(root, each).old}
    assert of_functions < before and len({each.key for each in found} - before) == 2


def test_a_seed_decides_the_order(mutate: Any, root: Path) -> None:
    def ranked(seed: int) -> list[str]:
        return [each.key for each in sorted(mutate.candidates(root, "job/box.py"), key=lambda each: each.rank(seed))]

    assert ranked(1) == ranked(1) != ranked(2)


def test_the_innermost_function_around_a_line_is_found(mutate: Any) -> None:
    line = 1 + SOURCE.splitlines().index("        if items:")
    assert mutate.lines_of_function(SOURCE, line) == range(line - 1, line + 3)
    assert mutate.lines_of_function(SOURCE, 3) is None and mutate.function_at(SOURCE, 3) == ""
    assert mutate.function_at(SOURCE, line) == "Box.fill"


def test_tests_of_a_line_come_fast_ones_and_unit_tests_first(mutate: Any) -> None:
    coverage_map = importlib.import_module("coverage_map")
    slow, fast, of_two = (
        coverage_map.Test(False, 3.0, "tests/unit/job/test_a.py::test_slow"),
        coverage_map.Test(False, 0.1, "tests/unit/job/test_a.py::test_fast"),
        coverage_map.Test(True, 0.2, "tests/integration/job/test_b.py::test_two"),
    )
    found = coverage_map.CoverageMap()
    found.tests |= {slow, fast, of_two}
    found.lines["job/box.py"][10] |= {slow, of_two}
    found.lines["job/box.py"][12] |= {fast}
    assert found.tests_of("job/box.py", 10, range(9, 13)) == [slow, of_two]
    # A line that Python does not count as one: those of the function.
    assert found.tests_of("job/box.py", 11, range(9, 13)) == [fast, slow, of_two]
    assert found.tests_of("job/box.py", 3, None) == [fast, slow, of_two]
    # No unit test is known to run it: those beside it.
    assert found.tests_of("job/other.py", 3, range(1, 9)) == [fast, slow]
    assert found.tests_of("train/other.py", 3, range(1, 9)) == []
