"""Tracebacks in one line, with escaped line ends, and tracebacks behind tabs."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "/x/moon.py", line 7, in <module>',
    '    rise("tide")',
    "ValueError: `model` and `ref_model` cannot be the same object. In most cases you should omit",
]
ONE_LINE = "\n".join(TRACEBACK) + "\n"
KNOWN = "trl-ref-model-same"


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({"level": "error", "msg": ONE_LINE}),
        json.dumps({"level": "error", "msg": json.dumps({"error": ONE_LINE})}),
        "[rank3]: ERROR worker failed: stderr=" + repr(ONE_LINE.encode()) + ")",
        "ERROR worker failed: " + "\\n".join(TRACEBACK),
    ],
)
def test_traceback_in_one_line_is_read(line: str, explained: Explained) -> None:
    explanation = explained(f"loading tide\n{line}\nbye\n")
    first = explanation.verdict.first
    assert first is not None and first.hit.entry.id == KNOWN
    assert first.number == 2 and first.trace is not None
    assert first.trace.frames == [("/x/moon.py", 7, "<module>")]
    assert "omit" in first.text and not first.text.rstrip().endswith(("'", '"', ")"))
    assert first.rank == (3 if "rank3" in line else None)


def test_long_traceback_in_one_line_is_read_to_its_end(explained: Explained) -> None:
    frames = [f'  File "/x/moon_{number}.py", line 7, in rise' for number in range(100)]
    line = json.dumps({"msg": "\n".join([TRACEBACK[0], *frames, TRACEBACK[-1]])})
    assert len(line) > 4000 and entry_of(explained(line + "\n")) == KNOWN


def test_message_that_seems_to_continue_ends_with_its_line(explained: Explained) -> None:
    message = "RuntimeError: Serialization of parametrized modules is only supported through state_dict(). See:"
    line = json.dumps({"msg": "\n".join([*TRACEBACK[:3], message])})
    assert entry_of(explained(line + "\n")) == "torch-parametrised-pickled"


def test_last_of_a_chain_in_one_line_is_the_failure(explained: Explained) -> None:
    chain = ONE_LINE.replace(TRACEBACK[-1], "KeyError: 'tide'")
    chain += "\nDuring handling of the above exception, another exception occurred:\n\n" + ONE_LINE
    assert entry_of(explained(json.dumps({"msg": chain}) + "\n")) == KNOWN


def test_traceback_in_a_warning_of_one_line_was_caught(explained: Explained) -> None:
    log = "WARNING - moon - tried again after " + "\\n".join(TRACEBACK) + "\nstep 7 of 7\ndone\n"
    assert explained(log).verdict.certainty == "healthy"


@pytest.mark.parametrize("before", ["", '{"msg": "'])
def test_heading_without_an_exception_is_read_as_any_line(before: str, explained: Explained) -> None:
    explained(f"loading tide\n{before}{TRACEBACK[0]}\\n\n")


def test_traceback_behind_tabs_is_read(explained: Explained) -> None:
    assert entry_of(explained("\n".join("\t" + line for line in TRACEBACK) + "\n")) == KNOWN
