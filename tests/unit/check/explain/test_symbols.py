"""The library to which an undefined symbol belongs.

Names of C++ that these libraries have; the files that need them are invented.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.knowledge.symbols import demangled, provider_of

Explained = Callable[..., Explanation]


@pytest.mark.parametrize(
    ("symbol", "provider", "readable"),
    [
        (
            "_ZN6google8protobuf8internal13VerifyVersionEiiPKc",
            "protobuf",
            "google::protobuf::internal::VerifyVersion",
        ),
        ("_ZNK5arrow6Schema4MoonEv", "Apache Arrow", "arrow::Schema::Moon"),
        ("_ZTVN4llvm5ValueE", "LLVM", "llvm::Value"),
        ("_ZN4moon4tideEv", "", "moon::tide"),
        ("_ZSt28__throw_bad_array_new_lengthv", "libstdc++", "_ZSt28__throw_bad_array_new_lengthv"),
        ("_ZNSt6vectorIiE4moonEv", "libstdc++", "_ZNSt6vectorIiE4moonEv"),
        ("_PyUnicode_Ready", "Python", "_PyUnicode_Ready"),
        ("nvshmem_selected_device_transport", "NVSHMEM", "nvshmem_selected_device_transport"),
        ("ucp_moon", "UCX", "ucp_moon"),
        ("tide_of_moon", "", "tide_of_moon"),
        ("_ZN99999", "", "_ZN99999"),
    ],
)
def test_library_that_should_have_a_symbol(symbol: str, provider: str, readable: str) -> None:
    assert (provider_of(symbol), demangled(symbol)) == (provider, readable)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/x/moon.so: undefined symbol: ibv_tide", ("ibv_tide is of rdma-core", "names the rdma-core")),
        ("/x/moon.so: undefined symbol: _PyTide_Ready", ("moon.so is for another Python", "`python -V`")),
        (
            "/x/vllm/_C.so: undefined symbol: _ZN4vllm4tideE",
            ("of vllm itself: parts of two builds", "PACKAGE==VERSION"),
        ),
        ("/x/MPI.so: undefined symbol: ompi_tide", ("ompi_tide is of MPI", "names the MPI")),
        ("/x/moon.so: undefined symbol: tide", ("(undefined symbol: tide)", "c++filt")),
    ],
)
def test_undefined_symbol_says_whose_it_is(explained: Explained, line: str, words: tuple[str, str]) -> None:
    explanation = explained(f"ImportError: {line}\n")

    assert entry_of(explanation) == "undefined-symbol"
    assert words[0] in explanation.headline() and words[1] in explanation.remedies()[0]


def test_symbol_of_cann_that_atb_needs_is_a_matter_of_nnal(explained: Explained) -> None:
    explanation = explained(
        "OSError: /usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_0/lib/libtide.so: undefined symbol: _ZN2ge4MoonEv\n"
    )

    assert entry_of(explanation) == "symbol-within-atb"
