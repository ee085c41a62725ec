"""Variants of one message: each gets the remedy of its own cause, not that of the variant which is met more often."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]


@pytest.mark.parametrize(
    ("line", "known_as"),
    [
        ("RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.", "cuda-ptx-newer"),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=47, name=python, Ch 08, intr 1. MMU Fault", "xid-page-fault"),
        ("NVRM: Xid (PCI:0000:3b:00): 13, Graphics Exception: ESR 0x504730=0x12000e", "xid-graphics-exception"),
        ("NVRM: Xid (PCI:0000:3b:00): 43, pid=4711, Ch 00000010", "xid-channel-ended"),
        ("NVRM: Xid (PCI:0000:3b:00): 48, pid=4711, Double Bit ECC Error", "xid-double-bit-error"),
        ("NVRM: Xid (PCI:0000:3b:00): 119, Timeout after 6s of waiting for RPC response from GPU0", "xid-gsp"),
        ("RuntimeError: Triton Error [CUDA]: out of memory", "cuda-oom-outside-torch"),
        ("/x.h:4:2: error: #error C++17 or later compatible compiler is required to use PyTorch.", "cpp17-asked-for"),
        ("/usr/bin/ld: tide.o: undefined reference to `c10::Error::Error(std::string)'", "torch-symbols-of-other-abi"),
        ("/usr/bin/ld: cannot find -lmoon: No such file or directory", "linker"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (86x1024 and 768x1)", "shape-mismatch"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x2 and 1x64)", "shape-mismatch"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x768 and 1x294912)", "bitsandbytes-packed-weight"),
        ("ValueError: unsupported pickle protocol: 5", "pickle-protocol"),
        ("ValueError: Unable to find latest file at /moon/latest, if trying to load", "deepspeed-latest-missing"),
        ("ValueError: Expected a string path to an existing deepspeed config, or a dict", "deepspeed-config-path"),
        ("ValueError: DeepSpeed Zero-3 is not compatible with `low_cpu_mem_usage=True`", "zero3-and-device-map"),
        ("ValueError: ZeRO inference only makes sense with ZeRO Stage 3", "zero-inference-stage"),
        ("NotImplementedError: Could not run 'aten::x' with arguments from the 'Meta' backend.", "operator-on-meta"),
        (
            "requests.HTTPError: 401 Client Error: Unauthorized for url: https://moon.example/x",
            "requests-refused-access",
        ),
        (
            "requests.HTTPError: 429 Client Error: Too Many Requests for url: https://moon.example/x",
            "requests-too-many",
        ),
        (
            "requests.exceptions.ReadTimeout: HTTPConnectionPool(host='localhost', port=8000): Read timed out. (read "
            "timeout=60)",
            "host-no-answer",
        ),
        ("rtSetDevice execute failed, reason=[device id error][FUNC:FuncErrorReason]", "107001"),
        ("tsd client wait response fail, device response code[1]. unknown device error.[FUNC:WaitRsp]", "tsd-open"),
        ("RuntimeError: Failed to infer device type", "vllm-no-device"),
        ("3 packets transmitted, 0 received, 100% packet loss, time 2041ms", "host-ping"),
        ("RuntimeError: don't know how to restore data location of (tagged with npu:0)", "checkpoint-of-npu-elsewhere"),
        ("RuntimeError: 'weight' must be 2-D", "sharded-weight-used"),
        ("[ERROR] RUNTIME(47,python): RAS, device_id=3, event_id=0x8c2fa001", "npu-event-memory-usage"),
        ("[ERROR] RUNTIME(47,python): RAS, device_id=3, event_id=0x81b18603", "npu-event-port"),
        ("Error Code: 80C9800A", "npu-event-kernel-timeout"),
        ("bash: /opt/tide: /root/conda/bin/python: bad interpreter: Permission denied", "interpreter-denied"),
        ("Fatal Python error: Bus error\n\nThread 0x7f (most recent call first):", "sigbus"),
        ("Fatal Python error: Aborted\n\nThread 0x7f (most recent call first):", "sigabrt"),
        ("CondaHTTPError: HTTP 404 NOT FOUND for url <https://moon.example/noarch>", "conda-channel-absent"),
        ("OSError: [Errno 99] Cannot assign requested address", "address-not-here"),
        ("OSError: [Errno 113] No route to host", "no-route-to-that-host"),
        ("TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'packing'", "argument-of-trl"),
        ("AttributeError: module 'pyarrow.lib' has no attribute 'ListViewType'", "pyarrow-mixed"),
        ("AttributeError: Can't get attribute 'Moon' on <module '__main__' from 'tide.py'>", "pickle-of-script"),
        (
            "RuntimeError: Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
            "layer-device-differs",
        ),
        (
            "RuntimeError: Input type (torch.HalfTensor) and bias type (torch.FloatTensor) should be the same",
            "layer-dtype-differs",
        ),
        ("Error 804: forward compatibility was attempted on non supported HW", "cuda-forward-compatibility"),
        ("OSError: [Errno 107] Transport endpoint is not connected", "socket-not-connected"),
        ("df: /mnt/tide: Transport endpoint is not connected", "mount-gone"),
        ("ModuleNotFoundError: No module named 'imp'", "python-renamed"),
        ("ModuleNotFoundError: No module named 'distutils.msvccompiler'", "distutils-part-gone"),
    ],
)
def test_variant_of_a_message_has_an_entry_of_its_own(explained: Explained, line: str, known_as: str) -> None:
    assert entry_of(explained(f"{line}\n")) == known_as


def test_lost_heartbeat_of_another_program_is_not_a_lost_npu(explained: Explained) -> None:
    assert entry_of(explained("ERROR node 3 lost heartbeat, removing it from the cluster\n")) != "EL0001"
