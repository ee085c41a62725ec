"""Failures whose cause is a fact elsewhere in the log: a release, an architecture, an image, a command, a script."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_HEADER = "/x/moon.cpp:7:10: fatal error: {}: No such file or directory\n"
_SMI = "| NVIDIA-SMI {0}       Driver Version: {0}       CUDA Version: {1}     |\n"
_CONFLICT = (
    "The conflict is caused by:\n    The user requested torch==2.7.1\n    {} depends on torch=={}\n"
    "ERROR: ResolutionImpossible: for help visit https://pip.pypa.io\n"
)
_TARGETS = "ValueError: Target modules ['{}'] not found in the base model. Please check the target modules\n"
_BATCHES = (
    "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
    "gradient_acc_step * world_size 64 != 4 * 2 * {}\n"
)
_UNREACHED = (
    "[W socket.cpp:663] [c10d] The client socket has failed to connect to [moon.example]:29500 (errno: 111 - "
    "Connection refused).\n"
)
_SCRIPT = "#!/bin/bash\nNNODES={}\nMASTER_ADDR={}\ntorchrun --nproc_per_node 7 --nnodes $NNODES \\\n    moon.py tide\n"
_NO_GPU = "RuntimeError: No HIP GPUs are available\n"
_FLASH = "NotImplementedError: Sharded Tide requires Flash Attention enabled models.\n"
_REFUSED_TYPE = '"message": "{}"\n],\n"name": "Tide_7",\n"result": "failed",\n"type": "ai.onnx::17::TideMax"\n}},\n'


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        ("CANN: 7.7.RC1\n" + _HEADER.format("experiment/moon/tide.h"), "cann-header-of-other-release"),
        (_HEADER.format("experiment/moon/tide.h"), "cann-header-missing"),
        ("CANN: 7.7.RC1\n" + _HEADER.format("acl/acl.h"), "cann-header-missing"),
        ("CANN: 7.7.RC1\n" + _HEADER.format("hccl/hccl.h"), "cann-header-missing"),
        (
            "/x/tide.asc:7:9: error: use of undeclared identifier 'ebb_half'; did you mean 'ebb___cce_half'?\n",
            "ascendc-kernel-of-other-cann",
        ),
        ("/x/tide.cpp:7:9: error: use of undeclared identifier 'ebb'; did you mean 'Ebb'?\n", "compiler-error"),
        (_REFUSED_TYPE.format("The type is not supported."), "atc-report-type"),
        (_REFUSED_TYPE.format("The tide is high."), None),
        ("uname -m: aarch64\n" + _CONFLICT.format("torch-npu 2.7.1", "2.7.1+cpu"), "pip-conflict-of-x86-wheel"),
        (_CONFLICT.format("torch-npu 2.7.1", "2.7.1+cpu"), "pip-conflict-local-version"),
        ("for aarch64\n" + _CONFLICT.format("moon 7.1", "2.7.1+cu777"), "pip-conflict-local-version"),
        ("MODEL=THUDM/chatglm2-6b\n" + _TARGETS.format("q_proj"), "lora-targets-of-chatglm"),
        ("MODEL=THUDM/chatglm2-6b\n" + _TARGETS.format("query_key_value"), "lora-targets-absent"),
        ("MODEL=Qwen/Qwen-14B-Chat\n" + _TARGETS.format("q_proj"), "lora-targets-of-qwen"),
        ("MODEL=Qwen/Qwen2-7B\n" + _TARGETS.format("W_pack"), "lora-targets-absent"),
        ("torchrun --nproc_per_node 7 moon.py\n" + _BATCHES.format(1), "deepspeed-world-of-one-launched"),
        ("torchrun --nproc_per_node 1 moon.py\n" + _BATCHES.format(1), "deepspeed-world-of-one"),
        ("python moon.py\n" + _BATCHES.format(1), "deepspeed-world-of-one"),
        ("It works when I set NCCL_P2P_DISABLE=1, but why?\n", "nccl-p2p-off-helps"),
        ("export NCCL_P2P_DISABLE=1\nstep 7 loss 0.7\n", None),
        (_UNREACHED + _SCRIPT.format(1, "10.7.7.7"), "master-address-of-one-node"),
        (_UNREACHED + _SCRIPT.format(1, "127.0.0.1"), "store-refused"),
        (_UNREACHED + _SCRIPT.format(2, "10.7.7.7"), "store-refused"),
        ("docker run rocm/moon:7.7 tide\n" + _SMI.format("570.7", "12.8") + _NO_GPU, "image-of-rocm-on-nvidia"),
        ("docker pull ghcr.io/moon/tide:sha-77-rocm\n" + _SMI.format("570.7", "12.8") + _FLASH, "tgi-image-of-rocm"),
        ("docker pull ghcr.io/moon/tide:sha-77\n" + _SMI.format("570.7", "12.8") + _FLASH, "tgi-sharded-flash"),
        (
            "pip install torch --index-url https://download.pytorch.org/whl/cu118\n" + _SMI.format("470.7", "10.2"),
            "cuda-over-driver-by-commands",
        ),
        ("pip install torch --index-url https://download.pytorch.org/whl/cu118\n" + _SMI.format("470.7", "11.4"), None),
        ("conda install pytorch-cuda=12.1 -c nvidia\n" + _SMI.format("570.7", "12.8"), None),
    ],
)
def test_fact_elsewhere_in_the_log_decides(explained: Explained, log: str, entry: str | None) -> None:
    found = explained(log)

    assert (None if found.is_healthy else entry_of(found)) == entry


def test_container_of_nvidia_asks_for_a_newer_driver_before_an_older_image(explained: Explained) -> None:
    log = (
        "ERROR: This container was built for NVIDIA Driver Release 570.86 or later, but\n"
        "       version 535.104.05 was detected and compatibility mode is UNAVAILABLE.\n"
    )

    first, second = explained(log).remedies()

    assert "570.86 or newer" in first
    assert "535.104.05" in second


@pytest.mark.parametrize(
    ("log", "is_failure"),
    [
        (_UNREACHED + _SCRIPT.format(2, "10.7.7.7"), True),
        (_UNREACHED + _SCRIPT.format(2, "10.7.7.7") + "step 7 loss 0.7\n", False),
        (_UNREACHED + "the moon is up\nthe tide is low\nthe sea is calm\nthe night is long\nit is dark\n\n", False),
    ],
)
def test_complaint_beside_a_script_alone_is_the_failure(explained: Explained, log: str, is_failure: bool) -> None:
    assert explained(log).is_healthy is not is_failure
