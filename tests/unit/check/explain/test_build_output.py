"""The complaint of a compiler or tool above the report of the program that ran the build."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.facts.build_output import complaint_in

Explained = Callable[..., Explanation]

_COMPLAINTS = (
    "nvcc fatal   : Could not open input file '/w/moon.cu'",
    "ld.lld: error: unable to find library -lmoontide",
    "C:\\w\\moon.cpp(3): error C2065: 'tide': undeclared identifier",
    "LINK : fatal error LNK1181: cannot open input file 'moontide.lib'",
    "/tmp/moon.s:77: Error: no such instruction: `vmoontide %ymm0'",
    "clang++: error: cannot find moontide device library",
    "/opt/moon/bin/moontide: not found",
    '../moon/meson.build:27:9: ERROR: Dependency "moontide" not found, tried pkgconfig',
    "moon/tide.pyx:22:11: Cannot assign type 'moontide' to 'long'",
    "cp: cannot stat '/usr/local/moontide/templates': No such file or directory",
)


def _by_pip(said: str) -> str:
    return (
        "  error: subprocess-exited-with-error\n\n  ╰─> [7 lines of output]\n      running build\n"
        f"      {said}\n      error: command '/usr/bin/gcc' failed with exit code 1\n      [end of output]\n\n"
        "  ERROR: Failed building wheel for tide\n"
    )


def _by_make(said: str) -> str:
    return (
        f"[ 12%] Building CXX object moon.o\n{said}\nmake[2]: *** [build.make:76: moon.o] Error 1\n"
        "make: *** [Makefile:136: all] Error 2\n"
    )


def _by_ninja(said: str) -> str:
    return (
        f"FAILED: moon.o \nc++ -c moon.cpp -o moon.o\n{said}\nninja: build stopped: subcommand failed.\n"
        "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.\n"
    )


def _by_docker(said: str) -> str:
    failed = 'process "/bin/sh -c make" did not complete successfully: exit code: 2'
    return f"#12 [4/6] RUN make\n#12 3.1 {said}\n#12 ERROR: {failed}\nERROR: failed to solve: {failed}\n"


@pytest.mark.parametrize("said", _COMPLAINTS)
@pytest.mark.parametrize("wrapped", [_by_pip, _by_make, _by_ninja, _by_docker])
def test_complaint_is_in_the_headline_whichever_program_ran_the_build(
    explained: Explained, wrapped: Callable[[str], str], said: str
) -> None:
    assert ("moontide" if "moontide" in said else said.partition(": ")[2]) in explained(wrapped(said)).headline()


@pytest.mark.parametrize(
    "rows",
    [
        ["-- Could NOT find Moon (missing: MOON_LIBRARY)", "checking for moon... not found", "note: is required"],
        ["error: command '/usr/bin/gcc' failed with exit code 1", "hint: moon is required"],
        ["collect2: error: ld returned 1 exit status", "warning: cannot find moon", "100 tests, 0 errors"],
    ],
)
def test_news_and_reports_of_wrappers_are_not_complaints(rows: list[str]) -> None:
    assert complaint_in(rows) == ""


def test_first_complaint_of_a_compiler_goes_before_what_others_say_later() -> None:
    rows = ["moon.cpp:7:1: error: 'tide' was not declared", "moon.cpp:9:1: error: expected ';'", "E: ebb not found"]

    assert complaint_in(rows) == rows[0]


@pytest.mark.parametrize(
    ("line", "entry", "named"),
    [
        ("Package moonlib was not found in the pkg-config search path.", "pkg-config-library-missing", "moonlib"),
        ("a.cpp(3): fatal error C1083: Cannot open include file: 'moon.h': No such file", "header-missing", "moon.h"),
        ("unable to execute 'aarch64-linux-gnu-gcc': No such file or directory", "compiler-missing", "aarch64-linux"),
        (
            "error: package `half v2.4.1` cannot be built because it requires rustc 1.70 or newer, while the currently "
            "active rustc version is 1.65.0",
            "cargo-too-old",
            "(1.65.0) is older than a package needs that is built here (1.70)",
        ),
        ("error: rustc 1.66.1 is not supported by the following packages:", "cargo-too-old", "(1.66.1)"),
    ],
)
def test_complaint_with_a_known_cause_names_its_subject(
    explained: Explained, line: str, entry: str, named: str
) -> None:
    explanation = explained(_by_make(line))

    assert entry_of(explanation) == entry
    assert named in explanation.headline()


@pytest.mark.parametrize("said", ["AssertionError: Could not find moontide in PATH", "error: [WinError 7] no moontide"])
def test_output_of_pip_whose_beginning_was_cut_off_has_its_complaint(explained: Explained, said: str) -> None:
    cut = f"      running build\n      {said}\n      [end of output]\n  ERROR: Failed building wheel for moon\n"

    assert said in explained(cut).headline()
