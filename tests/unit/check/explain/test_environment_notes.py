"""Remedies from the paths of a traceback: the user's site-packages, and Windows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_NO_MODULE = (
    'Traceback (most recent call last):\n  File "{own}", line 7, in <module>\n    import moon\n'
    '  File "{package}", line 7, in <module>\n    from torch._six import inf\n'
    "ModuleNotFoundError: No module named 'torch._six'\n"
)
_CUT = 'Traceback (most recent call last):\n  File "/v/moon.py", line 7, in rise\n    {code}\n{error}\n'


@pytest.mark.parametrize(
    ("package", "unset"),
    [
        ("/home/me/.local/lib/python3.11/site-packages/moon/tide.py", "export PYTHONNOUSERSITE=1"),
        (r"C:\Users\me\AppData\Roaming\Python\Python311\site-packages\moon\tide.py", "set PYTHONNOUSERSITE=1"),
    ],
)
def test_packages_of_the_user_that_hide_those_of_an_environment_are_told(
    explained: Explained, package: str, unset: str
) -> None:
    remedies = explained(_NO_MODULE.format(own="/x/train.py", package=package)).remedies()

    assert "python -s -m pip show moon" in remedies[1]
    assert unset in remedies[1]


def test_packages_of_the_user_are_told_of_an_import_that_nothing_is_known_about(explained: Explained) -> None:
    log = _NO_MODULE.format(own="/x/train.py", package="/home/me/.local/lib/python3.11/site-packages/moon/tide.py")
    error = "ModuleNotFoundError: No module named 'torch._six'"

    explanation = explained(log.replace(error, "ImportError: the tide is not for this moon"))

    assert any("python -s -m pip show moon" in remedy for remedy in explanation.remedies())


@pytest.mark.parametrize("package", ["/v/lib/python3.11/site-packages/moon/tide.py", r"E:\v\site-packages\moon\t.py"])
def test_packages_of_an_environment_are_not_taken_for_the_user_s(explained: Explained, package: str) -> None:
    remedies = explained(_NO_MODULE.format(own="/x/train.py", package=package)).remedies()

    assert not any("PYTHONNOUSERSITE" in remedy for remedy in remedies)


@pytest.mark.parametrize(
    ("code", "error", "name"),
    [
        ("x = cache.get_tide()", "AttributeError: 'Moon' object has no attribute '", "'get_tide'"),
        ("moon(tide=7, ebb=8)", "TypeError: moon() got an unexpected keyword argument 'eb", "ebb"),
        ("from sea import tide", "ModuleNotFoundError: No module named 's", "sea"),
    ],
)
def test_a_name_that_is_cut_off_is_taken_from_the_line_of_code(
    explained: Explained, code: str, error: str, name: str
) -> None:
    explanation = explained(_CUT.format(code=code, error=error).rstrip("\n"))

    assert explanation.verdict.first is not None
    assert name in explanation.verdict.first.message


def test_a_name_that_is_cut_off_stays_so_where_the_code_has_several(explained: Explained) -> None:
    log = _CUT.format(code="a.tide(b.ebb)", error="AttributeError: 'Moon' object has no attribute '")

    assert explained(log).verdict.first.message.endswith("attribute '")  # type: ignore[union-attr]


def test_the_package_of_a_notebook_s_frame_is_named_in_commands(explained: Explained) -> None:
    log = (
        "ImportError                               Traceback (most recent call last)\n"
        "[/tmp/ipython-input-7.py](https://localhost:8080/#) in <cell line: 0>()\n----> 1 import moonlet\n\n"
        "[/v/lib/python3.12/dist-packages/moonlet/tide.py](https://localhost:8080/#) in <module>\n"
        "---> 23 from transformers import (\n     24     AutoModelForVision2Seq,\n\n"
        "ImportError: cannot import name 'AutoModelForVision2Seq' from 'transformers' (/v/transformers/__init__.py)\n"
    )
    explanation = explained(log)

    assert "pip install -U moonlet" in explanation.remedies()[0]
    assert not any("PACKAGE" in remedy for remedy in explanation.remedies())


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        ("ImportError: /lib64/libstdc++.so.6: version `GLIBCXX_3.4.77' not found (required by /x/moon.so)\n", "glibc"),
        ("ImportError: /lib64/libc.so.6: version `GLIBC_2.77' not found (required by /x/moon.so)\n", "glibc-older"),
        (
            "ValueError: Your setup doesn't support bf16/gpu. You need torch>=1.10, using Ampere GPU with cuda>=11.0\n",
            "bf16-needs-ampere",
        ),
        ("ValueError: Your setup doesn't support bf16/gpu.\n", "bf16-unsupported"),
    ],
)
def test_remedies_are_those_of_what_the_message_names(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry
