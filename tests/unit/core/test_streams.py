"""Streams that are closed, and streams that cannot show what we print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_LOOK = """
import json, os, sys
from ascendtune.core.streams import make_safe
make_safe()
found = [os.stat(number).st_rdev == os.stat(os.devnull).st_rdev for number in (0, 1, 2)]
words = [sys.executable, "-c", "import sys; sys.stdin.read(); print('', file=sys.stderr)"]
child = os.spawnv(os.P_WAIT, words[0], words)
with open(sys.argv[1], "w") as file:
    json.dump([sys.stdin.isatty(), found, child], file)
print("nowhere", "×"); print("nowhere", file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("closing", "closed"), [("<&-", [0]), (">&-", [1]), ("2>&-", [2]), ("<&- >&- 2>&-", [0, 1, 2])]
)
def test_a_closed_stream_is_dev_null_for_us_and_for_what_we_start(
    tmp_path: Path, closing: str, closed: list[int]
) -> None:
    answer = tmp_path / "answer.json"
    shell = ["bash", "-c", f'"$@" {closing}', "bash", sys.executable, "-c", _LOOK, str(answer)]
    result = subprocess.run(shell, stdin=subprocess.PIPE, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    is_terminal, found, child = json.loads(answer.read_text())
    assert [number for number in (0, 1, 2) if found[number]] == closed
    assert not is_terminal and child == 0


def _printed(literal: str, **env: str) -> bytes:
    look = f"from ascendtune.core.streams import make_safe; make_safe(); print({literal})"
    result = subprocess.run([sys.executable, "-c", look], env={**os.environ, **env}, capture_output=True, check=True)
    return result.stdout.removesuffix(b"\n")


def test_what_ascii_cannot_show_has_a_stand_in_or_is_escaped_as_json_does() -> None:
    assert _printed(ascii("2 × 3 …"), PYTHONIOENCODING="ascii") == b"2 x 3 ..."
    assert _printed(ascii("▁▂█"), LC_ALL="POSIX", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0") == b"_.#"
    answer = "你好 \U0001f600"
    quoted = json.dumps(answer, ensure_ascii=False)
    assert json.loads(_printed(ascii(quoted), PYTHONIOENCODING="ascii")) == answer
    assert _printed(ascii(quoted), PYTHONIOENCODING="utf-8") == quoted.encode()


def test_a_file_name_that_is_no_text_is_printed_as_it_is() -> None:
    assert _printed(ascii(os.fsdecode(b"a\xff.log")), PYTHONIOENCODING="utf-8") == b"a\xff.log"
