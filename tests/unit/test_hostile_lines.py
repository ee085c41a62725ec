"""Texts of strangers that are written to be slow to read take linear time."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from ascendtune.check.migrate.python_code import find_in_python
from ascendtune.check.migrate.text import find_in_text
from ascendtune.data.format.guess import _IDENTIFIER, _NUMBERED
from ascendtune.machine.npu.hccn import read_link_history
from ascendtune.machine.npu.versions import read_values
from ascendtune.train.torch_errors import _LOST_CONNECTION, _TIMED_OUT

_MOST_SECONDS = 10.0
"""Quadratic time is a minute and more for these lengths."""


def _lost(message: str) -> None:
    _LOST_CONNECTION.search(message)
    _TIMED_OUT.search(message)


_SLOW: dict[str, tuple[Callable[[str], object], str]] = {
    "blanks in settings": (lambda text: find_in_text("settings", text), "optimizer:" + " " * 300_000 + "x"),
    "links in a script": (lambda text: find_in_text("script", text), "download.pytorch.org/x" * 30_000),
    "comments that do not end": (lambda text: find_in_text("cpp", text), "/*a" * 100_000),
    "names in C++": (lambda text: find_in_text("cpp", text), "TORCH_LIBRARY_IMPL(" * 30_000),
    "a long string": (lambda text: find_in_python(f"a = {text!r}".encode()), "cuda" + "_bnb" * 60_000 + "!"),
    "imports": (lambda text: find_in_python(text.encode()), "torch import " * 60_000),
    "digits of a value": (_IDENTIFIER.fullmatch, "7" * 200_000 + "!"),
    "digits of a column": (lambda text: _NUMBERED.sub("", text), "7" * 200_000 + "x"),
    "an error of a collective": (_lost, "hccl " * 40_000),
    "an error of another kind": (_lost, "broken " * 40_000),
    "blanks of a table": (read_link_history, "| LINK_DOWN |" + " " * 20_000),
    "blanks of a version": (read_values, "a" + " " * 100_000 + "\n" + "\n" * 100_000 + "b=" + " " * 100_000 + "c"),
}


@pytest.mark.parametrize("name", _SLOW)
def test_hostile_text_is_read_in_bounded_work(name: str) -> None:
    read, text = _SLOW[name]
    began = time.process_time()
    read(text)
    assert time.process_time() - began < _MOST_SECONDS


def test_hits_of_a_long_line_are_found_wherever_they_are() -> None:
    for at in (0, 3_500, 3_590, 3_999, 4_000, 50_000):
        line = " " + "a" * at + " backend: nccl " + "b" * 9_000
        assert [hit.line for hit in find_in_text("settings", line)] == [1], at


def test_a_comment_of_c_that_does_not_end_hides_the_rest_only() -> None:
    text = "at::cuda::a\n/* at::cuda::b */ x\nat::cuda::c\n/* at::cuda::d\nat::cuda::e"
    assert [hit.line for hit in find_in_text("cpp", text)] == [1, 3]
