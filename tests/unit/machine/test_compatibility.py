from __future__ import annotations

from itertools import pairwise

import pytest

from ascendtune.machine.compatibility import (
    base_version,
    drivers_for,
    find_wheel,
    fitting_wheels,
    is_release,
    release_key,
    wheels,
)


def test_releases_in_the_vendors_order() -> None:
    order = ["8.0.RC2", "8.0.RC3", "8.0.0", "8.1.RC1", "8.5.0.alpha001", "8.5.0-beta.1", "8.5.0", "8.5.1", "9.0.0"]
    assert all(release_key(older) < release_key(newer) for older, newer in pairwise(order))
    drivers = [
        "23.0.7",
        "24.1.rc1.b030",
        "24.1.rc3",
        "24.1.rc3.3",
        "24.1.0",
        "25.0.RC1",
        "25.2.0",
        "26.0.rc1",
        "26.1.0",
    ]
    assert all(release_key(older) < release_key(newer) for older, newer in pairwise(drivers))


@pytest.mark.parametrize(
    ("version", "wanted", "answer"),
    [("9.1.0", "9.1.X", True), ("9.10.0", "9.1.X", False), ("8.1.rc1", "8.1.RC1", True), ("8.5.1", "8.5.0", False)],
)
def test_release_matches_only_its_own_series(version: str, wanted: str, answer: bool) -> None:
    assert is_release(version, wanted) is answer


def test_rows_are_those_of_the_vendor() -> None:
    assert len(wheels()) > 35
    wheel = find_wheel("2.9.0.post1+git4c901a4")
    assert wheel is None
    wheel = find_wheel("2.7.1.post2+git1")
    assert wheel is not None and (wheel.torch, wheel.cann, wheel.product) == ("2.7.1", "8.5.0", "7.3.0")
    assert "3.11" in wheel.python and wheel.source.startswith("https://gitcode.com/Ascend/pytorch")
    assert wheel.takes_cann("9.0.0") and not wheel.takes_cann("8.3.RC1")


def test_fitting_wheels_match_python_and_cann() -> None:
    assert base_version("2.5.1.post1.dev20250619") == base_version("2.5.1+cpu") == "2.5.1"
    first = fitting_wheels("3.11", "8.1.RC1")[0]
    assert (first.torch, first.version) == ("2.5.1", "2.5.1")
    assert fitting_wheels("3.14", "8.1.RC1") == [] and fitting_wheels("3.14", None)[0].torch == "2.12.0"


def test_drivers_follow_the_cann_release() -> None:
    exact = drivers_for("8.2.RC1")
    assert exact is not None and exact.oldest == "24.1.RC2" and "25.2.0" in exact.versions
    before = drivers_for("8.0.0")
    assert before is not None and before.cann == "8.0.RC2"
    assert drivers_for("7.0.0") is None
