"""Messages of packages that were logged instead of raised."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

MESSAGE = "`model` and `ref_model` cannot be the same object. In most cases you should omit `ref_model`"


@pytest.mark.parametrize(
    "line",
    [
        "Exception: {}",
        "Error: ValueError('{}')",
        "2026-01-01 10:00:00,123 - ERROR - moon - {}",
        "(EngineCore pid=12) ERROR 07-11 10:22:11 [core.py:12] {}",
        '{{"object":"error","message":"{}","code":400}}',
    ],
)
def test_logged_message_of_a_package_is_known(line: str, explained: Callable[..., Explanation]) -> None:
    assert entry_of(explained("loading tide\n" + line.format(MESSAGE) + "\n")) == "trl-ref-model-same"


@pytest.mark.parametrize("name", ["ray.exceptions.MoonRemoved", "tide.sea.exceptions.Low"])
def test_class_of_a_module_of_exceptions_is_one_whatever_it_is_called(
    name: str, explained: Callable[..., Explanation]
) -> None:
    first = explained(f"loading tide\n{name}: the moon has been removed\n").verdict.first
    assert first is not None and first.trace is not None and first.trace.type == name


def test_few_words_of_a_package_may_be_those_of_any_program(explained: Callable[..., Explanation]) -> None:
    """An anchor below 25 letters counts with its exception only."""
    raised = explained("ValueError: Invalid model type: 'moon'. Valid types are tide\n")
    logged = explained("ERROR the tide said: not enough memory for moon\n")
    assert entry_of(raised) is not None and entry_of(logged) != entry_of(raised)


def test_message_of_native_code_needs_no_frame_of_its_package(explained: Callable[..., Explanation]) -> None:
    traceback = 'Traceback (most recent call last):\n  File "/x/moon.py", line 7, in <module>\n    tide.numpy()\n'
    assert entry_of(explained(traceback + "RuntimeError: Numpy is not available\n")) == "torch-numpy-not-available"


def test_warning_of_a_package_stays_without_failure(explained: Callable[..., Explanation]) -> None:
    assert explained(f"WARNING - moon - {MESSAGE}\nstep 100 of 100\ndone\n").verdict.certainty == "healthy"
