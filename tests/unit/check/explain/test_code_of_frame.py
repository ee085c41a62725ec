"""What a frame and its line of code say: the package, the value that was None, the table without the key."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascendtune.check.explain.code_of_frame import none_in, package_in, table_in
from ascendtune.check.explain.explain import Explanation


@pytest.mark.parametrize(
    ("files", "package"),
    [
        (["/usr/lib/python3.11/site-packages/moon/rise.py"], "moon"),
        (["/home/me/train.py", "/opt/dist-packages/tide/sea.py"], "tide"),
        (["/home/me/src/moon/rise.py"], "moon"),
        (["/home/me/src/trainer/rise.py"], ""),
        (["/home/me/moon/moon/rise.py"], "moon"),
        (["C:\\me\\venv\\lib\\site-packages\\moon\\rise.py"], "moon"),
        (["/home/me/moon/train.py"], ""),
        ([], ""),
    ],
)
def test_package_of_the_innermost_frame(files: list[str], package: str) -> None:
    assert package_in([(file, 7, "step") for file in files]) == package


def test_the_method_that_says_that_a_module_lacks_an_attribute_is_not_who_asked() -> None:
    frames = [
        ("/opt/site-packages/moon/rise.py", 7, "forward"),
        ("/opt/site-packages/torch/nn/modules/module.py", 1931, "__getattr__"),
    ]

    assert package_in(frames) == "moon"


@pytest.mark.parametrize(
    ("code", "message", "value"),
    [
        ("tide = moon.sea.height", "'NoneType' object has no attribute 'height'", "moon.sea"),
        ("tide = getattr(moon, 'height')", "'NoneType' object has no attribute 'height'", "moon"),
        ("tide = moon(7)[0]", "'NoneType' object is not subscriptable", "moon(7)"),
        ("tide = 7", "'NoneType' object has no attribute 'height'", ""),
    ],
)
def test_value_that_was_none(code: str, message: str, value: str) -> None:
    assert none_in(code, message) == value


@pytest.mark.parametrize(
    ("code", "message", "table"),
    [
        ("tide = MOONS[name]", "'io'", "MOONS"),
        ("tide = moons['io'] + seas['blue']", "'io'", "moons"),
        ("tide = moons[a] + seas[b]", "'io'", ""),
        ("tide = moons.pop(name)", "'io'", ""),
    ],
)
def test_table_without_the_key(code: str, message: str, table: str) -> None:
    assert table_in(code, message) == table


def test_headline_names_the_table_that_lacks_the_key(explained: Callable[..., Explanation]) -> None:
    explanation = explained(
        "Traceback (most recent call last):\n"
        '  File "/home/me/train.py", line 12, in step\n'
        '    tide = TIDES["tide_level"]\n'
        "KeyError: 'tide_level'\n"
    )

    assert "TIDES" in explanation.headline() and "tide_level" in explanation.headline()


@pytest.mark.parametrize(("file", "of_package"), [("/home/me/train.py", False), ("/opt/site-packages/tide/a.py", True)])
def test_remedy_for_the_owner_of_the_innermost_frame_comes_first(
    explained: Callable[..., Explanation], file: str, of_package: bool
) -> None:
    explanation = explained(
        "Traceback (most recent call last):\n"
        f'  File "{file}", line 12, in step\n'
        "    moon.rise()\n"
        "AttributeError: 'Moon' object has no attribute 'rise'. Did you mean: 'raise'?\n"
    )

    assert explanation.remedies()[0].startswith("code of a package" if of_package else "code of your own")
    assert not any("Did you mean" in remedy for remedy in explanation.remedies())
