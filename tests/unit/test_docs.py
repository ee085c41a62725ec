"""Pages that are written by a program are what it would write."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from ascendtune.recipe.llamafactory.data import SAME
from ascendtune.recipe.recipe import Recipe

DOCS = Path(__file__).parents[2] / "docs"


def test_the_list_of_recipe_keys_is_up_to_date() -> None:
    page = runpy.run_path(str(DOCS / "generate.py"))["recipe_page"]()
    assert (DOCS / "recipe.md").read_text(encoding="utf-8") == page, "run: python docs/generate.py"


def test_every_key_has_a_sentence() -> None:
    page = (DOCS / "recipe.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in Recipe.model_fields)
    assert not re.search(r"\|\s+\|$", page, re.MULTILINE)


def test_the_page_on_llama_factory_says_what_the_code_does() -> None:
    page = (DOCS / "compat.md").read_text(encoding="utf-8")
    updated = runpy.run_path(str(DOCS / "generate_compat.py"))["updated"]
    assert updated(page) == page, "run: python docs/generate_compat.py"
    assert page.count("| `examples/") > 80 and "FAILED" not in page
    assert all(f"| `{theirs}` | `{ours}` |" in page for theirs, ours in SAME.items())


GLOSSARY = {"词元": "token", "堆栈": "调用栈", "显卡": "GPU 或卡", "路由器": "router", "梯度累加": "梯度累积"}
"""Words of other glossaries, and the word of this project."""


def test_chinese_words_are_the_same_everywhere() -> None:
    root = Path(__file__).parents[2]
    files = [*root.glob("*.zh-CN.md"), *root.glob("docs/**/*.zh-CN.md"), *root.glob("src/**/*.zh.toml")]
    files += root.glob("src/ascendtune/check/explain/knowledge/**/zh/*.toml")
    assert len(files) > 100
    wrong = [
        f"{file.relative_to(root)}:{number}: {other}, not {own}"
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        for other, own in GLOSSARY.items()
        if other in line
    ]
    assert wrong == []
