"""Failures whose remedy is an option of the program that the log names."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_FULL = "[PID: 7] 2026-04-09-21:56:40.384.694 Memory_Allocation_Failure(EL0004): Failed to allocate memory\n"
_TORCH_FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.00 GiB. GPU 0 has a total capacity of 23.69 GiB "
    "of which 1.56 GiB is free.\n"
)
_NPU_FULL = (
    "RuntimeError: NPU out of memory. Tried to allocate 7.00 GiB (NPU 0; 60.96 GiB total capacity; 49.47 GiB already "
    "allocated; 1.32 GiB free; 57.55 GiB reserved in total by PyTorch)\n"
)
_POOL_FULL = (
    "[ERROR] PRE_ACT(7,f,python):2025-01-01-00:00:00.000.000 [moon/mem.cc:392] Add] TotalUsedMemStatistics : 247 plus "
    "TotalUsedByEventMemStatistics : 0 and plus alloc size : 1005 is more than total mem size : 610.\n"
)
_REFUSED = "ValueError: remaining_argv: ['{}', '--moon']\n"
_ORT = "[E:onnxruntime:Default, cann_call.cc:139 CannCall] CANN{} ; NPU=0 ; hostname=moon ; expr={};\n"
_NO_CUDA = "Torch not compiled with CUDA enabled\n"


def _trace(file: str, error: str) -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 7, in rise\n    tide()\n{error}'


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_FULL, "EL0004"),
        ("INFO vllm-omni serve diffusion moon/tide\n" + _FULL, "memory-of-vllm-omni"),
        (_trace("/x/vllm_omni/diffusion/engine.py", _NPU_FULL), "memory-of-vllm-omni"),
        (_trace("/x/diffusers/pipelines/moon/pipeline_moon.py", _TORCH_FULL), "memory-of-diffusers"),
        (_trace("/x/diffusers/models/moon.py", _NPU_FULL), "npu-oom"),
        (_trace("/home/me/ComfyUI/comfy/ops.py", _TORCH_FULL), "memory-of-comfyui"),
        (_trace("/home/me/train.py", _TORCH_FULL), "cuda-oom"),
        (_POOL_FULL, "mindspore-memory-full"),
        ("INFO: Sampling captions:\n" + _POOL_FULL, "mindspore-memory-of-sampler"),
        ("python infer.py --config configs/opensora/tide.yaml\n" + _POOL_FULL, "mindspore-memory-of-sampler"),
        (_REFUSED.format("--tide"), "swift-arguments"),
        ("megatron pt --tide\n" + _REFUSED.format("--tide"), "swift-arguments-megatron"),
        (_trace("/x/swift/megatron/moon.py", _REFUSED.format("--tide")), "swift-arguments-megatron"),
        ("megatron sft --tide\n" + _REFUSED.format("--use_fused_swiglu"), "swift-arguments-mindspeed"),
        (_REFUSED.format("--swap-attention"), "swift-arguments-mindspeed"),
        (_trace("/home/me/ComfyUI/comfy/sd.py", "AssertionError: " + _NO_CUDA), "cuda-asked-by-comfyui"),
        (
            "To see the GUI go to: http://127.0.0.1:8188\n!!! Exception during processing !!! "
            + _NO_CUDA
            + 'Traceback (most recent call last):\n  File "/x/execution.py", line 7, in execute\n    rise()\n',
            "cuda-asked-by-comfyui",
        ),
        (_ORT.format(" failure 107001: N/A", "aclrtSetDevice(7)"), "ort-cann-call"),
        (_ORT.format(" failure 500002: ACL_ERROR_GE_FAILURE", 'aclopCompileAndExecute("Tide", 7)'), "ort-cann-compile"),
        (_ORT.format("GRAPH failure -1: GRAPH_FAILED", "ge::aclgrphParseONNXFromMem(moon)"), "ort-cann-graph"),
        (_ORT.format(" failure 100002: ACL_ERROR_REPEAT_INITIALIZE", "aclInit(nullptr)"), "ort-cann-initialised-twice"),
        ("ExternalError: ACL error, the error code is : 500001.  (at /moon/npu.cc:7)\n", "500001"),
        (
            "ValueError: The deprecation tuple ('tide', '1.0.0', 'moon') should be removed since diffusers' version "
            "1.2.0 is >= 1.0.0\n",
            "diffusers-deprecation-overdue",
        ),
        ("!!! Exception !!! " + _NO_CUDA + _trace("/x/moon.py", ""), "cuda-on-npu"),
    ],
)
def test_program_decides_the_remedy(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry
