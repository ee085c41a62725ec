"""Messages of NVIDIA's container runtime and model servers with the same words and another cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_CLI = "nvidia-container-cli: {}: unknown\n"
_ROW = "| Model | Version | Status |\n| moon  | 7       | {} |\n"
_NVML = _CLI.format("initialization error: nvml error: {}")


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_CLI.format("initialization error: change root failed: no such file or directory"), "nvidia-driver-root"),
        (
            _CLI.format("initialization error: open failed: /run/nvidia/driver/proc/moon: no such file or directory"),
            "nvidia-driver-root",
        ),
        (_CLI.format("device error: no-gpu-has-77MiB-to-run: unknown device"), "nvidia-share-no-memory"),
        (_CLI.format("device error: GPU-7a7a-moon: unknown device"), "nvidia-device-unknown"),
        (_NVML.format("insufficient permissions"), "nvidia-nvml-refused"),
        (_NVML.format("unknown error"), "nvidia-nvml-error"),
        (_NVML.format("driver not loaded"), "nvidia-driver-not-loaded"),
        (_NVML.format("driver/library version mismatch"), "nvml-mismatch"),
        (_NVML.format("gpu is lost"), "gpu-lost"),
        (_CLI.format("initialization error: cuda error: no cuda-capable device is detected"), "nvidia-nvml-error"),
        (
            _CLI.format("initialization error: cuda error: forward compatibility was attempted on non supported hw"),
            "cuda-forward-compatibility",
        ),
        (
            _CLI.format("mount error: write error: /sys/fs/cgroup/devices/moon/devices.allow: operation not permitted"),
            "nvidia-cgroup-write",
        ),
        (
            _CLI.format(
                "container error: failed to get device cgroup mount path: relative path in mount prefix: /../.."
            ),
            "nvidia-cgroup-write",
        ),
        (_CLI.format("container error: cgroup subsystem devices not found"), "nvidia-cgroup"),
        (_CLI.format("ldcache error: process /sbin/ldconfig terminated with signal 9"), "nvidia-ldconfig-ended"),
        (_CLI.format("ldcache error: process /sbin/ldconfig failed with error code: 7"), "nvidia-ldconfig-ended"),
        (
            _CLI.format("ldcache error: open failed: /sbin/ldconfig.real: no such file or directory"),
            "container-ldconfig-missing",
        ),
    ],
)
def test_container_that_nvidias_runtime_does_not_start(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_the_drivers_answer_is_in_the_headline(explained: Explained) -> None:
    assert "unknown error" in explained(_NVML.format("unknown error")).headline()


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (
            _ROW.format("UNAVAILABLE: Internal: failed to stat file /opt/tritonserver/backends/tide"),
            "triton-backend-missing",
        ),
        (_ROW.format("UNAVAILABLE: Invalid argument: tide of moon has 3 dims"), "triton-model-unavailable"),
        (_ROW.format("UNAVAILABLE: Internal: Stub process 'moon_0_0' is not healthy."), "triton-python-stub-died"),
        (_ROW.format("UNAVAILABLE: unloaded"), None),
        (_ROW.format("READY"), None),
        (
            "E0707 07:07:07.777777 7 model_lifecycle.cc:77] failed to load 'moon' version 7: Invalid argument: "
            "instance group moon_0 of model moon has kind KIND_GPU but server does not detect any GPUs\n",
            "triton-no-gpu",
        ),
    ],
)
def test_model_that_triton_does_not_serve(explained: Explained, log: str, entry: str | None) -> None:
    assert entry_of(explained(log)) == entry


def test_a_row_of_tritons_table_names_the_model_and_the_reason(explained: Explained) -> None:
    headline = explained(_ROW.format("UNAVAILABLE: Invalid argument: tide of moon has 3 dims")).headline()

    assert headline == "Triton could not load the model moon: Invalid argument: tide of moon has 3 dims"


_RUNNER = "Error: llama runner process has terminated: {}\n"
_OLD_DRIVER = (
    'time=2026-04-07T07:07:07 level=INFO source=gpu.go:7 msg="unable to load cuda driver library" '
    'library=/usr/lib/libcuda.so.470 error="symbol lookup for cuCtxCreate_v7 failed: undefined symbol"\n'
)
_NO_KERNEL = "CUDA error: no kernel image is available for execution on the device"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_RUNNER.format("exit status 7"), "ollama-runner-ended"),
        (_OLD_DRIVER + _RUNNER.format("exit status 7"), "ollama-driver-old"),
        (_RUNNER.format("signal: killed"), "ollama-runner-killed"),
        (
            'time=2026-04-07T07:07:07 level=ERROR source=server.go:7 msg="llama runner terminated" error="signal: '
            'killed"\n',
            "ollama-runner-killed",
        ),
        (_RUNNER.format("cudaMalloc failed: out of memory"), "ollama-runner-device-memory"),
        (_RUNNER.format("error loading model: unable to allocate CUDA0 buffer"), "ollama-runner-device-memory"),
        (_RUNNER.format(_NO_KERNEL), "ollama-gpu-code"),
        (
            "Error: 500 Internal Server Error: unable to load model: /root/.ollama/models/blobs/sha256-77aa\n",
            "ollama-model-unloadable",
        ),
        (
            f"{_NO_KERNEL}\n  current device: 7, in function ggml_cuda_tide at /x/ggml/src/ggml-cuda/ggml-cuda.cu:7\n",
            "ggml-without-gpu-code",
        ),
        (f"RuntimeError: {_NO_KERNEL}\n", "cuda-no-kernel"),
        (
            "fattn-common.cuh:7: ERROR: CUDA kernel tide has no device code compatible with CUDA arch 520. "
            "ggml-cuda.cu was compiled for: 610,700\n",
            "ggml-without-gpu-code",
        ),
        ("ggml was not compiled with any CUDA arch <= 750\n", "ggml-without-gpu-code"),
    ],
)
def test_model_that_llama_cpp_does_not_run(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_no_room_for_the_cache_is_asked_of_the_other_processes_first(explained: Explained) -> None:
    remedies = explained("ValueError: No available memory for the cache blocks. Try increasing it.\n").remedies()

    assert "another process" in remedies[0]
    assert "--gpu-memory-utilization 0.95" in remedies[1]


def test_host_name_that_ssh_does_not_know_is_not_a_missing_key(explained: Explained) -> None:
    failed = "subprocess.CalledProcessError: Command '['ssh tide7 hostname -I']' returned non-zero exit status 255.\n"

    assert entry_of(explained(failed)) == "ssh-command-failed"
    unknown = f"ssh: Could not resolve hostname tide7: Name or service not known\n{failed}"
    assert entry_of(explained(unknown)) == "ssh-host-name"


@pytest.mark.parametrize(
    "words",
    [
        "failed to solve: rpc error: code = Unknown desc = executor failed running [sh -c moon]: exit code: 137",
        "failed to solve: executor failed running [/bin/bash -c tide]: exit code: 137",
    ],
)
def test_step_of_a_build_that_was_killed_is_told_by_older_builders(explained: Explained, words: str) -> None:
    assert entry_of(explained(f"#11 212.9 Solving: ...working... Killed\n{words}\n")) == "docker-build-killed"
    assert entry_of(explained(words.replace("137", "1"))) != "docker-build-killed"
