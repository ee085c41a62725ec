"""Messages in which a number or a name tells which of two sides is old, or whose an option is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_ARCH = "nvcc fatal   : Unsupported gpu architecture '{}'\n"
_PTXAS = "ptxas fatal   : Value '{}' is not defined for option 'gpu-name'\n"
_CLANG = (
    "clang++: error: GPU arch {} is supported by CUDA versions between 7.0 and 11.8 (inclusive), but installation at "
    "'/moon/cuda' is 12.1; use '--cuda-path' to specify a different CUDA install\n"
)
_OPTION = "nvcc fatal   : Unknown option '{}'\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_ARCH.format("compute_35"), "nvcc-architecture-dropped"),
        (_ARCH.format("compute_61"), "nvcc-architecture-dropped"),
        (_PTXAS.format("sm_70"), "nvcc-architecture-dropped"),
        (_CLANG.format("sm_35"), "nvcc-architecture-dropped"),
        (_ARCH.format("compute_90a"), "nvcc-architecture-too-new"),
        (_ARCH.format("compute_86"), "nvcc-architecture-too-new"),
        (_PTXAS.format("sm_120"), "nvcc-older-than-blackwell"),
        (_ARCH.format("compute_native"), "nvcc-architecture"),
        (_ARCH.format("compute_101"), "nvcc-architecture"),
        (_ARCH.format("compute_75"), "nvcc-architecture"),
        (_PTXAS.format("sm_70") + "Repro command: /moon/triton/backends/nvidia/bin/ptxas\n", "triton-ptxas-too-new"),
        (_PTXAS.format("sm_121a") + "Repro command: /moon/triton/backends/nvidia/bin/ptxas\n", "triton-ptxas-old"),
        ("ValueError: Unknown CUDA arch (12.1) or GPU not supported\n", "torch-architecture-unknown"),
    ],
)
def test_an_architecture_tells_whether_the_toolkit_is_too_old_or_too_new(
    explained: Explained, log: str, entry: str
) -> None:
    assert entry_of(explained(log)) == entry


@pytest.mark.parametrize(
    ("option", "entry"),
    [
        ("-Wno-moonlet", "nvcc-option-of-host"),
        ("-fopenmp", "nvcc-option-of-host"),
        ("fPIC", "nvcc-option-of-host"),
        ("-march=native", "nvcc-option-of-host"),
        ("-pthread", "nvcc-option-of-host"),
        ("-Wmissing-launch-bounds", "nvcc-option-unknown"),
        ("-maxrregcounts", "nvcc-option-unknown"),
        ("-static-global-template-stub=false", "nvcc-option-unknown"),
        ("--split-compile", "nvcc-option-unknown"),
    ],
)
def test_an_option_of_gcc_does_not_make_nvcc_old(explained: Explained, option: str, entry: str) -> None:
    assert entry_of(explained(_OPTION.format(option))) == entry
