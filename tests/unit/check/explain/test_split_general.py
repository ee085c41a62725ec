"""Causes behind one general line, told apart by the message's own words, the frames, and what stands beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

_FULL = "OSError: [Errno 28] No space left on device\n"
_WATCHDOG = (
    "[E ProcessGroupNCCL.cpp:475] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, "
    "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800328 milliseconds before timing out.\n"
)
_NO_BLOCKS = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`\n"
_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.00 GiB.\n"
_DDP = (
    "ValueError: DistributedDataParallel device_ids and output_device arguments only work with "
    "single-device/multiple-device GPU modules or CPU modules, but got device_ids [0], output_device 0, and module "
    "parameters {{{}}}.\n"
)
_NO_NUMBERS = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0\n"
_BAR = "Tokenizing train dataset:   9%|##        | 2700/29000 [29:55<4:48:08, 1.55 examples/s]"


def _raised(error: str, file: str = "/x/moon.py", function: str = "rise") -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 7, in {function}\n    tide()\n{error}'


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_raised(_FULL), "disk-full"),
        (_raised(_FULL, "/x/datasets/arrow_writer.py", "write"), "disk-full-of-dataset-cache"),
        (_raised(_FULL, "/x/huggingface_hub/file_download.py", "http_get"), "disk-full-of-downloads"),
        (_raised(_FULL, "/x/transformers/trainer.py", "_save_checkpoint"), "disk-full-of-checkpoints"),
        (_raised("RuntimeError: CUDA error: invalid device ordinal\n"), "cuda-invalid-device"),
        (
            _raised("RuntimeError: CUDA error: invalid device ordinal\n", "/x/modeling.py", "dispatch_model"),
            "device-map-beyond-gpus",
        ),
        (_BAR + _WATCHDOG, "watchdog-in-preparation"),
        (_BAR.replace("29:55", "00:05") + _WATCHDOG, "watchdog"),
        (_WATCHDOG, "watchdog"),
        ("_pickle.UnpicklingError: invalid load key, 'v'.\n", "weights-are-lfs-pointer"),
        ("_pickle.UnpicklingError: invalid load key, '<'.\n", "weights-are-a-web-page"),
        ("_pickle.UnpicklingError: invalid load key, '\\x7f'.\n", "checkpoint-broken"),
        ("x.cpp:7:1: fatal error: hccl/moon_pub.h: No such file or directory\n", "cann-header-missing"),
        ("x.cpp:7:1: fatal error: tide/hccl/moon.h: No such file or directory\n", "header-missing"),
        (_raised("TypeError: unsupported operand type(s) for |: 'type' and 'NoneType'\n"), "python-before-unions"),
        (_raised("TypeError: unsupported operand type(s) for |: 'int' and 'NoneType'\n"), "none-used"),
        (_NO_BLOCKS, "kv-cache-no-blocks"),
        ("gpu_memory_utilization: 0.4\n" + _NO_BLOCKS, "kv-cache-share-too-small"),
        ("gpu_memory_utilization: 0.9\n" + _NO_BLOCKS, "kv-cache-no-blocks"),
        (_raised(_OOM, "/x/vllm/worker.py", "profile_run"), "engine-trial-step-memory"),
        (_raised(_OOM, "/x/vllm/worker.py", "execute_model"), "serving-memory"),
        (_DDP.format("device(type='cpu')"), "ddp-model-on-cpu"),
        (_DDP.format("device(type='cuda', index=0), device(type='cuda', index=7)"), "ddp-over-device-map"),
        (_DDP.format("device(type='meta'), device(type='cpu')"), "ddp-over-devices"),
        ("AttributeError: 'float' object has no attribute 'strip'\n", "empty-cell-as-text"),
        ("AttributeError: 'float' object has no attribute 'moon'\n", "plain-type-attribute"),
        (_raised(_NO_NUMBERS, "/x/generation/utils.py", "sample"), "generate-nan"),
        ("--dtype half\n" + _raised(_NO_NUMBERS, "/x/generation/utils.py", "sample"), "generate-nan-to-half"),
        ("ValueError: Type bf16 is not supported on your device.\n", "deepspeed-device-without-bf16"),
        ("DS_ACCELERATOR=cpu\nValueError: Type bf16 is not supported on your device.\n", "deepspeed-took-the-cpu"),
        ("      Exit Code:    139\n", "container-segmentation-fault"),
        ("      Exit Code:    135\n", "container-bus-error"),
        ("Unable to connect to the server: dial tcp 10.7.7.7:6443: i/o timeout\n", "kubernetes-server-unanswered"),
        ("Unable to connect to the server: dial tcp: lookup moon: no such host\n", "kubernetes-server-name"),
    ],
)
def test_cause_behind_a_general_line(explained: Callable[..., Explanation], log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_indented_exception_below_a_frame_without_blanks_is_read(explained: Callable[..., Explanation]) -> None:
    log = (
        'File "/tmp/pip-install-7/moon_7/setup.py", line 7, in <module>\n          import torch\n'
        "      ModuleNotFoundError: No module named 'torch'\n"
    )

    assert entry_of(explained(log)) == "torch-needed-to-build"
