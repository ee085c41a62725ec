"""Which events of a log are kept where there are too many."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from ascendtune.check.explain import ledger
from ascendtune.check.explain.explain import Explanation

_MOST = 20


def test_failure_among_more_kinds_of_errors_than_are_kept_is_found(
    explained: Callable[..., Explanation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "_EVENTS_KEPT", _MOST)
    names = ["".join(letters) for letters in itertools.product("ghijk", repeat=2)]
    noise = "".join(f"ERROR tide {name} could not be read\n" for name in names)
    trace = 'Traceback (most recent call last):\n  File "/x/t.py", line 7, in t\n    t()\n'
    failure = f"{trace}RuntimeError: NPU out of memory. Tried to allocate 5.03 GiB (NPU 1; 60.96 GiB total capacity)\n"

    found = explained(noise + failure)

    assert len(names) > _MOST and len(found.scans[0].events) == _MOST
    assert found.findings()[0].code == "npu-oom"
    assert explained(failure + noise).findings()[0].code == "npu-oom"
