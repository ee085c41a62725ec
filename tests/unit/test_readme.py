"""README and guides name only commands, options, keys, imports and formats that exist; both languages agree."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from ascendtune.cli.commands import COMMANDS, DEFAULTS
from ascendtune.cli.main import main
from ascendtune.core.config import origins_of, validate
from ascendtune.core.document import parse_document
from ascendtune.data.conversation import Conversation
from ascendtune.data.format.choose import FORMATS, choose_format
from ascendtune.data.read import read_rows
from ascendtune.data.spec import DatasetSpec
from ascendtune.hub.snapshot.fetch_list import FetchList
from ascendtune.recipe.recipe import Recipe

ROOT = Path(__file__).parents[2]
CHINESE = ".zh-CN.md"
PAGES = [
    "README.md",
    *(
        str(page.relative_to(ROOT)).replace(CHINESE, ".md")
        for place in ("docs", "docs/guide")
        for page in sorted((ROOT / place).glob(f"*{CHINESE}"))
    ),
]
"""In English; each has a Chinese page beside it."""
BOTH = [name for page in PAGES for name in (page, page.replace(".md", CHINESE))]

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
    shown = io.StringIO()
    with redirect_stdout(shown), redirect_stderr(shown), pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert not ended.value.code
    return shown.getvalue()


def test_every_option_and_command_exists() -> None:
    everything = _help("") + "".join(map(_help, COMMANDS))
    found = [(name, words) for name in BOTH for words in _commands(name)]
    assert len(found) > 60
    for name, words in found:
        command = next((" ".join(words[:size]) for size in (2, 1) if " ".join(words[:size]) in COMMANDS), None)
        command = command or (f"{words[0]} {DEFAULTS[words[0]]}" if words[0] in DEFAULTS else None)
        assert command, f"{name}: ascendtune {' '.join(words)}"
        for option in (word for word in words if word.startswith("--")):
            assert re.search(rf"{option}\b", _help(command)), f"{name}: {command} {option}"
    for name in (name for name in BOTH if "submit" not in name):  # which also names options of engines
        for option in (code.split()[0] for code in _code(name) if code.startswith("--")):
            assert re.search(rf"{option}\b", everything), f"{name}: {option}"


def test_data_page_has_a_row_for_each_format() -> None:
    for name in ("docs/data.md", f"docs/data{CHINESE}"):
        assert set(FORMATS) <= set(re.findall(r"^\| `(\w+)` \|", _text(name), re.MULTILINE)), name


def test_recipes_are_valid_and_every_key_has_an_effect() -> None:
    recipes = [(name, text) for name in BOTH for text in _blocks(name, "yaml")]
    assert len(recipes) >= 4
    for name, text in recipes:
        document = parse_document(text, name)
        if {"models", "datasets"} & set(document.values):
            validate(FetchList, document)
            continue
        recipe = validate(Recipe, document)
        assert not recipe.without_effect(origins_of(recipe, document)), name


def test_recipe_keys_in_prose_exist() -> None:
    sections = "|".join(Recipe.model_fields)
    named = [code for name in BOTH for code in _code(name) if re.match(rf"(?:{sections})\.(?!json)[a-z_.]+", code)]
    changed = [word for name in BOTH for words in _commands(name) for word in words if "=" in word]
    assert len(named) >= 20 and len(changed) >= 4
    for code in named + changed:
        if not code.startswith("--") and "=/" not in code:
            _require_key(re.split(r"[=:]", code)[0])


def _require_key(key: str) -> None:
    model = Recipe
    for part in key.split("."):
        assert part in model.model_fields, key
        annotation = model.model_fields[part].annotation
        model = annotation if isinstance(annotation, type) else model


def test_library_calls_exist() -> None:
    blocks = [block for name in BOTH for block in _blocks(name, "python")]
    assert len(blocks) >= 4
    for block in blocks:
        imports = [node for node in ast.parse(block).body if isinstance(node, ast.ImportFrom)]
        assert imports
        for node in imports:
            assert all(hasattr(import_module(str(node.module)), each.name) for each in node.names)


@pytest.mark.parametrize("name", ["docs/data.md", "docs/data.zh-CN.md"])
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


@pytest.mark.parametrize("name", [name for name in BOTH if name.endswith(CHINESE)])
def test_both_languages_show_the_same_code_and_sections(name: str) -> None:
    english = name.replace(CHINESE, ".md")
    code = [
        [re.sub(r"\s*#.*", "", body) for body in _blocks(each, "sh", "yaml", "python", "json")]
        for each in (name, english)
    ]
    assert code[0] == code[1]
    first, second = (re.findall(r"^#+ ", _BLOCK.sub("", _text(each)), re.MULTILINE) for each in (name, english))
    assert first == second


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_readme_is_a_page_and_its_make_targets_exist(name: str) -> None:
    assert len(_text(name).splitlines()) <= 180
    targets = re.findall(r"^([\w-]+):", _text("Makefile"), re.MULTILINE)
    for code in _code(name):
        if code.startswith("make "):
            assert code.split()[1] in targets, code


def _links() -> list[tuple[Path, str]]:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return [
        (page, link)
        for page in pages
        for link in re.findall(r"\]\(([^)\s]+)\)", _BLOCK.sub("", page.read_text(encoding="utf-8")))
        if not re.match(r"https?:", link)
    ]


def test_links_lead_somewhere() -> None:
    links = _links()
    assert len(links) > 60
    for page, link in links:
        file, _, anchor = link.partition("#")
        target = (page.parent / file) if file else page
        assert target.exists(), f"{page.relative_to(ROOT)}: {link}"
        assert not anchor or anchor in _anchors(target), f"{page.relative_to(ROOT)}: {link}"


def test_a_chinese_page_leads_to_chinese_pages() -> None:
    english = set()
    for page, link in _links():
        file = link.partition("#")[0]
        is_english = file.endswith(".md") and not file.endswith(CHINESE)
        if page.name.endswith(CHINESE) and is_english and (page.parent / file.replace(".md", CHINESE)).is_file():
            english.add((page.name, link))
    # A page may begin with a link to itself in the other language.
    assert {(name, link) for name, link in english if name != link.replace(".md", CHINESE)} == set()


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", ["docs/diagnosis.md", "docs/diagnosis.zh-CN.md"])
def test_the_error_shown_is_what_a_user_gets(name: str, tmp_path: Path) -> None:
    shown = next(body for body in _blocks(name, "") if "error:" in body)
    recipe = {
        "model": {"path": "models/Qwen2.5-0.5B-Instruct"},
        "data": {"train": "rows.jsonl", "max_lenght": 1024},
        "method": {"tuner": "laro"},
    }
    (tmp_path / "rows.jsonl").touch()
    (tmp_path / "recipe.yaml").write_text("name: alpaca-qwen\n" + yaml.safe_dump(recipe, sort_keys=False))
    argv = [sys.executable, "-m", "ascendtune", "train", "recipe.yaml"]
    result = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert shown == f"$ ascendtune train recipe.yaml\n{result.stderr}"
