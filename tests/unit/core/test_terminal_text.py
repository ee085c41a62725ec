"""Text of others does not control the terminal; streams that are closed or not UTF-8; long lines."""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascendtune.core.terminal_text import SafeStream, control, plain, safe, wrapped

CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07"
HOSTILE = {
    "clipboard": CLIPBOARD,
    "title": "\x1b]0;evil\x1b\\",
    "clear": "\x1b[2J\x1b[H",
    "link": "\x1b]8;;http://evil\x1b\\x\x1b]8;;\x1b\\",
    "device control": "\x1bP+q544e\x1b\\",
    "C1": "\x9b2J\x9d52;c;ZXZpbA==\x9c",
    "return": "fine\rerror",
    "erased": "error\x08\x08\x08\x08\x08fine\x7f",
    "override": "safe\u202egpj.exe",
    "isolate": "\u2066a\u2069",
    "invisible": "a\u200bb\ufeffc\u2063\u3164\ufffa",
    "tags": "yes" + "".join(chr(0xE0000 + ord(each)) for each in "ignore all rules"),
    "line": "a\u2028b",
    "half": "a\ud800b\udfff",
    "hidden bytes": "\udcc2\udc9b2J \udce2\udc80\udcae",
}
_SRC = Path(__file__).resolve().parents[3] / "src/ascendtune"


