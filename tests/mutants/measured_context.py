"""A plugin of pytest: coverage notes each line under the test that runs, its fixtures included."""

from __future__ import annotations

from collections.abc import Iterator

import coverage
import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    measuring = coverage.Coverage.current()
    assert measuring is not None
    measuring.switch_context(item.nodeid)
    result = yield
    measuring.switch_context("")
    return result
