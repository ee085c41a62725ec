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
_OTHER_KERNELS = "EZ9999  Cannot parse json for config file [/x/tbe/kernel/config/{}/tide.json].\n"
_NO_DTYPE = "Tensor scale not implemented for {}, should be in dtype support list [DT_INT64].\n"
_OF_TWO_SIZES = (
    "EI0005: The arguments for collective communication are inconsistent between ranks: tag [AllReduce_moon], "
    "parameter [count], local [7], remote [77]\n"
)
_LINK = "[ERROR] HCCL(7,moon):2023 [comm_base.cc:1018][7] | 192.168.100.100(1) | 192.168.100.101(0) | server | {} |\n"
_REMOTE = "RuntimeError: SUSPECT REMOTE ERROR, EE8888: Inner Error!\n[ERROR] 2026 (Device:0, RankID:{}) ERR00100\n"
_TWICE = "[libprotobuf ERROR descriptor_database.cc:644] File already exists in database: {}.proto\n"
_DCMI = "[ERROR] moon.go:7 deviceManager init failed, prepare dcmi failed, err: dcmi init failed, error code: -8005\n"
_QUOTA = "  Normal   Unschedulable  93s   volcano  queue resource quota insufficient\n"
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
        (_MIXED.format("cuda:0", "cpu", "moon", "tide"), "mix-argument-on-cpu"),
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
        (_OTHER_KERNELS.format("ascend910b"), "kernel-description"),
        ("Ascend-cann-kernels-910b_8.0.RC1_linux.run\n" + _OTHER_KERNELS.format("ascend910b"), "kernel-description"),
        ("Ascend-cann-kernels-910b_8.0.RC1_linux.run\n" + _OTHER_KERNELS.format("ascend910"), "kernels-of-other-chip"),
        ("Ascend-cann-kernels-310p_8.0.0_linux.run\n" + _OTHER_KERNELS.format("ascend910"), "kernels-of-other-chip"),
        ("Ascend-cann-kernels-910_8.0.0_linux.run\n" + _OTHER_KERNELS.format("ascend310p"), "kernels-of-first-chip"),
        (
            "[ERROR] RUNTIME(7,x):2025 [moon.cc:7]GetVisibleDevices:[INIT][DEFAULT]set ASCEND_RT_VISIBLE_DEVICES:[6] "
            "error, input data rang[0-4)\n",
            "visible-device-range",
        ),
        ("RuntimeError: Load op info form json config failed, version: Ascend7\n", "mindspore-chip-without-operators"),
        ("EZ9903: soc_version Ascend310Z7 is not supported\n", "chip-not-supported"),
        (_NO_DTYPE.format("DT_FLOAT16"), "npu-dtype-refused"),
        ("serve moon --dtype half\n" + _NO_DTYPE.format("DT_FLOAT16"), "npu-float16-of-command"),
        ("serve moon --dtype=bfloat16\n" + _NO_DTYPE.format("DT_BFLOAT16"), "npu-bfloat16-of-command"),
        ("serve moon --dtype=bfloat16\n" + _NO_DTYPE.format("DT_FLOAT16"), "npu-dtype-refused"),
        (_OF_TWO_SIZES, "ranks-differ-in-size"),
        (_raised("RuntimeError: moon\n", "/x/mindspore/nn/cell.py") + _OF_TWO_SIZES, "ranks-differ-in-size-mindspore"),
        (_LINK.format("no connect"), "hccl-link-no-connect"),
        (_LINK.format("time out"), "hccl-link"),
        (_REMOTE.format("-1"), "suspect-remote-of-one-process"),
        (_REMOTE.format("3"), "suspect-remote"),
        ("torchrun: world_size 8\n" + _REMOTE.format("-1"), "suspect-remote"),
        (_TWICE.format("dvpp_tensor_shape") + "torchair failed\n", "protobuf-of-cann-twice"),
        (_TWICE.format("sentencepiece_model"), "protobuf-file-twice"),
        (_DCMI, "device-plugin-dcmi-init"),
        (_DCMI + "npu-smi info\ndcmi module initialize failed. ret is -8005\n", "device-plugin-dcmi-of-node"),
        ("  Queue:   moon\n" + _QUOTA, "volcano-queue-quota"),
        ("    huawei.com/Ascend310P:   4\n  Queue:   moon\n" + _QUOTA, "volcano-queue-quota-npu"),
        ("    nvidia.com/gpu:   4\n  Queue:   moon\n" + _QUOTA, "volcano-queue-quota"),
        (_raised("ModuleNotFoundError: No module named 'vllm.benchmarks'\n"), "vllm-without-benchmarks"),
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
