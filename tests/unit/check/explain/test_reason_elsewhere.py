"""A message whose reason another line tells, and one that does not tell which of two causes it has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of
from tests.unit.check.explain.written_trace import PACKAGES, written_trace

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_NO_TORCH = "ImportError: libc10.so: cannot open shared object file: No such file or directory\n"
_ARRAY = "JSON parse error: Column() changed from object to array in row 0"
_HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (written_trace(f"ArrowInvalid: {_ARRAY}", (f"{PACKAGES}/datasets/json.py", "moon()")), "data-json-list"),
        (
            written_trace(f"ArrowInvalid: {_ARRAY}", (f"{PACKAGES}/datasets/json.py", "moon()"))
            + _HANDLING
            + written_trace(
                "ArrowTypeError: Expected bytes, got a 'int' object", (f"{PACKAGES}/datasets/json.py", "sea()")
            ),
            "pyarrow-expected-text",
        ),
        (_NO_TORCH, "torch-library-not-loaded"),
        (
            f"{_NO_TORCH}\n"
            "ImportError: /x/tide.cpython-310.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs\n",
            "extension-of-old-cxx-abi",
        ),
        ("OSError: /n/nnal/atb/latest/atb/lib/libtide.so: undefined symbol: _ZN3Mki4MoonEv\n", "symbol-within-atb"),
        ("OSError: /v/torch_npu/lib/libtide.so: undefined symbol: _ZN3Mki4MoonEv\n", "symbol-of-atb"),
    ],
)
def test_another_line_that_tells_the_reason_goes_before(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_error_that_ends_with_a_colon_has_its_reason_in_the_indented_line_below(explained: Explained) -> None:
    error = "error: the moon does not rise:\n{}the tide 7 is low\n"

    assert explained(error.format("  ")).headline().endswith("the moon does not rise: the tide 7 is low")
    assert "tide" not in explained(error.format("")).headline()


def test_assertion_of_a_result_gives_way_to_the_error_of_the_call(explained: Explained) -> None:
    error = "error: the tide 7 is higher than the moon\n"
    thrown = "terminate called after throwing an instance of 'Sea'\n  what():  ASSERTION FAILED: {} == 0\n"

    assert "the tide 7 is higher" in explained(error + thrown.format("ret")).headline()
    assert "waves == 0" in explained(error + thrown.format("waves")).headline()
    assert "ret == 0" in explained(thrown.format("ret")).headline()


@pytest.mark.parametrize(
    ("package", "error"),
    [
        ("vllm", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."),
        ("mindie_llm", "RuntimeError: Device out of memory (OOM) reported by PyTorch, but it can possibly be HCCL."),
    ],
)
def test_memory_that_two_may_hold_is_not_said_to_be_of_one(explained: Explained, package: str, error: str) -> None:
    found = explained(written_trace(error, (f"{PACKAGES}/{package}/moon.py", "raise tide")))

    assert found.sureness.startswith("certain what broke; why")
    assert "another process" in str(found.verdict.first and found.verdict.first.causes)
