"""Panics of Go, conversions and builds for Ascend: what the frames, the compiler and the converter say."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.log import go_panic

Explained = Callable[..., Explanation]

_OWN = "\ttides.moon/sea/internal/tide.(*Sea).Rise(0xc000)\n\t\t/src/internal/tide.go:77 +0x7\n"
_LOGGED = (
    "\tgoroutine 7 [running]:\n\tk8s.io/apimachinery/pkg/util/runtime.logPanic({0x3}, {0x2})\n"
    "\t\tk8s.io/apimachinery/pkg/util/runtime/runtime.go:107 +0xbc\n\tpanic({0x2?, 0x5?})\n\t\truntime/panic.go:770\n"
)
_TILELANG = (
    'Traceback (most recent call last):\n  File "/v/site-packages/tilelang/jit/libgen.py", line 7, in compile_lib\n'
    '    raise RuntimeError(f"Compilation Failed! {{command}}")\nRuntimeError: Compilation Failed! {}\n'
)


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (
            "E0519 14:14:11.4 1 runtime.go:79] Observed a panic: runtime.boundsError{x:7, y:7, signed:true} "
            "(runtime error: index out of range [7] with length 7)\n" + _LOGGED + _OWN,
            ("Sea.Rise, tide.go:77", "index out of range [7] with length 7", "tides.moon/sea"),
        ),
        (
            'E0213 20:21:42.1 1 panic.go:261] "Observed a panic" panic="runtime error: integer divide by zero" '
            "stacktrace=<\n" + _LOGGED + _OWN,
            ("Sea.Rise, tide.go:77", "integer divide by zero", "tides.moon/sea"),
        ),
        (
            "panic: runtime error: invalid memory address or nil pointer dereference\n[signal SIGSEGV: code=0x1]\n\n"
            "goroutine 1 [running]:\ngithub.com/moon/sea/pkg/tide.Ebb(0x0)\n\t/src/pkg/tide.go:7 +0x1\n",
            ("Ebb, tide.go:7", "nil pointer dereference", "github.com/moon/sea)"),
        ),
        (
            "panic: assignment to entry in nil map\n\ngoroutine 1 [running]:\nmain.rise(...)\n\t/src/main.go:7 +0x1\n",
            ("rise, main.go:7", "assignment to entry in nil map", "whose log this is"),
        ),
        ("panic: runtime error: index out of range [3] with length 3\n", ("index out of range [3] with length 3",)),
        (
            '{"msg": "Observed a panic", "panic": "runtime error: integer divide by zero", "stacktrace": "goroutine 7 '
            '[running]:\\npanic({0x3})\\n\\t/go/panic.go:7\\ntides.moon/sea.Rise()\\n\\t/src/sea.go:7\\nend"}\n',
            ("Rise, sea.go:7", "integer divide by zero"),
        ),
    ],
)
def test_panic_of_go_is_named_by_the_frame_of_the_program(
    explained: Explained, log: str, told: tuple[str, ...]
) -> None:
    explanation = explained("serving\n" + log)

    assert entry_of(explanation) == "go-panic"
    assert [each for each in told if each not in explanation.headline()] == []
    assert "a bug of the program" in explanation.headline()


@pytest.mark.parametrize(
    "line",
    [
        "tide.cc:7:10: fatal error: moon.h: No such file or directory",
        "Kernel panic - not syncing: Fatal machine check",
        "thread 'main' panicked at 'moon', src/main.rs:7:7",
    ],
)
def test_other_programs_do_not_panic_as_go_does(explained: Explained, line: str) -> None:
    assert not go_panic.is_panic(line)
    assert entry_of(explained(f"{line}\n")) != "go-panic"


@pytest.mark.parametrize("fields", ["[2] [--domain_version] fields", "3 --domain_version fields"])
def test_model_of_two_domains_is_told_from_other_models_that_cannot_be_read(explained: Explained, fields: str) -> None:
    explanation = explained(f"E16005: The model has {fields}, but only one is allowed.\n")

    assert entry_of(explanation) == "onnx-two-domains"
    assert "operator sets (domains)" in explanation.headline()
    assert "opset_import" in explanation.remedies()[0]
    assert entry_of(explained("E16002: The model has no tides.\n")) == "cann-code-graph"


@pytest.mark.parametrize(
    "message",
    [
        "  ascendc_kernel_cmake does not exist ,please check whether the cann package\n  is installed",
        "  ascendc_kernel_cmake does not exist; check ASCEND_CANN_PACKAGE_PATH",
    ],
)
def test_rules_of_ascendc_that_cmake_does_not_find(explained: Explained, message: str) -> None:
    explanation = explained(f"-- Backend: npu\nCMake Error at sea/CMakeLists.txt:7 (message):\n{message}\n\n\n")

    assert entry_of(explanation) == "ascendc-cmake-not-found"
    assert "sea/CMakeLists.txt:7" in explanation.headline()


def test_rules_and_libraries_that_are_both_missing_are_an_empty_directory(explained: Explained) -> None:
    explanation = explained(
        "CMake Error at CMakeLists.txt:7 (message):\n  ascendc_kernel_cmake does not exist, moon\n\n"
        "ImportError: libhccl.so: cannot open shared object file: No such file or directory\n"
    )

    assert entry_of(explanation) == "cann-directory-empty"


@pytest.mark.parametrize(
    ("command", "compiler"), [("['bisheng', '-O2']", "bisheng"), ("['/x/bin/nvcc', '-G']", "nvcc")]
)
def test_compiler_that_refused_generated_code_is_named(explained: Explained, command: str, compiler: str) -> None:
    explanation = explained(_TILELANG.format(command))

    assert entry_of(explanation) == "tilelang-kernel-not-compiled"
    assert explanation.headline().startswith(f"{compiler} refused the code that tilelang")


@pytest.mark.parametrize(
    "line",
    [
        "CMake Error at CMakeLists.txt:7 (message): the moon of Ascend CANN is not there",
        "tide.cpp:7:7: error: no member named 'aclMoon' in namespace 'sea'",
        "error: command '/x/bin/bisheng' failed with exit code 7: the kernels of Ascend are not built",
        "make[2]: *** [CMakeFiles/ascend_kernels.dir/build.make:7: tide] Error 1",
    ],
)
def test_plog_is_not_asked_for_where_a_build_failed(explained: Explained, line: str) -> None:
    explanation = explained(f"-- Ascend NPU kernels of CANN\n{line}\n")

    assert not explanation.is_healthy
    assert "plog" not in " ".join((*explanation.remedies(), *explanation.to_collect))


def test_plog_is_asked_for_where_a_kernel_failed(explained: Explained) -> None:
    explanation = explained("[ERROR] the NPU kernel of the tide was not launched on npu:7 with 7 moons\n")

    assert "plog" in " ".join(explanation.remedies())


@pytest.mark.parametrize(
    ("chip", "entry"),
    [
        ("Ascend910", "ascend910-of-first-generation"),
        ("Ascend910ProB", "ascend910-of-first-generation"),
        ("Ascend910_9382", "chip-not-supported"),
        ("Ascend910B4", "chip-not-supported"),
    ],
)
def test_first_ascend_910_is_told_from_later_ones(explained: Explained, chip: str, entry: str) -> None:
    explanation = explained(
        f"CANN error: EZ9903: [PID: 7] 2025-12-17-18:13:01.238.630 support for {chip} is not implemented\n"
    )

    assert entry_of(explanation) == entry
    assert chip in explanation.headline()
