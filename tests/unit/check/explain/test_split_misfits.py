"""Packages of releases that do not fit each other: the frame, the name or the line beside tells which is to change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.frame import frame_of

Explained = Callable[..., Explanation]

_TRACE = 'Traceback (most recent call last):\n  File "{file}", line 7, in rise\n    {code}\n{error}\n'
_GENERATED = "/kaggle/working/unsloth_compiled_cache/UnslothMoonTrainer.py"
_PACKAGED = "/v/lib/python3.7/site-packages/moon/tide.py"
_LIST = "TypeError: list indices must be integers or slices, not str"


def _raised(error: str, file: str = "/home/me/moon.py", code: str = "rise(tide)") -> str:
    return _TRACE.format(file=file, code=code, error=error)


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_raised(_LIST, _GENERATED), "generated-trainer-of-other-trl"),
        (_raised("TypeError: rise() got an unexpected keyword argument 'tide'", _GENERATED),
         "generated-trainer-of-other-trl"),
        (_raised("NameError: name 'tide' is not defined", r"C:\me\unsloth_compiled_cache\UnslothMoonTrainer.py"),
         "name-missing-in-unsloth"),
        (_raised("KeyError: 'tide'", _GENERATED), "key-missing"),
        (_raised("TypeError: Unsloth: the moon is in bfloat16 and not set", _GENERATED, "if x: raise TypeError('…')"),
         "python-exception"),
        (_raised(_LIST, _PACKAGED), "list-read-as-dictionary-by-package"),
        (_raised(_LIST), "list-read-as-dictionary"),
        (f"{_LIST}\n", "list-read-as-dictionary"),
    ],
)  # fmt: skip
def test_fault_of_a_library_is_not_blamed_on_the_data(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_a_list_that_is_read_like_a_dictionary_is_not_called_the_fault_of_the_data(explained: Explained) -> None:
    for log in (_raised(_LIST), _raised(_LIST, _PACKAGED)):
        explanation = explained(log)
        assert " data" not in explanation.headline()
        assert explanation.sureness == "certain what broke; why: one of several known causes"


@pytest.mark.parametrize(
    ("line", "frame"),
    [
        ('/moon/tide.py", line 7, in rise', ("/moon/tide.py", 7, "rise")),
        ('le "C:\\moon\\tide.py", line 7, in <module>', ("C:\\moon\\tide.py", 7, "<module>")),
        ('see "/moon/tide.py", line 7, in rise', None),
        ('moon/tide.py", line 7', None),
    ],
)
def test_frame_that_was_cut_on_the_left_is_a_frame(line: str, frame: tuple[str, int, str] | None) -> None:
    assert frame_of(line) == frame


def test_traceback_that_begins_within_a_frame_is_read(explained: Explained) -> None:
    explanation = explained(f'{_GENERATED[8:]}", line 7, in rise\n    tide["moon"]\n{_LIST}\n')

    assert entry_of(explanation) == "generated-trainer-of-other-trl"
    assert "UnslothMoonTrainer.py:7" in explanation.headline()
