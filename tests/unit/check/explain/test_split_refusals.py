"""What programs refuse without calling it an error, in a log that somebody cut out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_SOLVING = "Encountered problems while solving:\n  - {}\n"
_REFUSAL = "moonctl: failed to raise the tide: too much moon\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (
            _SOLVING.format("package tide-7.1-h7_7 has constraint __cuda >=11.0 conflicting with __cuda-10.2-0"),
            "conda-driver-older",
        ),
        (
            "LibMambaUnsatisfiableError: Encountered problems while solving:\n"
            "  - package cuda-version-12.7-7 has constraint __cuda >=12 conflicting with __cuda-11.4-0\n",
            "conda-driver-older",
        ),
        (_SOLVING.format("nothing provides __cuda >=12.4 needed by tide-7.1"), "conda-no-driver"),
        (
            _SOLVING.format("package tide-7.1-0 has constraint __glibc >=2.28 conflicting with __glibc-2.17-0"),
            "conda-glibc",
        ),
        (_SOLVING.format("nothing provides __glibc >=2.28 needed by tide-7.1"), "conda-glibc"),
        (_SOLVING.format("nothing provides requested moonlet 7.7.7*"), "conda-missing"),
        ("error    libmamba Could not solve for environment specs\n", "conda-not-found"),
        ("enroot-switchroot: failed to execute: /bin/sh: No such file or directory\n", "image-without-shell"),
        (
            'OCI runtime exec failed: exec failed: unable to start container process: exec: "sh": executable file not '
            "found in $PATH: unknown\n",
            "image-without-shell",
        ),
        ("enroot-switchroot: failed to execute: /moon/tide: Exec format error\n", "enroot-program-not-started"),
        (_REFUSAL + "drwx------ 3 moon moon 25 Jan 7 07:07 ..\n", "error-line"),
        ("$ moonctl start\nmoonctl: cannot open the tide\n$ ls\ntotal 7\n", "error-line"),
        ("rm: cannot remove 'moon': No such file or directory\nstep 7 loss 1.5\n", None),
        ("moonctl: warning: failed to raise the tide, continuing without it\nstep 7 loss 1.5\n", None),
        (_REFUSAL + "step 7 loss 1.5\n" * 30, None),
    ],
)
def test_a_refusal_in_an_excerpt_is_a_failure(explained: Explained, log: str, entry: str | None) -> None:
    assert entry_of(explained(log)) == entry


def test_both_versions_of_the_driver_are_in_the_headline(explained: Explained) -> None:
    line = "package tide-7.1-h7_7 has constraint __cuda >=11.0 conflicting with __cuda-10.2-0"

    told = explained(_SOLVING.format(line)).headline()

    assert ">=11.0" in told
    assert "10.2" in told
