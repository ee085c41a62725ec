"""What the README names exists: commands, options, recipe keys, imports, formats, files; both languages agree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from ascendtune.cli.commands import COMMANDS
from ascendtune.core.config import origins_of, validate
from ascendtune.core.document import parse_document
from ascendtune.data.conversation import Conversation
from ascendtune.data.format.choose import choose_format
from ascendtune.data.read import read_rows
from ascendtune.data.spec import DatasetSpec
from ascendtune.train.recipe import Recipe

ROOT = Path(__file__).parents[2]
READMES = ("README.md", "README.zh-CN.md")

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _blocks(name: str, *languages: str) -> list[str]:
    return [body for language, body in _BLOCK.findall(_text(name)) if language in languages]


def _code(name: str) -> list[str]:
    """Lines of shell blocks, and what stands between backticks."""
    prose = _BLOCK.sub("", _text(name))
    return [line for body in _blocks(name, "sh") for line in body.splitlines()] + re.findall(r"`([^`\n]+)`", prose)


def _commands(name: str) -> list[list[str]]:
    """The words of everything that calls ascendtune."""
    found = (re.match(r"ascendtune ([a-z].*)", code) for code in _code(name))
    return [match.group(1).split() for match in found if match]


@cache
def _help(command: str) -> str:
    argv = [sys.executable, "-m", "ascendtune", *command.split(), "--help"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", READMES)
def test_commands_and_options_exist(name: str) -> None:
    commands = _commands(name)
    assert len(commands) > 10
    for words in commands:
        command = next((" ".join(words[:size]) for size in (2, 1) if " ".join(words[:size]) in COMMANDS), None)
        assert command, f"ascendtune {' '.join(words)}"
        for option in (word for word in words if word.startswith("--")):
            assert re.search(rf"{option}\b", _help(command)), f"{command} {option}"


@pytest.mark.parametrize("name", READMES)
def test_options_in_prose_exist(name: str) -> None:
    everything = _help("") + "".join(map(_help, COMMANDS))
    for option in (code.split()[0] for code in _code(name) if code.startswith("--")):
        assert re.search(rf"{option}\b", everything), option


@pytest.mark.parametrize("name", READMES)
def test_recipes_are_valid_and_every_key_has_an_effect(name: str) -> None:
    recipes = _blocks(name, "yaml")
    assert recipes
    for text in recipes:
        document = parse_document(text, name)
        recipe = validate(Recipe, document)
        assert not recipe.without_effect(origins_of(recipe, document))


@pytest.mark.parametrize("name", READMES)
def test_keys_in_prose_exist(name: str) -> None:
    sections = "|".join(Recipe.model_fields)
    named = [code for code in _code(name) if re.match(rf"(?:{sections})\.(?!json)[a-z_.]+", code)]
    changed = [word for words in _commands(name) for word in words if "=" in word]
    assert len(named) >= 2 and len(changed) >= 2
    for code in named + changed:
        key = re.split(r"[=:]", code)[0]
        _require_key(key)


def _require_key(key: str) -> None:
    model = Recipe
    for part in key.split("."):
        assert part in model.model_fields, key
        annotation = model.model_fields[part].annotation
        model = annotation if isinstance(annotation, type) else model


@pytest.mark.parametrize("name", READMES)
def test_library_calls_exist(name: str) -> None:
    blocks = _blocks(name, "python")
    assert len(blocks) >= 2
    for block in blocks:
        imports = [node for node in ast.parse(block).body if isinstance(node, ast.ImportFrom)]
        assert imports
        for node in imports:
            assert all(hasattr(import_module(str(node.module)), each.name) for each in node.names)


@pytest.mark.parametrize("name", READMES)
def test_rows_are_of_the_formats_that_they_show(name: str, tmp_path: Path) -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\{.*\})` \|$", _text(name), re.MULTILINE)
    assert [named for named, _ in rows] == ["messages", "alpaca", "sharegpt", "prompt_completion"]
    blocks = [("messages", block) for block in _blocks(name, "json")]
    assert blocks
    spec = DatasetSpec(path=str(tmp_path / "rows.jsonl"))
    for expected, text in [*rows, *blocks]:
        Path(spec.path).write_text(text)
        read = list(read_rows(spec))
        found, convert = choose_format(spec, read)
        assert found == expected
        assert all(isinstance(convert(row.values), Conversation) for row in read)


@pytest.mark.parametrize("name", READMES)
def test_links_and_make_targets_exist(name: str) -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", _text(name)) if not link.startswith("http")]
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
    targets = re.findall(r"^(\w+):", _text("Makefile"), re.MULTILINE)
    for code in _code(name):
        if code.startswith("make "):
            assert code.split()[1] in targets, code


def test_both_languages_show_the_same_code() -> None:
    english, chinese = (
        [re.sub(r"\s*#.*", "", body) for body in _blocks(name, "sh", "yaml", "python", "json")] for name in READMES
    )
    assert english == chinese


def test_both_languages_have_the_same_sections() -> None:
    english, chinese = (re.findall(r"^#+ ", _BLOCK.sub("", _text(name)), re.MULTILINE) for name in READMES)
    assert english == chinese


@pytest.mark.parametrize("name", READMES)
def test_the_error_shown_is_what_a_user_gets(name: str, tmp_path: Path) -> None:
    shown = next(body for body in _blocks(name, "") if "error:" in body)
    recipe = {
        "model": {"path": "models/Qwen2.5-0.5B-Instruct"},
        "data": {"train": "rows.jsonl", "max_lenght": 1024},
        "method": {"tuner": "laro"},
    }
    (tmp_path / "recipe.yaml").write_text("name: alpaca-qwen\n" + yaml.safe_dump(recipe, sort_keys=False))
    argv = [sys.executable, "-m", "ascendtune", "train", "recipe.yaml"]
    result = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert shown == f"$ ascendtune train recipe.yaml\n{result.stderr}"
