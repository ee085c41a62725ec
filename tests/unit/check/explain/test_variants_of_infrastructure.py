"""Networks, launchers, GPUs and toolkits: the same words with another cause beside them are told apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

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


@pytest.mark.parametrize(
    ("log", "entry", "told"),
    [
        ("ifa != nullptr. Unable to find address for: ^moon,tide\n", "gloo-interface-pattern", "^moon,tide"),
        ("RuntimeError: ifa != nullptr. Unable to find address for: tide0\n", "gloo-interface-missing", "tide0"),
        ("NVRM: The NVIDIA GPU 0000:7a:00\nNVRM: fallen off the bus and is not responding\n", "gpu-lost-at-load", "7a"),
        ("NVRM: fallen off the bus and is not responding to commands.\n", "gpu-lost", "PCIe"),
        ("[2] transport/nvls.cc:9 NCCL WARN Cuda failure 1 'invalid argument'\n", "nccl-nvls-fabric-manager", "GPU 2"),
        ("m:7:9 [2] transport/nvls.cc:9 NCCL WARN Cuda failure 'out of memory'\n", "cuda-oom-outside-torch", "memory"),
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
         "consumption of memory.\n", "kubernetes-evicted-memory", "Container moon was using 7Gi, request is 2Gi"),
        ("Evicted: The node was low on resource: ephemeral-storage.\n", "kubernetes-evicted", "ephemeral-storage"),
        ("slurmstepd: error: Detected 2 oom_kill events in StepId=7.batch.\n", "slurm-oom", "oom_kill"),
        ("Memory cgroup out of memory: Killed process 7 (moon)\n", "oom-killer", "kernel"),
        (
            f"{_SSH}subprocess.CalledProcessError: Command 'ssh -o PasswordAuthentication=no -p 77 tide7 hostname' "
            "returned non-zero exit status 255.\n",
            "ssh-command-failed",
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
        (
            "INFO ray_utils.py:7] Waiting for creating a placement group of specs for 70 seconds. "
            "specs=[{'node:10.0.0.7': 0.001, 'GPU': 1.0}]. Check `ray status`.\n",
            "ray-waits-for-placement",
            "10.0.0.7",
        ),
        ("/bin/sh: 1: /opt/moon/bin/nvcc: not found\nninja: build stopped\n", "nvcc-missing", "/opt/moon/bin/nvcc"),
        ("RuntimeError: Could not find nvcc\n", "nvcc-missing", "nvcc"),
        (
            "n1:7:9 [3] NCCL WARN NET/OFI Request 0x7f completed with error. RC: 113. Error: 4126 (Unresponsive "
            "receiver (tide)). Completed length: 0\n",
            "efa-unresponsive",
            "Unresponsive receiver",
        ),
        ("[7.7] NVRM: GPU 0000:7a:00.0: RmInitAdapter failed! (0x7:0x7:77)\n", "gpu-init-failed", "0000:7a:00.0"),
        ("NVRM: The NVIDIA probe routine was not called for 7 device(s).\n", "gpu-held-by-other-driver", "7 NVIDIA"),
        (
            "RuntimeError: Gloo connectFullMesh failed with [tide.cc:77] timed out connecting: SO_ERROR: Connection "
            "refused, remote=[127.0.1.1]:7077\n",
            "gloo-loopback",
            "loopback",
        ),
        ("RuntimeError: Gloo connectFullMesh failed with [tide.cc:77] no error\n", "gloo-connect", "interface"),
        ("ptxas /tmp/m.ptx, line 5; fatal : Unsupported .version 8.7; current version is '8.4'\n",
         "triton-ptx-version", "PTX 8.7"),
        (
            "[trainer1|1]:NCCL INFO NCCL_SOCKET_IFNAME set to tide2\n[trainer1|1]:ncclInternalError: moon.\n"
            "[trainer1|1]:Last error:\n"
            "[trainer1|1]:ncclSocketInit: connecting to address  with family 7 is neither AF_INET(2)\n",
            "nccl-interface-without-address",
            "tide2",
        ),
        ("RuntimeError: Timed out after 77 seconds waiting for clients. 3/7 clients joined.\n",
         "store-clients-missing", "only 3 of 7"),
        ("Failed to initialize NVML: Insufficient Permissions\n", "nvml-no-permission", "permissions"),
        ("ValueError: Total available GPUs 8 is less than total desired GPUs 16\n", "ray-too-few-gpus", "16 devices"),
        ("ValueError: Cannot provide a placement group of placement_group_specs=[{'GPU': 1.0}] within 77 seconds.\n",
         "ray-no-placement", "77 s"),
        ("pdsh@moon: tide: rcmd: socket: Permission denied\n", "pdsh-rsh", "ssh"),
        ("PermissionError: [Errno 13] Permission denied: '/tide'\n", "path-below-root-directory", "/tide"),
        ("pdsh@moon: Couldn't load any pdsh modules\n", "pdsh-modules", "root"),
        (
            'RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED at m.cpp. device=7, num_gpus=1\n',
            "cuda-device-beyond",
            "GPU number 7",
        ),
        ("Unable to determine the device handle for GPU0000:7A:00.0: Unknown Error\n", "gpu-lost", "0000:7A:00.0"),
        ("[7.7] NVRM: RmInitAdapter failed! (0x7:0xffff:77)\n", "gpu-init-failed", "see it: "),
        ("OSError: AF_UNIX path too long\n", "socket-path-long", "socket"),
        ("Unsupported: hasattr Moon to\n\nfrom user code:\n", "dynamo-unsupported-notebook", "hasattr Moon"),
        ("[rank0]:[E m.cpp:7] [PG 0 Rank 0] Heartbeat monitor timed out! Process will be terminated.\n",
         "nccl-watchdog-hangs", "watchdog"),
    ],
)  # fmt: skip
def test_cause_is_told_by_what_stands_beside_the_words(explained: Explained, log: str, entry: str, told: str) -> None:
    explanation = explained(log)

    assert entry_of(explanation) == entry
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
        "Unsupported: 7 of 9 moons\nstep 1 loss 2.0\n",
        "INFO ray_utils.py:7] Waiting for creating a placement group of specs for 10 seconds. specs=[{'GPU': 1.0}].\n"
        "INFO worker.py:7] Loading the moon\n",
        "NVLS multicast support is available on dev 0\n",
        "cmd = deepspeed --master_addr=moon --master_port=29500 tide.py\n",
    ],
)
def test_lines_of_runs_that_go_well_are_not_failures(explained: Explained, log: str) -> None:
    assert explained(log).is_healthy


def test_reason_of_dynamo_is_read_below_the_exception_of_a_traceback(explained: Explained) -> None:
    trace = 'Traceback (most recent call last):\n  File "moon.py", line 7, in rise\n    tide()\n'

    assert "`info` of class `Moon`" in explained(f"{trace}{_DYNAMO}`info` of class `Moon`\n").headline()
