"""Which events of a log are kept where there are too many."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ascendtune.check.explain.explain import Explanation

_MOST = 2000


def test_failure_among_thousands_of_different_errors_is_found(explained: Callable[..., Explanation]) -> None:
    names = ["".join(letters) for letters in itertools.product("ghijklmn", repeat=4)][: _MOST + 100]
    noise = "".join(f"ERROR tide {name} could not be read\n" for name in names)
    trace = 'Traceback (most recent call last):\n  File "/x/t.py", line 7, in t\n    t()\n'
    failure = f"{trace}RuntimeError: NPU out of memory. Tried to allocate 5.03 GiB (NPU 1; 60.96 GiB total capacity)\n"

    found = explained(noise + failure)

    assert found.findings()[0].code == "npu-oom"
    assert len(found.scans[0].events) == _MOST
    assert explained(failure + noise).findings()[0].code == "npu-oom"
