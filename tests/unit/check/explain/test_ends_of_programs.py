"""The report of a program's end gives way to what the program printed directly above it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_CHILD = (
    'Traceback (most recent call last):\n  File "/x/moon.py", line 7, in rise\n    subprocess.check_call(command)\n'
    '  File "/v/subprocess.py", line 369, in check_call\n    raise CalledProcessError(retcode, cmd)\n'
    "subprocess.CalledProcessError: Command '['tide', '-v']' returned non-zero exit status 7.\n"
)
_CRASH = "Segmentation fault (core dumped)\n"


@pytest.mark.parametrize("end", [_CHILD, _CRASH])
@pytest.mark.parametrize(
    "complaint", ["error: ebb 7 does not fit flood 8\n", "TideError: ebb 7 does not fit flood 8\n"]
)
def test_failure_directly_above_the_end_is_told(explained: Explained, complaint: str, end: str) -> None:
    assert "ebb 7 does not fit flood 8" in explained(f"the moon starts\n{complaint}{end}").headline()


@pytest.mark.parametrize(("end", "entry"), [(_CHILD, "child-command"), (_CRASH, "sigsegv")])
@pytest.mark.parametrize("above", ["the moon rises\n", "error: failed\n", "error: ebb 7 does not fit\n1\n2\n3\n4\n"])
def test_end_without_a_reason_directly_above_stays_the_failure(
    explained: Explained, above: str, end: str, entry: str
) -> None:
    assert entry_of(explained(f"the moon starts\n{above}{end}")) == entry
