"""Networks, launchers, GPUs and toolkits: the same words with another cause beside them are told apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_SSH = (
    'Traceback (most recent call last):\n  File "/v/deepspeed/launcher/runner.py", line 7, in main\n'
    "    subprocess.check_call(command, shell=True)\n"
)
_OFI = (
    "n1:7:9 [5] ofi_process_cq:77 NCCL WARN NET/OFI Request 0x7f completed with error. RC: 20. Error: unknown error. "
    "Completed length: 0, Request: { dev: 1, direction: SEND }\n"
)
_DYNAMO = (
    "torch._dynamo.exc.Unsupported: Unsupported method call\n  Explanation: Dynamo does not know how to trace method "
)


def _first(explanation: Explanation) -> str:
    first = explanation.verdict.first
    return first.hit.entry.id if first else ""


@pytest.mark.parametrize(
    ("log", "entry", "told"),
    [
        ("ifa != nullptr. Unable to find address for: ^moon,tide\n", "gloo-interface-syntax", "^moon,tide"),
        ("RuntimeError: ifa != nullptr. Unable to find address for: tide0\n", "gloo-interface", "tide0"),
        ("NVRM: The NVIDIA GPU 0000:7a:00\nNVRM: fallen off the bus and is not responding\n", "gpu-lost-at-load", "7a"),
        ("NVRM: fallen off the bus and is not responding to commands.\n", "gpu-lost", "PCIe"),
        ("m:7:9 [2] transport/nvls.cc:9 NCCL WARN Cuda failure 1 'invalid argument'\n", "nccl-nvls", "(GPU 2)"),
        ("m:7:9 [2] transport/nvls.cc:9 NCCL WARN Cuda failure 2 'out of memory'\n", "cuda-oom-outside-torch", "out of memory"),
        (f"libfabric:7:1::efa:cq:moon():7<warn> err: 20\n{_OFI}", "nccl-efa", "security group"),
        (_OFI, "nccl-ofi", "RC 20"),
        (
            "triton.runtime.errors.PTXASError: Internal Triton PTX codegen error\n"
            "ptxas fatal   : Value 'sm_999a' is not defined for option 'gpu-name'\n",
            "triton-ptxas-old",
            "sm_999a",
        ),
        ("ptxas fatal   : Value 'sm_999a' is not defined for option 'gpu-name'\n", "nvcc-architecture", "toolkit"),
        (
            "INFO moon.py:7 -- Starting Ray\nOSError: AF_UNIX path length cannot exceed 107 bytes: '/moon/tide'\n",
            "ray-temp-dir-long",
            "107",
        ),
        ("OSError: [Errno 36] File name too long: '/moon/tide'\nStarting Ray\n", "path-limits", "/moon/tide"),
        (f"{_DYNAMO}`set_runtime_stats_and_log` of class `Logger`\n", "dynamo-ddp", "DDP wrapper"),
        (f"{_DYNAMO}`info` of class `Logger`\n", "dynamo-unsupported", "`info` of class `Logger`"),
        ("Evicted: The node was low on resource: memory. Container moon was using 7Gi, request is 2Gi, has larger "
         "consumption of memory.\n", "kubernetes-evicted-memory", "container moon used 7Gi, its request was 2Gi"),
        ("Evicted: The node was low on resource: ephemeral-storage.\n", "kubernetes-evicted", "ephemeral-storage"),
        ("slurmstepd: error: Detected 2 oom_kill events in StepId=7.batch.\n", "slurm-oom", "oom_kill"),
        ("Memory cgroup out of memory: Killed process 7 (moon)\n", "oom-killer", "kernel"),
        (
            f"{_SSH}subprocess.CalledProcessError: Command 'ssh -o PasswordAuthentication=no -p 77 tide7 hostname' "
            "returned non-zero exit status 255.\n",
            "ssh-unreachable",
            "tide7",
        ),
        (
            f"{_SSH}subprocess.CalledProcessError: Command '['python', 'm.py']' returned non-zero exit status 255.\n",
            "launcher-child",
            "255",
        ),
        (
            "[autoscaler] Error: No available node types can fulfill resource request\n"
            "             {'GPU': 1.0, 'node:10.0.0.7': 0.001}.\n",
            "ray-no-node-address",
            "10.0.0.7",
        ),
        (
            "[autoscaler] Error: No available node types can fulfill resource request\n             {'GPU': 1.0}.\n",
            "ray-resources",
            "Ray",
        ),
        ("/bin/sh: 1: :/opt/moon/bin/nvcc: not found\n", "cuda-home-joined", "is :/opt/moon:"),
        ("FAILED: moon.o\n/opt/moon:/opt/tide/bin/nvcc -c moon.cu\n", "cuda-home-joined", "/opt/moon:/opt/tide:"),
        ("[INFO] [runner.py:7:main] cmd = pdsh -w a,b python --master_addr= --master_port=7 m.py\n",
         "deepspeed-no-master", "master_addr"),
        (
            "RuntimeError: Failed to recv, got 0 bytes. Connection was likely closed.\n",
            "store-closed",
            "rank 0",
        ),
        (
            "RuntimeError: The server socket has failed to bind to [::]:29511 "
            "(errno: 97 - Address family not supported by protocol).\n",
            "address-family",
            "IPv6",
        ),
    ],
)  # fmt: skip
def test_cause_is_told_by_what_stands_beside_the_words(explained: Explained, log: str, entry: str, told: str) -> None:
    explanation = explained(log)

    assert _first(explanation) == entry
    assert told in explanation.headline()


@pytest.mark.parametrize(
    "log",
    [
        "[W socket.cpp:7] [c10d] The server socket cannot be initialized on [::]:29511 (errno: 97 - Address family not "
        "supported by protocol).\n",
        "[W socket.cpp:7] [c10d] The client socket cannot be initialized to connect to [localhost]:29511 (errno: 97 - "
        "Address family not supported by protocol).\n",
        "[W moon.cpp:7] socket error of HeartbeatMonitor while the job ends\n",
        "PATH=/opt/moon/bin:/opt/tide/bin\nusing /opt/tide/bin/nvcc -V\n",
        "NVLS multicast support is available on dev 0\n",
        "cmd = deepspeed --master_addr=moon --master_port=29500 tide.py\n",
    ],
)
def test_lines_of_runs_that_go_well_are_no_failure(explained: Explained, log: str) -> None:
    assert explained(log).is_healthy


def test_reason_of_dynamo_is_read_below_the_exception_of_a_traceback(explained: Explained) -> None:
    trace = 'Traceback (most recent call last):\n  File "moon.py", line 7, in rise\n    tide()\n'

    assert "`info` of class `Moon`" in explained(f"{trace}{_DYNAMO}`info` of class `Moon`\n").headline()
