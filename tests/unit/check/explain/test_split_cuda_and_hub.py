"""Causes behind general messages of CUDA, torch and the hub, told apart by values, frames and other lines."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

_ASSERT = "RuntimeError: CUDA error: device-side assert triggered\n"
_INDEX = "Indexing.cu:7: indexSelectSmallIndex: block: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
_NO_KERNEL = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
_NO_CUDA = "AssertionError: Torch not compiled with CUDA enabled\n"
_IN_PLACE = (
    "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: "
)
_TWO = "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, "
_LOSS = "{'loss': nan, 'grad_norm': 7.0}\n"


def _raised(error: str, file: str = "/x/moon.py", function: str = "rise", code: str = "tide()") -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 7, in {function}\n    {code}\n{error}'


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_raised(_ASSERT), "cuda-device-assert"),
        (_raised(_ASSERT, "/x/torch/nn/functional.py", "cross_entropy"), "device-assert-in-loss"),
        (_INDEX + _raised(_ASSERT, "/x/torch/nn/functional.py", "cross_entropy"), "embedding-index"),
        (_raised(_NO_KERNEL), "cuda-no-kernel"),
        (_raised(_NO_KERNEL, "/x/flash_attn/flash_attn_interface.py", "forward"), "extension-without-gpu-code"),
        ("GPU 0: NVIDIA GeForce RTX 5090\n" + _raised(_NO_KERNEL), "blackwell-without-code"),
        (_raised(_NO_CUDA), "cuda-on-npu"),
        (_raised(_NO_CUDA, "/Users/moon/tide.py"), "cuda-asked-on-mac"),
        ("torch 2.7.0+cpu\n" + _raised(_NO_CUDA), "cpu-build-of-torch"),
        (_raised("RuntimeError: CUDA error: initialization error\n"), "cuda-launch"),
        (
            _raised(
                "RuntimeError: CUDA error: initialization error\n",
                "/x/torch/utils/data/_utils/worker.py",
                "_worker_loop",
            ),
            "cuda-in-forked-worker",
        ),
        (
            _raised(_IN_PLACE + "[torch.FloatTensor [7, 7]], which is output 0 of ReluBackward0, is at version 1;\n"),
            "result-changed-in-place",
        ),
        (
            _raised(_IN_PLACE + "[torch.FloatTensor [7, 7]], which is output 0 of TBackward, is at version 1;\n"),
            "weight-changed-before-backward",
        ),
        (_raised(_TWO + "cuda:0 and cpu!\n"), "device-mix-named"),
        (
            _raised(_TWO + "cuda:0 and cpu! (when checking argument for argument mat2 in method x)\n"),
            "layer-left-on-cpu",
        ),
        (
            _raised(_TWO + "cpu and cuda:0! (when checking argument for argument mat2 in method x)\n"),
            "input-left-on-cpu",
        ),
        (_LOSS, "nan-loss"),
        ("run --fp16 True\n" + _LOSS, "nan-loss-in-fp16"),
        ("run --fp16 False\n" + _LOSS, "nan-loss"),
        ("double free or corruption (!prev)\n", "heap-corrupt"),
        ("{'train_runtime': 7.0}\ndouble free or corruption (!prev)\n", "crash-at-exit"),
        ("OSError: moon/tide is not a local folder and is not a valid model identifier\n", "hub-has-no-such-model"),
        ("OSError: ./moon/tide is not a local folder and is not a valid model identifier\n", "local-model-not-here"),
        (
            "requests.HTTPError: 503 Server Error: Service Unavailable for url: http://10.0.0.7:7/v1\n",
            "service-behind-proxy",
        ),
        ("requests.HTTPError: 503 Server Error: Service Unavailable for url: http://moon.example/v1\n", "hub-server"),
    ],
)
def test_cause_behind_a_general_message(explained: Callable[..., Explanation], log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_entries_whose_conditions_fail_do_not_hide_the_one_that_has_none(explained: Callable[..., Explanation]) -> None:
    log = "ERROR: Could not find a version that satisfies the requirement moon==7.7 (from versions: none)\n"

    assert entry_of(explained(log)) == "pip-no-version"


@pytest.mark.parametrize(
    ("line", "program"),
    [
        (
            "onnxruntime.capi.RuntimeException: CUDA error: no kernel image is available for execution on the device",
            "onnx",
        ),
        ("tensorflow/core/moon.cc:7] INTERNAL: no kernel image is available for execution on the device", "tensorflow"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "torch, or of an ext"),
    ],
)
def test_program_that_has_no_code_for_the_gpu_is_named(
    explained: Callable[..., Explanation], line: str, program: str
) -> None:
    assert f"this build of {program}" in explained(f"{line}\n").headline()
