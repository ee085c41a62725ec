"""The same words where the log shows another system: AMD's GPU, Windows, WSL, compose, a login that was made."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_NO_DRIVER = "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU\n"
_INSUFFICIENT = "cuda runtime error (35) : CUDA driver version is insufficient for CUDA runtime version\n"
_NOT_LINKED = "/usr/bin/ld: cannot find -lcuda\ncollect2: error: ld returned 1 exit status\n"
_GATED = (
    "huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=7)\n\n"
    "Cannot access gated repo for url https://huggingface.co/moon/Tide-7B/resolve/main/config.json.\n"
)


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (f"{_NO_DRIVER}GPU: AMD Radeon RX 6700 XT\n", "cuda-build-on-amd"),
        (f"{_INSUFFICIENT} - GPU models and configuration: AMD Raven\n", "cuda-build-on-amd"),
        (f"VGA compatible controller: [AMD/ATI] Navi 22\n{_NO_DRIVER}", "cuda-build-on-amd"),
        (f"{_NO_DRIVER}GPU 0: AMD Radeon Graphics\nGPU 1: NVIDIA GeForce RTX 3060\n", "cuda-no-driver"),
        (f"torch 2.7.0+rocm6.3\n{_NO_DRIVER}GPU: AMD Radeon RX 6700 XT\n", "cuda-no-driver"),
        (f"{_NO_DRIVER}CPU: AMD EPYC 7742\n", "cuda-no-driver"),
        (_INSUFFICIENT, "cuda-driver-version"),
        ("loading E:/Program Files (x86)/moon/tide.bin\nIllegal instruction\n", "illegal-instruction-on-windows"),
        ("C:\\Users\\me\\tide.exe\nprocess ended with 3221225501\n", "illegal-instruction-on-windows"),
        ("loading /models/tide.bin\nIllegal instruction (core dumped)\n", "illegal-instruction"),
        (
            f"{_NOT_LINKED}/usr/lib/wsl/lib/libcuda.so.1 is not a symbolic link\n",
            "linker-without-driver-library-in-wsl",
        ),
        (f"Linux 5.15.90.1-microsoft-standard-WSL2\n{_NOT_LINKED}", "linker-without-driver-library-in-wsl"),
        (_NOT_LINKED, "linker-without-driver-library"),
        ("moon-1  | /models/tide.sh: Permission denied\nmoon-1 exited with code 1\n", "permission-in-compose"),
        (
            "web-server-2  | PermissionError: [Errno 13] Permission denied: '/cache/tide'\n",
            "permission-in-compose",
        ),
        ("tide.sh: line 7: /models/tide.sh: Permission denied\n", "permission"),
        (f"Login successful\n{_GATED}", "gated-although-logged-in"),
        (f"Token is valid (permission: read).\n{_GATED}", "gated-although-logged-in"),
        (f"{_GATED}\nhuggingface-cli login\n   ==> login successfully, same error\n", "gated-although-logged-in"),
        (f"{_GATED}Please log in.\n", "gated-without-login"),
        (_GATED, "hub-gated-repository"),
    ],
)
def test_a_system_named_in_the_log_outranks_the_general_cause(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


_XTUNER = (
    "10/18 16:45:32 - mmengine - WARNING - WARNING: command error: ''{}''!\n10/18 16:45:32 - mmengine - WARNING - \n"
)
_GLOO = "RuntimeError: Gloo connect failed: Connection refused\n"
_NO_PLATFORM = "INFO 05-20 20:12:25 [__init__.py:252] No platform detected, vLLM is running on UnspecifiedPlatform\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_XTUNER.format("Adafactor is already registered in optimizer at torch.optim"), "mmengine-registers-twice"),
        (
            "KeyError: 'NPUAdamW is already registered in optimizer at mmengine.optim.optimizer.builder'\n",
            "mmengine-registers-twice",
        ),
        (_XTUNER.format("the tide of the moon"), "command-error-of-xtuner"),
        (f"{_GLOO}ray start --address 192.168.7.7:6379\n", "gloo-refused-somewhere"),
        (f"torchrun --nnodes=2 moon.py\n{_GLOO}", "gloo-refused-somewhere"),
        (f"kubectl get pods\nmoon-0 0/1 CrashLoopBackOff 7\n{_NO_PLATFORM}", "vllm-no-platform-in-pod"),
    ],
)
def test_a_registration_error_ends_the_program(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_gloo_on_one_host_and_vllm_without_a_platform_are_as_before(explained: Explained) -> None:
    assert entry_of(explained(f"torchrun --nnodes=1 moon.py\n{_GLOO}")) != "gloo-refused-somewhere"
    assert explained(f"{_NO_PLATFORM}0.8.5\n").is_healthy
