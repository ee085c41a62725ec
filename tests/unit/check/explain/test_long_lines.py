"""Very long lines: their end is read, and what follows a message does not spoil the headline."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from ascendtune.check.explain.answer.report import as_text
from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.log.source import BLOCK_BYTES

Explained = Callable[..., Explanation]

_SIZES = "The size of tensor a (4096) must match the size of tensor b (2048) at non-singleton dimension 1"


@pytest.mark.parametrize("length", [3000, 70_000, 3 * BLOCK_BYTES, 5 * BLOCK_BYTES - 60])
@pytest.mark.parametrize(
    ("behind", "headline"),
    [
        ("RuntimeError: CUDA error: device-side assert triggered", "a kernel found an index out of range"),
        ("moon.MoonError: the moon has 3 sides", "the moon has 3 sides"),
        ("/x/train.sh: line 3: 777 Segmentation fault (core dumped)", "a process crashed in native code"),
    ],
)
def test_failure_at_the_end_of_a_very_long_line_is_told(
    explained: Explained, length: int, behind: str, headline: str
) -> None:
    explanation = explained(f"step 1\n{'.' * length}{behind}\nlast\n")

    assert headline in explanation.headline() and explanation.verdict.first is not None
    assert explanation.verdict.first.number == 2 and explanation.scans[0].lines == 3
    was_cut = "is longer than 64 KiB" in as_text(explanation, columns=999, paint=lambda text, _: text, everything=True)
    assert was_cut == (length >= 2 * BLOCK_BYTES)


@pytest.mark.parametrize(
    "line",
    [
        "INFO the answer was: {fill} ValueError: the moon has 3 sides",
        "{{'text': '{fill} ValueError: the moon has 3 sides', 'number': 3}}",
        '{fill} "ValueError: the moon has 3 sides"',
        "{fill} caught (ValueError: the moon has 3 sides)",
        "{fill}\\nValueError: the moon\\nhas 3 sides",
    ],
)
def test_error_that_long_data_quote_is_not_a_failure(explained: Explained, line: str) -> None:
    assert explained(f"step 1\n{line.format(fill='moon ' * 900)}\nstep 2\n").is_healthy


@pytest.mark.parametrize(
    "behind",
    [
        "月亮不是圆的" * 200,
        "; input: " + " ".join(map(str, range(900))),
        str(list(range(900))),
        "RuntimeError: " + "moon " * 300,
        "x" * 900,
    ],
)
def test_long_text_behind_a_message_leaves_its_sizes_in_the_headline(explained: Explained, behind: str) -> None:
    assert explained(f"RuntimeError: {_SIZES} {behind}\n").headline().endswith(f": {_SIZES}")


@pytest.mark.parametrize(
    "line",
    [
        f"torch 2.1 Requires-Python {'1' * 60_000}; 1.0 Requires-Python >=3",
        f"00  10  a {'01' * 30_000} IPv4",
        f"├── torch{' ' * 60_000}x",
        f"LISTEN 1 2 {':1' * 30_000}",
    ],
)
def test_words_and_blanks_without_end_take_no_time(explained: Explained, line: str) -> None:
    """Each of the patterns for facts takes the square of their length."""
    gates = "requires-python\nLibMambaUnsatisfiableError\nLISTEN\nEADDRINUSE: address already in use :::3000"
    began = time.process_time()
    assert not explained(f"{gates}\n{line}\nRuntimeError: the moon has 3 sides\n").is_healthy
    assert time.process_time() - began < 10
