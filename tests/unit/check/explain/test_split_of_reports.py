"""Logs that end with the report of a test runner, within the code that IPython shows, or without a message."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.log.report_of_tests import failed_test

Explained = Callable[..., Explanation]

_CELL = (
    "File /v/lib/python3.11/site-packages/moon/loader.py:713, in Moon.from_pretrained(name)\n"
    "    712     pass\n"
    "--> 713     raise {raised}\n"
)
_NLTK = "LookupError{end}\n**********\n  Resource {resource} not found.\n  Please use the NLTK Downloader\n"


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (
            "FAILED tests/test_tide.py::test_moon[a b] - AssertionError: tide 7 differs\n=== 1 failed in 7.2s ===\n",
            "AssertionError: tide 7 differs",
        ),
        (
            "FAILED tests/test_tide.py::T::test_moon - assert 7 == 8\n=== 1 failed, 3 passed in 7.2s ===\n",
            "assert 7 == 8",
        ),
        ("===== 3 failed, 7 passed in 0.5s =====\n", "3 failed, 7 passed"),
        (
            "FAIL: test_tide (tests.test_moon.TideTest)\n-----\nRan 7 tests in 1.2s\n\nFAILED (failures=1)\n",
            "test_tide",
        ),
        (
            ">       tide(7)\nE       assert False\n\ntests/test_moon.py:12: AssertionError\n",
            "AssertionError: assert False",
        ),
        ("tests/test_moon.py::test_tide FAILED    [ 50%]\ntests/test_moon.py::test_sea PASSED   [100%]\n", "test_tide"),
        ("--> 713     raise RuntimeError(\n", "raised RuntimeError"),
        (_CELL.format(raised="RuntimeError("), "Moon.from_pretrained of moon raised RuntimeError"),
        (
            _CELL.format(raised="RuntimeError(")
            + '    714         f"the tide {x} is not "\n    715         "known here"\n',
            "RuntimeError: the tide … is not known here",
        ),
        (
            _CELL.replace("-->", "   ").format(raised="OSError(") + "--> 714         f\"'{x}' has no high tide\"\n",
            "OSError: '…' has no high tide",
        ),
    ],
)
def test_a_log_that_ends_with_a_report_or_within_code_is_one_of_a_failure(
    explained: Explained, log: str, told: str
) -> None:
    explanation = explained(log)

    assert not explanation.is_healthy
    assert told in explanation.headline()


@pytest.mark.parametrize(
    "log",
    [
        "===== 15 passed, 3 skipped, 1 xfailed in 0.5s =====\n",
        "Ran 7 tests in 1.2s\n\nOK (expected failures=2)\n",
        "tests/test_moon.py::test_tide PASSED   [100%]\n",
        "3 errors corrected in 2.5s\nall tides written\n",
        "2 failed downloads retried in 12.3s\nall tides written\n",
    ],
)
def test_reports_of_tests_that_passed_are_not_failures(explained: Explained, log: str) -> None:
    assert explained(log).is_healthy


@pytest.mark.parametrize("filling", ["tide.py::", "7 tides, ", "7 failed in 7", "a.py:7: "])
def test_a_long_line_is_looked_through_quickly(filling: str) -> None:
    began = time.process_time()
    failed_test([filling * 12_000], 3)

    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        ("FAILED tests/test_moon.py::test_tide - " + _NLTK.format(end=": ", resource="punkt_tab"), "nltk-data-renamed"),
        (_NLTK.format(end=":", resource="[93mwordnet[0m"), "nltk-data-missing"),
        (_NLTK.format(end=":", resource="averaged_perceptron_tagger_eng"), "nltk-data-renamed"),
        (
            "/v/lib/python3.11/site-packages/nltk/data.py in find(name)\n"
            '    753     said = f"{sep}"\n--> 754     raise LookupError(said)\n\nLookupError:\n',
            "nltk-data-missing-by-frame",
        ),
        ("LookupError: tide 7 is not known\n", "python-exception"),
    ],
)
def test_data_of_nltk_that_is_missing_is_named(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry
