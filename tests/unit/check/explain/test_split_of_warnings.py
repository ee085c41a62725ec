"""Warnings that are the cause of the exception or of the failed build below them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_TRACEBACK = 'Traceback (most recent call last):\n  File "/x/moon.py", line 7, in <module>\n    tide()\n'
_NUMPY = "A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.3.7 as it may crash.\n"
_BRIDGE = "/v/torch/moon.py:7: UserWarning: Failed to initialize NumPy: _ARRAY_API not found (Triggered internally)\n"
_NO_NUMBER = "RuntimeError: Could not infer dtype of {}\n"
_NO_NVCC = "  /x/setup.py:7: UserWarning: moon_gemm was requested, but nvcc was not found.  Are you sure …?\n"
_OLD_DRIVER = (
    "/v/torch/cuda/__init__.py:7: UserWarning: CUDA initialization: The NVIDIA driver on your system is too old "
    "(found version 11040). (Triggered internally)\n"
)
_NO_BF16 = "ValueError: Your setup doesn't support bf16/gpu. You need torch>=1.10, using Ampere GPU with cuda>=11.0\n"
_NO_OPERATOR = "AttributeError: '_OpNamespace' '_C' object has no attribute 'moon_norm'\n"
_NOT_IMPORTED = (
    "WARNING 07-07 [_custom_ops.py:7] Failed to import from vllm._C with "
    "ImportError('/v/vllm/_C.abi3.so: undefined symbol: _ZMoon')\n"
)
_NO_KERNEL = "NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs:\n"
_OTHER_XFORMERS = (
    "WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:\n"
    "    PyTorch 2.7.7+cu777 with CUDA 7777 (you have 2.8.8+cu777)\n"
)
_ARCHITECTURES = (
    'Traceback (most recent call last):\n  File "/v/torch/utils/cpp_extension.py", line 7, in _get_cuda_arch_flags\n'
    "    {code}\nIndexError: list index out of range\n"
)


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_NUMPY + _TRACEBACK + _NO_NUMBER.format("numpy.int64"), "torch-older-than-numpy-2"),
        (_BRIDGE + _TRACEBACK + "RuntimeError: Numpy is not available\n", "torch-older-than-numpy-2"),
        (_TRACEBACK + _NO_NUMBER.format("numpy.float32"), "torch-numpy-not-available"),
        (_TRACEBACK + "TypeError: expected np.ndarray (got numpy.ndarray)\n", "torch-numpy-not-available"),
        (_NUMPY + _TRACEBACK + _NO_NUMBER.format("NoneType"), "torch-tensor-of-object"),
        (_TRACEBACK + "TypeError: expected np.ndarray (got Tensor)\n", "torch-from-numpy-list"),
        (_NUMPY, "module-of-numpy-1"),
        (
            _NUMPY + _TRACEBACK + "SystemError: initialization of _internal failed without raising an exception\n",
            "extension-initialisation-of-numpy-1",
        ),
        (_NO_NVCC + "  ERROR: Failed building wheel for moon-gemm\n", "nvcc-not-found"),
        (
            _NO_NVCC + "  OSError: [Errno 28] No space left on device\n  ERROR: Failed building wheel for moon-gemm\n",
            "disk-full",
        ),
        ("ERROR: Failed building wheel for moon-gemm\n", "build-failed"),
        (_OLD_DRIVER + _TRACEBACK + _NO_BF16, "cuda-driver-version"),
        (_TRACEBACK + _NO_BF16, "bf16-needs-ampere"),
        (_NOT_IMPORTED + _TRACEBACK + _NO_OPERATOR, "vllm-extension-not-loaded"),
        (_TRACEBACK + _NO_OPERATOR, "vllm-operators-missing"),
        (_OTHER_XFORMERS + _TRACEBACK + _NO_KERNEL, "attention-kernel-of-other-xformers"),
        (_TRACEBACK + _NO_KERNEL, "attention-kernel"),
        (_ARCHITECTURES.format(code="arch_list[-1] += '+PTX'"), "no-gpu-names-architectures"),
        (_TRACEBACK + "IndexError: list index out of range\n", "list-index"),
    ],
)
def test_a_warning_that_explains_what_failed_below_it_is_the_cause(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_a_warning_whose_failure_followed_is_said_to_be_one(explained: Explained) -> None:
    explanation = explained(_NO_NVCC + "  ERROR: Failed building wheel for moon-gemm\n")

    assert explanation.sureness.startswith("likely: it was said as a warning")


def test_a_warning_is_certain_where_an_exception_followed_from_it(explained: Explained) -> None:
    explanation = explained(_OLD_DRIVER + _TRACEBACK + _NO_BF16)

    assert explanation.sureness.startswith("certain")


@pytest.mark.parametrize(
    "log",
    [
        _TRACEBACK + _NO_BF16 + _OLD_DRIVER,
        f"[rank0]: {_OLD_DRIVER}{_TRACEBACK}".replace("\n", "\n[rank1]: ") + _NO_BF16,
    ],
)
def test_a_warning_of_another_rank_or_below_the_exception_is_not_certain(explained: Explained, log: str) -> None:
    assert entry_of(explained(log)) == "cuda-driver-version"
    assert explained(log).sureness.startswith("likely: it was said as a warning")


@pytest.mark.parametrize(
    ("warned", "entry"),
    [
        (
            "[WARNING]  async_io requires the dev libaio .so object and headers but these were not found.\n",
            "deepspeed-async-io-without-libaio",
        ),
        ("", "deepspeed-op-incompatible"),
    ],
)
def test_an_operator_that_is_not_compiled_for_lack_of_a_library_names_it(
    explained: Explained, warned: str, entry: str
) -> None:
    said = "Unable to JIT load the async_io op due to it not being compatible due to hardware/software issue. None"
    explanation = explained(f"{warned}{_TRACEBACK}RuntimeError: {said}\n")

    assert entry_of(explanation) == entry
    assert "None" not in explanation.headline()


def test_first_exception_of_a_log_that_begins_with_frames_was_raised(explained: Explained) -> None:
    log = (
        '  File "/v/torch/_inductor/codecache.py", line 7, in cpp_compiler_search\n    raise exc.InvalidCxxCompiler()\n'
        "torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx\n\n"
        "The above exception was the direct cause of the following exception:\n\n" + _TRACEBACK
    )

    assert explained(log).sureness == "certain"
