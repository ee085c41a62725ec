"""Messages that a terminal or a mail broke into several lines; other lines of one length stay as they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.log.wrapped import unwrapped

Explained = Callable[..., Explanation]

_KILLED = (
    "(raylet) node_manager.cc:77: 3 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed "
    "due to other reasons at node (ID: 7dd8a1b2c3d4e5f6a7b8c9d0e1f2a3b4c5d6e7f8a9b0c1d2, IP: 10.7.1.9) over the last "
    "time period. To see more information about the Workers killed on this node, use `ray logs raylet.out -ip 10.7.1.9`"
)


def _broken(text: str, columns: int) -> str:
    return "\n".join(text[start : start + columns] for start in range(0, len(text), columns)) + "\n"


@pytest.mark.parametrize("columns", [80, 91, 100, 120])
@pytest.mark.parametrize("colour", ["", "#033[2m#033[33m", "\x1b[2m\x1b[33m", "[2m[33m"])
def test_message_broken_by_a_terminal_is_read_as_one_line(explained: Explained, columns: int, colour: str) -> None:
    explanation = explained(_broken(colour + _KILLED, columns))

    assert entry_of(explanation) == "ray-killed-for-memory"
    assert "(3)" in explanation.headline()
    assert "10.7.1.9" in explanation.headline()


def test_line_numbers_stay_those_of_the_file(explained: Explained) -> None:
    log = _broken("a tide that rises and falls " * 12, 80) + "RuntimeError: moon 7 is missing\n"

    explanation = explained(log)

    assert explanation.verdict.first is not None
    assert explanation.verdict.first.number == log.count("\n")


@pytest.mark.parametrize("joint", ["\n", " \n", "\n "])
def test_single_break_within_the_words_of_a_known_message_is_mended(explained: Explained, joint: str) -> None:
    log = f"[rank2]:[E ProcessGroupNCCL.cpp:7] [Rank 2] Watchdog caught{joint}collective operation timeout: WorkNCCL\n"

    explanation = explained(log)

    assert entry_of(explanation) == "watchdog"
    assert explanation.verdict.rank == 2


@pytest.mark.parametrize(
    "line",
    [
        "step {n} of the tide, loss 1.0{n}, learning rate 0.00{n}, tokens a second {n}00, end {n}",
        "|  {n}   Moon A7   | 00000000:0{n}:00.0 Off |                  {n}MiB |     {n}%   |",
        "+-------------------+----------------------+----------------------------------------+",
    ],
)
def test_lines_of_one_length_stay_apart(line: str) -> None:
    block = "".join(line.format(n=n) + "\n" for n in range(1, 9)).encode()

    assert unwrapped(block) == block


def test_one_line_of_the_greatest_length_is_not_broken() -> None:
    block = b"x" * 90 + b"\nand so on\nshort\n"

    assert unwrapped(block) == block


def test_repeated_line_of_the_greatest_length_is_not_broken() -> None:
    line = b"moons 7 tides 8 from 8 to 134217728 step 2 (factor) warm-up 5 iterations 20 checks 1\n"
    block = line + b"moon failure at tide.cu:7\nagain:\n" + line + b"a warning\n"

    assert unwrapped(block) == block


def test_rank_whose_bar_another_one_wrote_behind_is_seen(explained: Explained) -> None:
    explanation = explained(
        "[default0]:Grouping texts:   8%|8   | 7/70 [02:32<30:38, 48.01 examples/s][default2]:[E "
        "ProcessGroupNCCL.cpp:475] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, "
        "OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600888 milliseconds before timing out.\n"
        "[default3]:[E ProcessGroupNCCL.cpp:475] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=3, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600892 milliseconds before timing out.\n"
    )

    assert explanation.headline() == "rank 0 did not join while preparing data: 2 other ranks waited until the time-out"


def test_error_of_a_compiler_that_was_broken_within_a_word_is_known(explained: Callable[..., Explanation]) -> None:
    error = "/x/lib/python3.7/site-packages/moon/tides.h:7:1: fatal error: {header}: No such file o\nr directory    \n"

    assert entry_of(explained(error.format(header="Python.h"))) == "python-header-missing"
    assert entry_of(explained(error.format(header="tide/moon.h"))) == "header-missing"
    assert entry_of(explained("/x/moon/tides/of/the/seas.h:77:1: error: the tide is odd\nr directory\n")) == (
        "compiler-error"
    )


def test_import_error_that_was_broken_before_the_module_is_read_whole(explained: Explained) -> None:
    error = "ImportError: cannot import name 'tide'\n{}from 'moon.sea' (/x/moon/sea.py)\n"

    assert "moon.sea has no tide" in explained(error.format("")).headline()
    assert "moon.sea" not in explained(error.format("at 7\n")).headline()


_OF_UV = """  × Failed to build `moon-attn==7.7`
  ├─▶ The build backend returned an error
{0}[stderr]
{0}<string>:77: UserWarning: moon_attn was requested,{1} was not found.  Are you sure your environment has nvcc
{0}available?
{0}Traceback (most recent call last):
{0}  File "<string>", line 11, in <module>
{0}  File
{0}"/moon/lib/python3.12/site-packages/setuptools/build_meta.py",
{0}line 432, in build_wheel
{0}    return _build(['bdist_wheel'])
"""


@pytest.mark.parametrize("margin", ["      ", "  │   "])
@pytest.mark.parametrize("joint", [" but\n{}nvcc", "\n{}but nvcc", " but nvcc"])
def test_warning_that_uv_wrapped_at_words_is_the_cause_of_the_build(
    explained: Explained, margin: str, joint: str
) -> None:
    explanation = explained(_OF_UV.format(margin, joint.format(margin)))

    assert entry_of(explanation) == "nvcc-not-found"
    assert "moon_attn" in explanation.headline()


@pytest.mark.parametrize(
    "rows",
    [
        '  File\n      "/moon/build_meta.py",\n      line 7, in build_wheel\n          return _build([tide])\n',
        '  File "/moon/build_meta.py", line 7, in build_wheel\n          return _build([tide])\n',
        '  File "/moon/build_meta.py", line 7, in build_wheel\n          return _build([tide])\n          ^^^^^^\n',
    ],
)
def test_line_of_code_is_not_what_a_build_ended_with(explained: Explained, rows: str) -> None:
    log = f"  × Failed to build `moon==7`\n      [stderr]\n      Traceback (most recent call last):\n      {rows}"
    of_fragment = f"  × Failed to build `moon==7`\n      [stderr]\n      {rows}"

    assert "_build" not in explained(log).headline()
    assert "_build" not in explained(of_fragment).headline()
