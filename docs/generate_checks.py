"""Writes docs/checks/ from the checks themselves: `python docs/generate_checks.py`. A test watches over its age."""

from __future__ import annotations

import textwrap
from pathlib import Path

from ascendtune.check.doctor import CHECKS, DEEP_CHECKS, NODE_CHECKS
from ascendtune.check.doctor.check import Check, get_check

TARGET = Path(__file__).with_name("checks")


def pages() -> dict[str, str]:
    """File name -> text: one page a check, and README.md, the list."""
    checks = [get_check(code) for code in (*CHECKS, *DEEP_CHECKS, *NODE_CHECKS)]
    return {"README.md": _list(checks)} | {f"{check.code}.md": _page(check) for check in checks}


def _list(checks: list[Check]) -> str:
    rows = [f"| [`{check.code}`]({check.code}.md) | {check.what} |" for check in checks]
    head = """# What the doctor checks

Written by `python docs/generate_checks.py`; do not edit. `ascendtune doctor CODE` runs only that check. The
most decisive checks come first. A check that cannot look says *unknown* and why. The last of them need several
machines: `ascendtune doctor --nodes host1,host2`.

| code | what |
|---|---|
"""
    return head + "\n".join(rows) + "\n"


def _page(check: Check) -> str:
    vital = "\n\nA failure here means that nothing can be trained on the accelerators." if check.vital else ""
    parts = [f"# {check.code}", _filled(check.what) + vital, "## Why", _filled(check.why), "## Fix", _filled(check.fix)]
    return "\n\n".join(parts) + "\n"


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    TARGET.mkdir(exist_ok=True)
    for name, text in pages().items():
        (TARGET / name).write_text(text, encoding="utf-8")
