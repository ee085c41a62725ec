"""The events of a log that are kept if there are too many, and their lines in a log with very long ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from ascendtune.check.explain.event import distinct_events
from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.log.source import BLOCK_BYTES

_MOST = 20
_TRACE = 'Traceback (most recent call last):\n  File "/x/t.py", line 7, in t\n    t()\n'
_FAILURE = f"{_TRACE}RuntimeError: NPU out of memory. Tried to allocate 5.03 GiB (NPU 1; 60.96 GiB total capacity)\n"


def test_failure_among_more_kinds_of_errors_than_are_kept_is_found(
    explained: Callable[..., Explanation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distinct_events, "_EVENTS_KEPT", _MOST)
    names = ["".join(letters) for letters in itertools.product("ghijk", repeat=2)]
    noise = "".join(f"ERROR tide {name} could not be read\n" for name in names)

    found = explained(noise + _FAILURE)

    assert len(names) > _MOST and len(found.scans[0].events) == _MOST
    assert found.findings()[0].code == "npu-oom"
    assert explained(_FAILURE + noise).findings()[0].code == "npu-oom"


@pytest.mark.parametrize("length", [0, 100, BLOCK_BYTES, 3 * BLOCK_BYTES + 7])
def test_line_longer_than_what_is_read_at_once_is_one_line(explained: Callable[..., Explanation], length: int) -> None:
    first = explained(f"step 1\n{'moon ' * (length // 5)}\n{_FAILURE}").verdict.first

    assert first is not None and first.number == 6
