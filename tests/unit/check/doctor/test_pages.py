"""docs/checks/ is what the checks say."""

from __future__ import annotations

import runpy
from pathlib import Path

from ascendtune.check.doctor import CHECKS, DEEP_CHECKS, NODE_CHECKS
from ascendtune.check.doctor.check import get_check

DOCS = Path(__file__).parents[4] / "docs"


def test_pages_are_up_to_date() -> None:
    pages = runpy.run_path(str(DOCS / "generate_checks.py"))["pages"]()
    written = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "checks").iterdir()}
    assert written == pages, "run: python docs/generate_checks.py"


def test_the_code_is_the_name_of_the_file() -> None:
    for code in (*CHECKS, *DEEP_CHECKS, *NODE_CHECKS):
        check = get_check(code)
        assert check.code == code and check.what and check.why and check.fix