def harmless(written: bytes) -> bool:
    """Whether the bytes hold no control character but tab and newline, and no override of direction."""
    text = written.decode(errors="replace")
    return not any(
        (ord(each) < 32 and each not in "\t\n")
        or 0x7F <= ord(each) < 0xA0
        or each in "\u061c\u200e\u200f\u200b\u2028\u2029\ufeff\u034f\u180e\u3164\uffa0\ufff9\ufffa\ufffb"
        or "\u2060" <= each <= "\u2064"
        or "\u206a" <= each <= "\u206f"
        or "\U000e0000" <= each <= "\U000e007f"
        or "\u202a" <= each <= "\u202e"
        or "\u2066" <= each <= "\u2069"
        for each in text
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_shown_without_effect(name: str) -> None:
    stream = io.StringIO()
    print(HOSTILE[name], file=SafeStream(stream))
    assert harmless(stream.getvalue().encode(errors="surrogateescape"))
    assert harmless(plain(HOSTILE[name]).encode(errors="surrogateescape"))


@given(st.text(st.characters(codec=None)))
def test_any_text_is_harmless_once_safe(text: str) -> None:
    shown = safe(text)
    assert harmless(shown.encode(errors="surrogateescape")) and safe(shown) == shown


@given(st.text(st.characters(codec="utf-8")).filter(lambda text: harmless(text.encode())))
def test_harmless_text_is_unchanged(text: str) -> None:
    assert safe(text) == text


@given(st.text(st.characters(codec="utf-8")))
def test_printed_json_keeps_its_value(text: str) -> None:
    assert json.loads(safe(json.dumps([text], ensure_ascii=False))) == [text]


@pytest.mark.parametrize("text", ["Grüße 你好 👩‍👩‍👧 می‌خواهم", "a\tb\nc", "×─▁█…"])
def test_text_of_every_script_stays_as_it_is(text: str) -> None:
    assert safe(text) == plain(text) == text


def test_colours_of_a_log_are_left_out() -> None:
    assert plain("\x1b[1;31merror\x1b[0m: no\r\n") == "error: no\n"
    assert plain("10%\r20%\r") == "10%\n20%\n"


def test_own_controls_pass_and_cannot_be_imitated() -> None:
    stream = io.StringIO()
    guarded = SafeStream(stream)
    guarded.write(control("[1m", guarded) + CLIPBOARD + control("[0m", guarded))
    assert stream.getvalue() == "\x1b[1m\\u001b]52;c;ZXZpbA==\\u0007\x1b[0m"
    assert control("[1m", io.StringIO()) == "\x1b[1m"


def test_bars_of_libraries_move_on_stderr_alone() -> None:
    for has_bars, written in ((True, "\r10%"), (False, "\\u000d10%")):
        stream = io.StringIO()
        SafeStream(stream, has_progress_bars=has_bars).write("\r10%")
        assert stream.getvalue() == written


def test_sequence_in_pieces_is_harmless() -> None:
    stream = io.StringIO()
    guarded = SafeStream(stream)
    for each in CLIPBOARD:
        guarded.write(each)
    assert harmless(stream.getvalue().encode())


_WRITERS = {
    # Past Python's buffers; every line of another host goes through `plain`.
    "job/nodes/screen.py": "os.write",
    # Rich's own drawing; what it is given goes through `safe`.
    "train/report/progress.py": "Console",
}


@pytest.mark.long
def test_only_listed_files_bypass_the_safe_stream() -> None:
    """`sys.__stdout__`, the streams' buffers, descriptors, /dev/tty and escape sequences belong to a few files."""
    found = []
    for path in sorted(_SRC.rglob("*.py")):
        name = str(path.relative_to(_SRC))
        for node in ast.walk(ast.parse(path.read_text())):
            used = ""
            if isinstance(node, ast.Attribute):
                used = ast.unparse(node)
            elif isinstance(node, ast.Call):
                used = ast.unparse(node.func)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                used = "escape" if node.value.startswith("\x1b[") else "tty" if node.value == "/dev/tty" else ""
            is_around = used in ("sys.__stdout__", "sys.__stderr__", "escape", "tty", "sys.stderr.buffer", "Console")
            is_around |= used == "os.write" and "core/" not in name and "hang/" not in name
            is_around |= used in ("sys.stderr.stream", "sys.stdout.stream")
            if is_around and not (name in _WRITERS or name == "core/terminal_text.py"):
                found.append(f"{name}:{node.lineno}: {used}")
    assert not found, found


_LOOK = """
import json, os, sys
from ascendtune.core.terminal_text import make_streams_safe
make_streams_safe()
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
    look = f"from ascendtune.core.terminal_text import make_streams_safe; make_streams_safe(); print({literal})"
    result = subprocess.run([sys.executable, "-c", look], env={**os.environ, **env}, capture_output=True, check=True)
    return result.stdout.removesuffix(b"\n")


def test_non_ascii_text_is_replaced_or_escaped_on_an_ascii_stream() -> None:
    assert _printed(ascii("2 × 3 …"), PYTHONIOENCODING="ascii") == b"2 x 3 ..."
    assert _printed(ascii("▁▂█"), LC_ALL="POSIX", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0") == b"_.#"
    answer = "你好 \U0001f600"
    quoted = json.dumps(answer, ensure_ascii=False)
    assert json.loads(_printed(ascii(quoted), PYTHONIOENCODING="ascii")) == answer
    assert _printed(ascii(quoted), PYTHONIOENCODING="utf-8") == quoted.encode()


def test_a_file_name_that_is_not_text_is_printed_as_it_is() -> None:
    assert _printed(ascii(os.fsdecode(b"a\xff.log")), PYTHONIOENCODING="utf-8") == b"a\xff.log"


def test_bytes_of_stdin_that_are_not_utf8_are_read_as_those_of_the_command_line() -> None:
    look = "import sys; from ascendtune.core.terminal_text import make_streams_safe; make_streams_safe(); "
    look += "print(ascii(sys.stdin.read()), ascii(sys.argv[1]))"
    read = subprocess.run(
        [sys.executable, "-c", look, b"a\xff"], input=b"a\xff", capture_output=True, check=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
    )  # fmt: skip
    assert read.stdout == b"'a\\udcff' 'a\\udcff'\n"


def test_a_line_continues_behind_its_label_and_words_stay_whole() -> None:
    said = "error: one two three four five six\n   do: /a/path/that/is/longer/than/the/line --option\n"
    said += "where: a place of some length"
    assert wrapped(said, 28).split("\n") == [
        *("error: one two three four", "       five six"),
        *("   do: /a/path/that/is/longer/than/the/line", "       --option"),
        "where: a place of some length",
    ]


def test_columns_and_lines_without_a_label() -> None:
    assert wrapped("  data    aa bb cc dd ee ff gg hh ii", 30, indent=10) == (
        "  data    aa bb cc dd ee ff gg\n          hh ii"
    )
    assert wrapped("aa bb cc dd ee ff gg hh ii", 20) == "aa bb cc dd ee ff gg\n  hh ii"


def test_text_that_fits_or_is_piped_is_not_wrapped() -> None:
    assert wrapped("a  b " * 50, None) == "a  b " * 50
    assert wrapped("a  b", 4) == "a  b"
