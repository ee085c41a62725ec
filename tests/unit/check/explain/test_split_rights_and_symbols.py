"""Permission errors by kind of path; missing symbols by their library; Xids by their number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]
_DENIED = "PermissionError: [Errno 13] Permission denied: "
_WINDOWS = "PermissionError: [WinError 5] Access is denied: "
_DOWNLOAD = (
    'Traceback (most recent call last):\n  File "/x/moon.py", line 7, in {function}\n    tide()\n'
    "PermissionError: [Errno 13] Permission denied: '/moonlets'\n"
)
_INSTALL = (
    "CMake Error at cmake_install.cmake:7 (file):\n  file {words}\n"
    '  to "{path}": Permission denied.\nCall Stack (most recent call first):\n  cmake_install.cmake:77 (include)\n'
)
_SYMBOL = "ImportError: {path}: undefined symbol: {symbol}\n"
_XID = "[Mon Jan  7 07:07:07 2027] NVRM: Xid (PCI:0000:77:00): {number}, pid=77, name=moon, {words}\n"
_KERNEL = "[ERROR] RUNTIME(7,python): Aicore kernel execute failed, device_id=7, fault kernel_name=MoonDiv_a7, tide\n"
_ARGUMENTS = (
    "[ERROR] RUNTIME(7,python): GetArgsInfo:[AIC_INFO] args(0 to 9) after execute:{arguments}, 0x1, 0x1, 0,  \n"
)


@pytest.mark.parametrize(
    ("log", "entry", "told"),
    [
        ("Failed to open file '/dev/accel/accel7': Permission denied\n", "accelerator-node-permission", "accel7"),
        ("Unable to open /dev/kfd read-write: Permission denied\n", "accelerator-node-permission", "/dev/kfd"),
        ("moon: /dev/nvidia7: Permission denied\n", "nvidia-node-permission", "/dev/nvidia7"),
        (f"{_DENIED}'/dev/davinci_manager'\n", "npu-device-permission", "davinci_manager"),
        (f"{_DENIED}'/moon-ci/triton/AB7/tmp.pid_7'\n", "triton-cache-permission", "/moon-ci/triton was"),
        (f"{_DENIED}'/moon/hf-cache/hub/tide'\n", "mounted-cache-permission", "/moon/hf-cache belongs"),
        (f"{_DENIED}'/home/moon/.cache/huggingface/tide'\n", "cache-permission", "/home/moon/.cache"),
        (f"{_DENIED}'/moon/tide'\n", "permission", "/moon/tide"),
        (
            _INSTALL.format(words="INSTALL cannot copy", path="/usr/local/lib/moon.so"),
            "install-prefix-not-writable",
            "/usr",
        ),
        (_INSTALL.format(words="INSTALL cannot copy", path="/moon/lib/moon.so"), "permission", "/moon"),
        (f"Moon Access Denied, {_WINDOWS}'C:\\\\moon\\\\.triton'\n", "windows-cache-denied", ".triton"),
        (f"{_WINDOWS}'C:\\\\moon\\\\tide.bin'\n", "windows-access-denied", "tide.bin"),
        (_DOWNLOAD.format(function="snapshot_download"), "model-cache-below-root-directory", "/moonlets"),
        (_DOWNLOAD.format(function="save_tide"), "path-below-root-directory", "/moonlets"),
    ],
)
def test_denied_path_is_explained_by_its_kind(explained: Explained, log: str, entry: str, told: str) -> None:
    explanation = explained(log)

    assert entry_of(explanation) == entry
    assert told in explanation.headline()


@pytest.mark.parametrize("path", ["/moon/tide", "/moon-ci/triton/AB7/tmp.pid_7", "C:\\\\moon\\\\tide.bin"])
def test_group_of_a_device_is_told_for_devices_only(explained: Explained, path: str) -> None:
    first = explained(f"{_DENIED}'{path}'\n").verdict.first

    assert first is not None
    assert not any("usermod" in remedy for remedy in first.hit.entry.remedies)


@pytest.mark.parametrize(
    ("path", "symbol", "entry", "told"),
    [
        ("/x/moon.so", "_ZNK3c105Moon4tideEv", "symbol-of-torch", "torch"),
        ("/x/moon.so", "_ZTIN3c1020MoonE", "symbol-of-torch", "torch"),
        ("/x/moon.so", "rocblas_create_handle", "rocm-library-not-linked", "not linked with ROCm's rocblas"),
        ("/x/moon.so", "rocblas_tide_ex7", "symbol-of-rocm", "rocblas"),
        ("/x/moon.so", "hipblasLtMoon", "symbol-of-rocm", "hipblas"),
        ("/x/moon.so", "hipMoonAsync", "symbol-of-hip-runtime", "hipMoonAsync"),
        ("/x/moon.so", "cudnnMoonForward", "symbol-of-cuda-library", "cudnn"),
        ("/x/moon.so", "ncclMoonWindow", "symbol-of-cuda-library", "nccl"),
        ("/x/moon.so", "cuMoonCreate", "symbol-of-cuda-driver", "NVIDIA driver"),
        ("/x/torch/lib/libtorch_cuda.so", "ncclMoonWindow", None, "nccl"),
        (
            "/x/mindspore/_c_moon.so",
            "cudnnMoonSize, version libcudnn.so.7",
            "cuda-library-older-than-framework",
            "mindspore",
        ),
        ("/x/libmoon.so", "_ZN4tide4moonEv, version libcudnn_moon.so.7", "libraries-mixed", "libcudnn_moon"),
        ("/x/libtide.so", "aclrtMoonlight", "symbol-of-cann", "CANN"),
        ("/x/libmoon.so", "_ZN4moon4tideEv", "undefined-symbol", "_ZN4moon4tideEv"),
    ],
)
def test_missing_symbol_names_its_library(
    explained: Explained, path: str, symbol: str, entry: str | None, told: str
) -> None:
    explanation = explained(_SYMBOL.format(path=path, symbol=symbol))

    assert told in explanation.headline()
    assert entry is None or entry_of(explanation) == entry
    assert entry is not None or entry_of(explanation) != "symbol-of-cuda-library"


def test_symbol_without_its_library_is_explained(explained: Explained) -> None:
    assert entry_of(explained("undefined symbol: _ZNK3c105Moon4tideEv\n")) == "symbol-of-torch"
    assert entry_of(explained("undefined symbol: aclrtMoonlight\n")) == "symbol-of-cann"


@pytest.mark.parametrize(
    ("number", "words", "entry"),
    [
        (13, "Graphics Exception: 48", "xid-graphics-exception"),
        (32, "Channel ID 7", "xid-push-buffer"),
        (48, "DBE", "xid-double-bit-error"),
        (62, "0000", "xid-internal-controller"),
        (109, "CTX SWITCH TIMEOUT", "xid-context-switch"),
        (119, "Timeout waiting for RPC from GSP! Expected function 77: 79", "xid-gsp"),
        (120, "GSP task exception", "xid-gsp"),
        (140, "moon", "xid-unrecovered-ecc"),
        (145, "RLW_MOON Fatal", "xid-nvlink-five"),
        (150, "MSE_MOON Nonfatal", "xid-nvlink-five-nonfatal"),
        (777, "moon: 48", "xid-other"),
    ],
)
def test_xid_is_told_by_its_own_number(explained: Explained, number: int, words: str, entry: str) -> None:
    explanation = explained(_XID.format(number=number, words=words))

    assert entry_of(explanation) == entry
    assert entry == "xid-other" or "0000:77:00" in explanation.headline()


def test_error_that_a_link_corrected_is_not_a_failure(explained: Explained) -> None:
    corrected = _XID.format(number=121, words="C2C Link corrected error")

    assert [event.hit.entry.id for event in explained(corrected).verdict.notices] == ["xid-chip-to-chip"]
    assert explained(corrected).is_healthy
    assert entry_of(explained(corrected + _XID.format(number=48, words="DBE"))) == "xid-double-bit-error"


@pytest.mark.parametrize(
    ("arguments", "host"),
    [
        ("0x4f771170, 0x124207ea7700, 0x124207700c00", "0x4f771170"),
        ("0x124207ea7700, 0xaaaaf7771170, 0x124207700c00", "0xaaaaf7771170"),
        ("0x12c0c7ea7700, 0x7f7771170abc, 0x12c0c7700c00", "0x7f7771170abc"),
        ("0x124207ea7700, 0x124207700c00, 0x124207700d00", None),
        ("0x124207ea7700, 0x124207700c00, 0x4f771170", None),
        ("0x1, 0x0, 0x124207700c00", None),
    ],
)
def test_host_address_among_arguments_of_a_kernel(explained: Explained, arguments: str, host: str | None) -> None:
    explanation = explained(_KERNEL + _ARGUMENTS.format(arguments=arguments))

    assert (entry_of(explanation) == "kernel-argument-in-host-memory") is (host is not None)
    assert "MoonDiv" in explanation.headline()
    assert host is None or host in explanation.headline()


@pytest.mark.parametrize(
    ("chip", "operator", "entry"),
    [
        ("ascend310p", "MoeMoonTide", "moe-on-310p"),
        ("ascend310p", "MoonTide", "operator-missing-on-310p"),
        ("ascend777", "MoeMoonTide", "operator-without-kernel-for-chip"),
    ],
)
def test_operator_that_a_chip_lacks(explained: Explained, chip: str, operator: str, entry: str) -> None:
    log = (
        "RuntimeError: call aclnnMoon failed, detail:EZ1001: Get regInfo failed, The binary_info_config.json of "
        f"socVersion [{chip}] does not support opType [{operator}].\n"
    )
    explanation = explained(log)

    assert entry_of(explanation) == entry
    assert chip in explanation.headline() and operator in explanation.headline()


def test_tensorflow_without_tensorrt_is_healthy(explained: Explained) -> None:
    line = (
        "W dso_loader.cc:7] Could not load dynamic library '{0}'; dlerror: {0}: cannot open shared object file: tide\n"
    )

    assert explained(line.format("libnvinfer_plugin.so.7") + "Num GPUs Available:  7\n").is_healthy
    assert not explained(line.format("libcudnn.so.7")).is_healthy
