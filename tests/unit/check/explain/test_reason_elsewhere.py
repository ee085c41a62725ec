"""A message whose reason another line tells, and one that does not tell which of two causes it has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_PACKAGES = "/v/lib/python3.11/site-packages"
_NO_TORCH = "ImportError: libc10.so: cannot open shared object file: No such file or directory\n"
_ARRAY = "JSON parse error: Column() changed from object to array in row 0"
_HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def _trace(error: str, *frames: tuple[str, str]) -> str:
    rows = "".join(f'  File "{file}", line 7, in rise\n    {code}\n' for file, code in frames)
    return f"Traceback (most recent call last):\n{rows}{error}\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_trace(f"ArrowInvalid: {_ARRAY}", (f"{_PACKAGES}/datasets/json.py", "moon()")), "data-json-list"),
        (
            _trace(f"ArrowInvalid: {_ARRAY}", (f"{_PACKAGES}/datasets/json.py", "moon()"))
            + _HANDLING
            + _trace("ArrowTypeError: Expected bytes, got a 'int' object", (f"{_PACKAGES}/datasets/json.py", "sea()")),
            "pyarrow-expected-text",
        ),
        (_NO_TORCH, "torch-library-not-loaded"),
        (
            f"{_NO_TORCH}\n"
            "ImportError: /x/tide.cpython-310.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs\n",
            "symbol-of-torch",
        ),
        ("OSError: /n/nnal/atb/latest/atb/lib/libtide.so: undefined symbol: _ZN3Mki4MoonEv\n", "symbol-within-atb"),
        ("OSError: /v/torch_npu/lib/libtide.so: undefined symbol: _ZN3Mki4MoonEv\n", "symbol-of-atb"),
    ],
)
def test_another_line_that_tells_the_reason_goes_before(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


@pytest.mark.parametrize(
    ("package", "error"),
    [
        ("vllm", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."),
        ("mindie_llm", "RuntimeError: Device out of memory (OOM) reported by PyTorch, but it can possibly be HCCL."),
    ],
)
def test_memory_that_two_may_hold_is_not_said_to_be_of_one(explained: Explained, package: str, error: str) -> None:
    found = explained(_trace(error, (f"{_PACKAGES}/{package}/moon.py", "raise tide")))

    assert found.sureness.startswith("certain what broke; why")
    assert "another process" in str(found.verdict.first and found.verdict.first.causes)
