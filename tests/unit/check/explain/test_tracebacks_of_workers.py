"""Tracebacks of the workers of an engine: with prefixes, cut at both ends, and told again by who started them."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]


def test_headless_traceback_of_a_worker_is_read_below_frames_without_its_prefix(explained: Explained) -> None:
    prefix = "(Worker_TP0 pid=777) ERROR 07-27 10:06:06 [tide.py:7] "
    rows = [
        '  File "/x/moon.py", line 7, in step',
        "    rise(moon)",
        '  File "/x/moon.py", line 12, in rise',
        "    assert tide == 7",
    ]
    explanation = explained('File "<eval>", line 7, in forward\n' + "".join(f"{prefix}{row}\n" for row in rows))

    assert "tide == 7 does not hold" in explanation.headline()
    assert explanation.verdict.first is not None
    assert explanation.verdict.first.trace is not None
    assert explanation.verdict.first.trace.place == ("/x/moon.py", 12, "rise")


def test_logger_that_names_only_its_file_is_not_part_of_a_traceback(explained: Explained) -> None:
    rows = ['  File "/x/moon.py", line 12, in rise', "    tide()", "ValueError: tide 7 is too high"]
    explanation = explained("".join(f"[core.py:7] {row}\n" for row in rows))

    assert "tide 7 is too high" in explanation.headline() and "core.py" not in explanation.headline()
    assert explanation.verdict.first is not None and explanation.verdict.first.is_raised


def test_indented_line_on_which_a_message_continues_belongs_to_it(explained: Explained) -> None:
    rows = 'Traceback (most recent call last):\n  File "/x/moon.py", line 12, in rise\n    tide()\n'
    explanation = explained(f"{rows}ValueError: the tide of the moon is on a sea\n      of another moon than 7\n")

    assert "of another moon than 7" in explanation.headline()


def test_exception_that_only_announces_that_of_a_worker_gives_way_to_it(explained: Explained) -> None:
    frames = "".join(f'  File "/x/tide.py", line {line}, in rise\n    moon({line})\n' for line in range(9))
    explanation = explained(
        f"RuntimeError: Exception in worker process:\n{frames}"
        "RuntimeError: HCCL function error: tide(), error code is 1\n"
        '(EI0015): Failed to collect cluster information.\n  List of unconnected ranks: "[7,]".\n'
    )

    assert entry_of(explanation) == "EI0015-unconnected"
    assert "rank 7" in explanation.headline()


def test_better_reading_of_the_raised_line_goes_before_that_of_the_quoted_one(explained: Explained) -> None:
    explanation = explained(
        "tide.TideError(FileNotFoundError): moon::rise() (pid=7)\n"
        "Traceback (most recent call last):\n"
        '  File "/x/moon.py", line 12, in rise\n    tide()\n'
        "FileNotFoundError: Unable to find '/moon/tides.parquet'\n"
    )

    assert entry_of(explanation) == "dataset-file-missing"


def test_prefix_of_an_actor_is_learnt_from_the_frames_of_a_log_without_a_beginning(explained: Explained) -> None:
    prefix = "[0] [0] "
    lines = [
        "    return moon(",
        '  File "/v/lib/python3.10/site-packages/moon/rise.py", line 7, in moon',
        "    tide(",
        "RuntimeError: Data processing error: CAS service error : Moon Error: Request failed after 7 retries",
        "Traceback (most recent call last):",
        '  File "/v/lib/python3.10/site-packages/tide/actor.py", line 77, in handle',
    ]

    assert entry_of(explained("".join(f"{prefix}{line}\n" for line in lines))) == "hub-xet-failed"
