"""The commands of docs/guide, and a directory in which they are run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from tiny_model import write_tiny_model

GUIDES = Path(__file__).parents[1] / "docs/guide"
PATIENCE_SECONDS = 300


def lines(page: str) -> Iterator[tuple[str, str]]:
    """Command and comment of each line in the shell blocks of a guide."""
    text = (GUIDES / f"{page}.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            command, _, comment = (part.strip() for part in line.partition("#"))
            yield command, comment


def needing(page: str, need: str, beginning: str = "") -> list[str]:
    """The commands of a guide that begin so, marked `# needs NEED` or `# takes NEED`; tests name all in one line."""
    marks = (f"needs {need}", f"takes {need}")
    found = [command for command, comment in lines(page) if comment in marks and command.startswith(beginning)]
    assert found, f"{page} has nothing that needs {need}"
    return found


def rows() -> list[tuple[str, str]]:
    """Command and last column, what a test needs to run it, of each row of the page of replaced scripts."""
    text = (GUIDES / "replaced.md").read_text(encoding="utf-8")
    return re.findall(r"\| `(ascendtune [^`]+)` \| ([^|]+) \|$", text, re.MULTILINE)


def commands(beginning: str, mark: str) -> list[str]:
    """The commands of that page that begin so and have this mark; tests name both in one line."""
    found = [each for each, its_mark in rows() if its_mark == mark and each.startswith(f"ascendtune {beginning}")]
    assert found, f"the page has no {beginning} with {mark}"
    return found


class Place:
    """A directory in which commands are run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.env = {
            **os.environ, "HOME": str(path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(path / "cache"),
            "XDG_STATE_HOME": str(path / "state"), "COLUMNS": "100",
        }  # fmt: skip

    def run(
        self,
        command: str,
        *more: str,
        code: int | None = 0,
        program: Sequence[str] = ("-m", "ascendtune"),
        env: Mapping[str, str] | None = None,
    ) -> str:
        """What a command prints. `code`: its exit code; None: 0 or 1. `program`: how Python starts it."""
        argv = [sys.executable, *program, *shlex.split(command)[1:], *more]
        done = subprocess.run(
            argv, cwd=self.path, env={**self.env, **(env or {})}, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, check=False, timeout=PATIENCE_SECONDS,
        )  # fmt: skip
        assert done.returncode in ((0, 1) if code is None else (code,)), (
            f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done.stdout + done.stderr

    def write_recipe(self, **keys: object) -> None:
        """recipe.yaml of a run named alpaca, its model and its rows."""
        if not (self.path / "model").is_dir():
            write_tiny_model(self.path / "model")
        examples = [{"instruction": f"What is {number} plus one?", "output": f"{number + 1}"} for number in range(20)]
        (self.path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in examples))
        recipe = {
            "name": "alpaca", "model": {"path": "model"}, "data": {"train": "rows.jsonl", "max_length": 64},
            "precision": "fp32", "method": {"tuner": "lora"}, "batch": {"per_device": 1},
            **keys,
        }  # fmt: skip
        (self.path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
