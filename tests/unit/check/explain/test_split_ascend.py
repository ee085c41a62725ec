"""Causes behind general messages of torch, torch_npu, CANN and HCCL, told apart by values, frames and other lines."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

_NO_CONTEXT = (
    "RuntimeError: NPU function error: call aclrtMoon failed, error code is 107002\n[Error]: The context is empty.\n"
    "EE9999: Inner Error!\n        ctx is NULL![FUNC:GetDevErrMsg]\n"
)
_FORKED = (
    "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
    "'spawn' start method\n"
)
_MIXED = (
    "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, {} and {}! (when "
    "checking argument for argument {} in method wrapper_CUDA_{})\n"
)
_NO_CUDA = "AssertionError: Torch not compiled with CUDA enabled\n"
_NO_HCCL = "ImportError: libhccl.so: cannot open shared object file: No such file or directory\n"
_NO_RANK = "RuntimeError: NPU function error: AclrtSynchronizeMoon, error code is 107020\n"
_CRASHED = (
    "RuntimeError: NPU function error: AclrtSynchronizeMoon, error code is 507015\n[Error]: The aicore execution is "
    "abnormal.\nEZ9999: Inner Error!\n       The extend info: errcode:(0x800000, 0, 0) errorStr: The DDR address of "
    "the MTE instruction is out of range.\n       Aicore kernel execute failed, device_id=0, fault kernel_name={}\n"
)
_LATE = "EI0006: 2025 Getting socket times out. Reason: Remote Rank did not send the data in time.\n"
_BAR = "Running tokenizer on dataset:   9%|##        | 2700/29000 [{}<4:48:08, 1.55 examples/s]\n"
_FULL = "EL0004: [PID: 7] 2025 Failed to allocate memory.\n"
_NO_KEY = "KeyError: '{}'\n"
_NO_BACKEND = "NotImplementedError: Could not run '{}' with arguments from the '{}' backend.\n"


def _raised(error: str, file: str = "/x/moon.py", function: str = "rise", code: str = "tide()") -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 7, in {function}\n    {code}\n{error}'


def _unset(name: str) -> str:
    return _raised(_NO_KEY.format(name), "/x/os.py", "__getitem__", "raise KeyError(key) from None")


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_raised(_NO_CONTEXT), "107002"),
        (_raised(_NO_CONTEXT, "/x/threading.py", "run"), "thread-without-context"),
        (_raised(_NO_CONTEXT, "/x/torch/utils/data/_utils/worker.py", "_worker_loop"), "worker-without-context"),
        (_raised(_FORKED), "fork-after-npu"),
        (_raised(_FORKED, "/x/torch/utils/data/_utils/worker.py", "_worker_loop"), "dataloader-worker-on-device"),
        (_raised(_FORKED, "/x/multiprocess/pool.py", "worker"), "dataset-map-on-device"),
        (_raised(_FORKED, "/x/multiprocessing/pool.py", "worker"), "pool-forked-after-device"),
        (_MIXED.format("cuda:0", "cpu", "index", "_index_select"), "input-left-on-cpu"),
        (_MIXED.format("cpu", "cuda:0", "index", "_index_select"), "layer-left-on-cpu"),
        (_MIXED.format("cpu", "cuda:0", "mat2", "mm"), "input-left-on-cpu"),
        (_MIXED.format("cuda:0", "cpu", "mat2", "mm"), "layer-left-on-cpu"),
        (_MIXED.format("cuda:0", "cuda:7", "mat2", "mm"), "mix-two-cards"),
        (_MIXED.format("cuda:0", "cpu", "moon", "tide"), "device-mix-named"),
        (_raised(_NO_CUDA), "cuda-on-npu"),
        (_raised(_NO_CUDA, "C:\\moon\\tide.py"), "cpu-build-of-torch"),
        (_raised(_NO_CUDA, "/Users/moon/tide.py"), "cuda-asked-on-mac"),
        (_raised(_NO_CUDA, "/x/torch_npu/tide.py"), "cuda-asked-on-npu"),
        (_raised(_NO_HCCL), "libhccl-missing"),
        (_raised(_NO_HCCL, "/x/ipykernel/moon.py"), "cann-not-in-notebook"),
        (_raised(_NO_HCCL, "/x/ray/_private/workers/default_worker.py", "<module>"), "cann-not-in-ray"),
        (_raised(_NO_RANK), "107020"),
        (_raised(_NO_RANK, "/x/transformers/training_args.py", "main_process_first"), "wait-for-main-process"),
        (_raised(_NO_RANK, "/x/transformers/trainer.py", "evaluation_loop"), "wait-in-evaluation"),
        (_raised(_CRASHED.format("GatherMoon_7")), "kernel-index-out-of-range"),
        (_raised(_CRASHED.format("moon_tide_kernel_7")), "kernel-of-triton"),
        (_raised(_CRASHED.format("FlashAttentionMoon_7")), "kernel-of-attention"),
        (_raised(_CRASHED.format("MoonTide_7")), "aicore-address"),
        (_LATE, "EI0006"),
        (_BAR.format("00:05") + _LATE, "EI0006"),
        (_BAR.format("29:55") + _LATE, "hccl-connect-in-preparation"),
        (_FULL, "EL0004"),
        ("HCCL_BUFFSIZE=200\n" + _FULL, "EL0004"),
        ("HCCL_BUFFSIZE=2000\n" + _FULL, "hccl-buffer-fills-device"),
        ("vllm serve moon --gpu-memory-utilization 0.85\n" + _FULL, "EL0004"),
        ("vllm serve moon --gpu-memory-utilization 0.97\n" + _FULL, "engine-takes-all-memory"),
        (_unset("TIDE_LEVEL"), "variable-unset"),
        (_unset("TIDE_API_KEY"), "variable-of-service-key"),
        (_unset("SLURM_MOON"), "variable-of-slurm"),
        (_unset("ASCEND_HOME_PATH"), "variable-of-cann"),
        (_NO_KEY.format("TIDE_API_KEY"), "key-missing"),
        (_NO_BACKEND.format("moon::tide", "CUDA"), "cuda-kernel-on-other-backend"),
        (_NO_BACKEND.format("torchvision::nms", "CUDA"), "torchvision-without-cuda"),
        (_NO_BACKEND.format("torchvision::nms", "PrivateUse1"), "torchvision-without-npu"),
        (_NO_BACKEND.format("c10d::moon_", "CPU"), "cuda-kernel-on-other-backend"),
    ],
)
def test_cause_behind_a_general_message(explained: Callable[..., Explanation], log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_line_of_many_conditional_entries_keeps_the_one_without_conditions(
    explained: Callable[..., Explanation],
) -> None:
    """More entries ask for text beside this line than are kept of other lines."""
    assert entry_of(explained("RuntimeError: NPU function error: moon, error code is 507015\n")) == "507015"
