"""docs/map.md agrees with the code: rooms, imports, and the way from the command to the first step."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ascendtune"
MAP = (ROOT / "docs" / "map.md").read_text(encoding="utf-8")

Entry = tuple[str, str]
"""File and qualified name of a function."""


def entries_of(heading: str) -> list[Entry]:
    section = MAP.partition(f"### {heading}\n")[2].partition("\n#")[0]
    return re.findall(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`", section, re.MULTILINE)


BEFORE, WITHIN = entries_of("Before the worker"), entries_of("In the worker")


def definition(entry: Entry) -> ast.AST:
    file, qualified = entry
    node: ast.AST = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
    for name in qualified.split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        found = [each for each in ast.iter_child_nodes(node) if isinstance(each, kinds) and each.name == name]
        assert len(found) == 1, f"{file} defines no {qualified}"
        node = found[0]
    return node


def called_in(entry: Entry) -> set[str]:
    """Names of the functions and methods that a function calls."""
    calls = [node.func for node in ast.walk(definition(entry)) if isinstance(node, ast.Call)]
    methods = {each.attr for each in calls if isinstance(each, ast.Attribute)}
    return methods | {each.id for each in calls if isinstance(each, ast.Name)}


def test_each_side_of_the_worker_has_at_most_ten_entries() -> None:
    assert 5 <= len(BEFORE) <= 10 and 5 <= len(WITHIN) <= 10


@pytest.mark.parametrize("way", [BEFORE, WITHIN], ids=["before", "within"])
def test_each_entry_is_called_by_one_above_it(way: list[Entry]) -> None:
    called = called_in(way[0])
    for entry in way[1:]:
        assert entry[1].rpartition(".")[2] in called, f"no entry above calls {entry[1]} of {entry[0]}"
        called |= called_in(entry)


def test_every_function_that_the_page_names_with_its_file_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)`\s`([\w.]+)`", MAP)
    assert len(named) > len(BEFORE) + len(WITHIN)
    for entry in named:
        definition(entry)


def test_every_file_of_the_ways_and_questions_exists() -> None:
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", MAP.partition("## The way")[2].partition("\n## Where to put")[0]))
    assert len(named) > 40
    assert [each for each in named if not (SOURCE / each).exists() and not (ROOT / each).exists()] == []


def test_rooms_import_only_what_the_page_allows() -> None:
    floors = re.findall(r"^(?:floor \d)? +(\w+(?: \| \w+)*)(?: {2,}(.*))?$", MAP.split("```")[1], re.MULTILINE)
    allowed = {
        room: {*re.findall(r"\w+", imports.partition(";")[0])}
        for rooms, imports in floors
        for room in rooms.split(" | ")
    }
    assert allowed.keys() == {each.parent.name for each in SOURCE.glob("*/__init__.py")}
    for room in allowed.keys() - {"core", "cli"}:
        texts = [each.read_text(encoding="utf-8") for each in (SOURCE / room).rglob("*.py")]
        found = {
            name for text in texts for name in re.findall(r"^ *(?:from|import) ascendtune\.(\w+)", text, re.MULTILINE)
        }
        assert found <= allowed[room] | {room, "core"}, room


def test_the_command_starts_the_module_that_the_worker_list_begins_with() -> None:
    tree = ast.parse((SOURCE / BEFORE[0][0]).read_text(encoding="utf-8"))
    constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert "ascendtune." + WITHIN[0][0].removesuffix(".py").replace("/", ".") in constants


def test_the_way_ends_at_a_step_of_the_optimizer() -> None:
    assert "self.optimizer.step()" in ast.unparse(definition(WITHIN[-1]))


def test_every_room_has_a_row_with_the_question_of_its_docstring() -> None:
    rooms = [*SOURCE.glob("*/__init__.py"), *SOURCE.glob("check/explain/*/__init__.py")]
    docstrings = {
        str(each.parent.relative_to(SOURCE)).removeprefix("check/"): ast.get_docstring(ast.parse(each.read_text()))
        for each in rooms
    }
    questions = {room: (text or "").partition("?")[0] + "?" for room, text in docstrings.items()}
    assert dict(re.findall(r"^\| `([\w/]+)/` \| ([^|]+) \|", MAP, re.MULTILINE)) == questions


def test_every_file_of_a_row_exists() -> None:
    rows = re.findall(r"^\| `([\w/]+)/` \|[^|]+\|([^|]+)\|", MAP, re.MULTILINE)
    named = [(room, name) for room, text in rows for name in re.findall(r"`([\w/*]+(?:\.\w+|/))`", text)]
    assert len(named) > 80
    for row, name in named:
        room = row.replace("explain/", "check/explain/")
        assert any((SOURCE / room).glob(name)) or (SOURCE / name).is_file(), f"{room}: no {name}"


def test_files_that_the_decisions_and_the_rules_name_exist() -> None:
    pages = [ROOT / "CONTRIBUTING.md", *(ROOT / "docs" / "decisions").glob("*.md")]
    named = {each for page in pages for each in re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text(encoding="utf-8"))}
    assert len(named) > 60
    assert [each for each in named if not (SOURCE / each).is_file() and not (ROOT / each).is_file()] == []
