"""Causes of failures of serving engines, which other lines of the log or the code of a check tell apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_SITE = "/x/lib/python3.11/site-packages"
_KERNEL = (
    'Traceback (most recent call last):\n  File "/x/site-packages/sgl_kernel/load_utils.py", line 7, in load\n'
    "    raise ImportError(error_msg)\nImportError:\n"
    "[sgl_kernel] CRITICAL: Could not load any common_ops library!\n\nAttempted locations:\n1. moon\n\n"
    "Please ensure sgl_kernel is properly installed with:\npip install --upgrade sgl_kernel\n\n"
    "Error details from previous import attempts:\n- ImportError: {}\n"
    "- ModuleNotFoundError: No module named 'common_ops'\n"
)
_SLICE = (
    "E0917 16:23:12.983412  8123 worker_pool.cpp:281] Worker: Process failed for slice (opcode: 1, source_addr: 0x7f, "
    "length: 7, dest_addr: 0x7f, local_nic: mlx5_0, peer_nic: 192.0.2.7:77@mlx5_0, dest_rkey: 7): {}\n"
    "[2026-07-07 07:07:07 TP0] Prefill transfer failed for request rank=0 req.rid='77' with exception "
    "KVTransferError(bootstrap_room=7): Failed to send kv chunk of 7 to 192.0.2.7:77\n"
)
_REGISTERED = "E0730 11:49:18.000077 77 rdma_context.cpp:236] Failed to register memory 0x7efb94000000: {}\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_KERNEL.format("/x/common_ops.abi3.so: undefined symbol: _ZNK3c106SymInt6sym_neERKS0_"), "other-torch"),
        (_KERNEL.format("/x/common_ops.abi3.so: undefined symbol: cuGreenCtxDestroy"), "driver-function"),
        (_KERNEL.format("libnuma.so.1: cannot open shared object file: No such file or directory"), "numa"),
        (_KERNEL.format("the moon is out"), "library"),
    ],
)
def test_reason_below_a_message_tells_why_a_kernel_library_does_not_load(
    explained: Explained, log: str, entry: str
) -> None:
    assert entry_of(explained(log)) == f"sglang-kernel-{entry}"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_SLICE.format("local protection error"), "slice-protection"),
        (_SLICE.format("transport retry counter exceeded"), "slice-unreachable"),
        (_SLICE.format("remote access error"), "slice-remote-access"),
        (
            _SLICE.format("local protection error") + _SLICE.format("work request flushed error"),
            "slice-protection",
        ),
        (_REGISTERED.format("Bad address [14]"), "register-gpu"),
        (_REGISTERED.format("Cannot allocate memory [12]"), "register-locked"),
        (_REGISTERED.format("Resource temporarily unavailable [11]"), "register-keys"),
    ],
)
def test_reason_of_a_transfer_goes_before_the_request_that_failed(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == f"mooncake-{entry}"
