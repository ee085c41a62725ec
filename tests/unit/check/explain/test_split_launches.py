"""Failures of launches, proxies, schedulers and containers with the same words and another cause, and neighbours."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_TRACE = 'Traceback (most recent call last):\n  File "{file}", line 7, in {function}\n    {code}\n{error}\n'
_SOCKET = (
    "RuntimeError: The client socket has failed to connect to any network address of ({name}, 7077). The client socket "
    "has failed to connect to {address} (errno: {reason}).\n"
)
_NO_ROUTE = "113 - No route to host"
_RAY = (
    "Error: No available node types can fulfill resource request {{'CPU': 7.0, 'GPU': 7.0}}.\nResources\nUsage:\n"
    " 0.0/70.0 CPU\n{more} 0B/7.00GiB memory\n\nDemands:\n {{'CPU': 7.0, 'GPU': 7.0}}: 1+ pending tasks/actors\n"
)
_PROXY = (
    "requests.exceptions.ProxyError: HTTPSConnectionPool(host='{host}', port=443): Max retries exceeded with url: "
    "/moon (Caused by ProxyError('Cannot connect to proxy.', OSError('Tunnel connection failed: {status}')))\n"
)
_TWO_OPTIMIZERS = "ValueError: You cannot specify an {} in the config file and in the code at the same time.\n"
_ALLTOALL = "RuntimeError: ProcessGroupNCCL only supports alltoall* for NCCL lib version >= 2.7.0\n"
_MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\n"
_MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  777.10.01  Fri Jul 7\n"
_NO_MEMORY = "sbatch: error: Memory specification can not be satisfied\n"
_REFUSED = "sbatch: error: Batch job submission failed: Requested node configuration is not available\n"
_PARTITION = "sbatch: error: *** Error partition 'moon' is not valid for this job\n"
_CU_INIT = "2018-07-07 07:07:07.7: E tensorflow/moon.cc:7] failed call to cuInit: CUDA_ERROR_UNKNOWN\n"

_NINJA = "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.\n"
_BIND = "[W socket.cpp:7] The server socket has failed to bind to [::]:{port} (errno: 98 - Address already in use).\n"
_ACL_INIT = "RuntimeError: Initialize:build/moon.ts:7 NPU function error: aclInit, error code is 507899\n"
_SHADOW = (
    "slurmstepd: error: pyxis:          7 Segmentation fault      (core dumped) | pwck -R /moon > /dev/null 2>&1\n"
    "slurmstepd: error: pyxis:     nvidia-container-cli: ldcache error: process /moon terminated with signal 11\n"
)
_NCCL = "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"


def _raised(error: str, code: str = "moon(tide)", file: str = "/x/moon.py", function: str = "rise") -> str:
    return _TRACE.format(file=file, function=function, code=code, error=error)


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        ("ValueError: invalid literal for int() with base 10: 'GPU-77aa00'\n", "visible-devices-by-uuid"),
        ("ValueError: invalid literal for int() with base 10: 'MIG-77aa00'\n", "visible-devices-by-uuid"),
        ("ValueError: invalid literal for int() with base 10: 'GPU tide'\n", "operand-types"),
        ("RuntimeError: Unconvertible NCCL type\n", "nccl-type-unconvertible"),
        (_raised("RuntimeError: Unconvertible NCCL type", "tide.to(torch.cfloat)"), "nccl-type-complex"),
        (_raised("NameError: name 'dist' is not defined", function="mpi_discovery"), "deepspeed-mpi-rank-unsaid"),
        (_raised("NameError: name 'dist' is not defined"), "name-undefined"),
        ("AssertionError: MPI rank 7 does not match torch rank 0\n", "deepspeed-mpi-rank-differs"),
        (_TWO_OPTIMIZERS.format("optimizer"), "optimizer-given-twice"),
        ("--use_galore false\n" + _TWO_OPTIMIZERS.format("optimizer"), "optimizer-given-twice"),
        ("--optim galore_adamw\n" + _TWO_OPTIMIZERS.format("optimizer"), "galore-with-deepspeed-optimizer"),
        ("ValueError: Invalid rank 7, rank should be in the interval [0, 3]\n", "sampler-rank-out-of-range"),
        (_raised("AssertionError", "assert len(indices) == self.total_size"), "sampler-fewer-samples-than-ranks"),
        (_raised("AssertionError", "assert len(tides) == self.moons"), "python-exception"),
        (_CU_INIT, "cuinit-unknown"),
        (
            f"{_CU_INIT}2018-07-07 07:07:07.7: I retrieving CUDA diagnostic information for host: moon7\n",
            "cuinit-unknown-on-host",
        ),
        (_SOCKET.format(name="moon7", address="moon7.tide:7077", reason=_NO_ROUTE), "store-name-of-other-network"),
        (_SOCKET.format(name="moon7", address="moon7:7077", reason=_NO_ROUTE), "store-no-route"),
        (_SOCKET.format(name="10.7.0.7", address="10.7.0.7:7077", reason=_NO_ROUTE), "store-no-route"),
        (
            _SOCKET.format(name="moon7", address="moon7:7077", reason="111 - Connection refused"),
            "store-refused",
        ),
        (_ALLTOALL, "torch-built-with-old-nccl"),
        ("NCCL version 2.7.8+cuda11.0\n" + _ALLTOALL, "torch-built-with-other-nccl"),
        (
            "creating a new group named: ep_size_77\nAssertionError: 7 is not divisible by 77\n",
            "deepspeed-expert-parallel-size",
        ),
        ("AssertionError: 7 is not divisible by 77\n", "size-indivisible"),
        (_RAY.format(more=""), "ray-started-without-devices"),
        (_RAY.format(more=" 7.0/7.0 GPU\n"), "ray-request-of-devices"),
        (_MISMATCH, "nvml-mismatch"),
        (f"{_MISMATCH}{_MODULE}ii  nvidia-smi  777.20-1  amd64  tide\n", "nvml-mismatch-versions"),
        (f"{_MISMATCH}{_MODULE}ii  nvidia-smi  777.10.01-1  amd64  tide\n", "nvml-mismatch"),
        (_PARTITION, "slurm-partition-for-job"),
        (f"{_PARTITION}sbatch: error: *** Error: CPU job setup is not valid\n", "slurm-taken-for-cpu-job"),
        (_NO_MEMORY + _REFUSED, "slurm-memory-of-node"),
        (f"sbatch --mem=777G tide.sh\n{_NO_MEMORY}{_REFUSED}", "slurm-memory-of-node-asked"),
        (f"sbatch: error: CPU count per node can not be satisfied\n{_REFUSED}", "slurm-cpus-of-node"),
        (_REFUSED, "slurm-configuration"),
        ("UserWarning: CUDA initialization: CUDA unknown error - this may be due to it\n", "cuda-unknown-warned"),
        ("RuntimeError: CUDA unknown error - this may be due to an environment\n", "cuda-unknown-error"),
        (_PROXY.format(host="huggingface.co", status="403 Forbidden"), "proxy-forbids-hub"),
        (_PROXY.format(host="moon.example", status="403 Forbidden"), "proxy-forbids"),
        (_PROXY.format(host="moon.example", status="503 Service Unavailable"), "proxy-cannot-reach"),
        (
            "error: pyxis: mkdir: cannot create directory '/run/tide': Permission denied\n",
            "enroot-directory-denied",
        ),
        ("mkdir: cannot create directory '/run/enroot': Permission denied\n", "enroot-directory-denied"),
        ("mkdir: cannot create directory '/run/tide': Permission denied\n", "shell-target-not-writable"),
        (
            "tide-nsenter: failed to create user namespace: No space left on device\n",
            "user-namespaces-used-up",
        ),
        ("ERROR  : Failed to create user namespace: Permission denied\n", "user-namespace-apparmor"),
        (
            'i: m\nount error: file creation failed: /x/merged/usr/bin/tide-smi: file exists\\\\n\\""": unknown\n',
            "nvidia-library-in-image",
        ),
        (_NINJA, "child-ninja"),
        (
            f"/x/moon.cpp:7:7: error: the tide is not declared\nninja: build stopped\n{_NINJA}",
            "compiler-error-of-torch-extension",
        ),
        (f"/x/moon.cpp:7:7: fatal error: Python.h: No such file or directory\n{_NINJA}", "python-header-missing"),
        (f"{_BIND.format(port=27777)}{_raised('RuntimeError: Address already in use')}", "port-taken-above"),
        (f"{_BIND.format(port=29500)}{_raised('OSError: [Errno 98] Address already in use')}", "port-taken-above"),
        (_raised("RuntimeError: Address already in use"), "address-in-use"),
        (_raised("RuntimeError: mesh size 7 does not match world size 1"), "mesh-and-world-differ"),
        (_ACL_INIT, "507899"),
        (f"{_ACL_INIT}EL0005: [PID: 7] 2026-07-07-07:07:07.7 The resources are busy.\n", "npu-held-by-container"),
        (f"{_ACL_INIT}    drv devId is invalid, drv devId=0, retCode=0x7020010[FUNC:Init]\n", "npu-held-by-container"),
        ("halGetDeviceInfo get the moon's version failed , ret:87[FUNC:Init]\n", "507899"),
        (
            f"{_NCCL}Last error:\n[Service thread] Error encountered progressing operation=Connect, res=3\n",
            "nccl-last-error-connect",
        ),
        (_NCCL, "nccl-system"),
        ("moon:7:7 [0] misc/tide.cc:7 NCCL WARN Net : Connection closed by remote peer\n", "nccl-remote"),
        (_SHADOW, "enroot-reason"),
        ("srun: fatal: Can not execute /moon/bin/python\n", "slurm-program-not-on-host"),
        (_raised("KeyError: 'the tide 7 is too high'"), "python-exception"),
        (_raised("KeyError: 'high tide'"), "key-missing"),
        (_raised("OSError: (External) ACL error, the error code is : 500002."), "500002"),
        ("ModuleNotFoundError: No module named 'setuptools'\n", "setuptools-missing"),
        ("ModuleNotFoundError: No module named 'pkg_resources'\n", "api-removed"),
    ],
)
def test_a_line_or_value_of_the_log_tells_causes_apart(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


@pytest.mark.parametrize(
    "log",
    [
        "Could not set the permissions on the file '/moon/tide'. Error: [Errno 30] Read-only file system: '/moon'.\n"
        "Continuing without setting permissions.\n",
        "ERROR: pip's dependency resolver does not currently take into account all the packages that are installed.\n"
        "moon 0.7.0 requires tide<7.0dev,>=6.7, but you have tide 5.7 which is incompatible.\n",
        "ERROR: moon 0.7.0 has requirement tide==6.7, but you'll have tide 5.7 which is incompatible.\n",
    ],
)
def test_a_tool_that_reports_and_continues_is_not_a_failure(explained: Explained, log: str) -> None:
    assert explained(log).is_healthy


def test_port_that_a_warning_above_names_is_told(explained: Explained) -> None:
    explanation = explained(_BIND.format(port=27777) + _raised("RuntimeError: Address already in use"))

    assert explanation.headline().startswith("port 27777 is taken") and ":27777`" in explanation.remedies()[0]


def test_first_error_of_slurmd_is_told(explained: Explained) -> None:
    stamp = "[2027-07-07T07:07:07.777] [7.0] error: "
    log = f"{stamp}moon: couldn't mkdir /run/moon/7: No such file or directory\n{stamp}tide: init() failed with rc=-1\n"

    assert "moon: couldn't mkdir /run/moon/7" in explained(log).headline()


def test_operator_that_cann_names_beside_an_asynchronous_failure_is_told(explained: Explained) -> None:
    log = "RuntimeError: The Inner error is reported as above. The current working operator name is MoonTide.\n"

    assert "MoonTide" in explained(log).headline()


def test_torch_of_another_version_than_a_package_asks_for_is_told(explained: Explained) -> None:
    log = "moon 0.7.0 requires torch==2.7.0, but you have torch 2.6.0 which is incompatible.\n"

    assert entry_of(explained(log)) == "pip-torch-pin"


def test_code_below_frames_of_equal_length_is_not_a_broken_line(explained: Explained) -> None:
    log = (
        'Traceback (most recent call last):\n  File "/tide/venv/bin/moonrise-of-tidessss", line 5, in <module>\n'
        '    from moon.app import rise\n  File "/tide/moon/moon/application/of/rising_tides.py", line 117\n'
        "    match tide.lower():\n          ^\nSyntaxError: invalid syntax\n$ python --version\nPython 3.9.7\n"
    )
    lines = log.split("\n")

    assert len(lines[1]) == len(lines[3])
    assert entry_of(explained(log)) == "syntax-match"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        ("bash: orted: 未找到命令\n", "mpi-daemon-not-on-path"),
        ("bash: orted\u00a0: commande introuvable\n", "mpi-daemon-not-on-path"),
        ("moon.sh: 第 7 行：torchrun：未找到命令\n", "python-program-not-on-path"),
        ("bash: mpirun: Kommando nicht gefunden.\n", "system-program-missing"),
        ("bash: /moon/run.sh: /bin/bash^M: 解释器错误: 没有那个文件或目录\n", "crlf"),
        ("bash: ./moon.sh: 权限不够\n", "permission"),
        ("cp: 写入'/moon/x' 时出错: 设备上没有空间\n", "disk-full-of-command"),
        ("段错误（核心已转储）\n", "sigsegv"),
        ("moon.sh: 第 7 行： 777 已杀死               python tide.py\n", "killed"),
        ("moon.cpp:7:10: 致命错误：acl/acl.h：没有那个文件或目录\n", "cann-header-missing"),
        (
            "/opt/moon/libtide.so: 无法添加符号: 文件格式错误\ncollect2: error: ld returned 1 exit status\n",
            "library-of-another-architecture",
        ),
        ("找不到命令时请先激活环境\nstep 7 loss 7.0\n", None),
        ("模型回答：段错误是一种程序错误\nstep 7 loss 7.0\n", None),
    ],
)
def test_messages_of_a_host_in_another_language_are_read_as_in_english(
    explained: Callable[..., Explanation], log: str, entry: str | None
) -> None:
    assert entry_of(explained(log)) == entry


def test_the_line_shown_has_the_words_of_the_log(explained: Callable[..., Explanation]) -> None:
    first = explained("tide\nbash: orted: 未找到命令\n").verdict.first

    assert first is not None
    assert "未找到命令" in first.text


_DIED = (
    f"{'-' * 74}\nA daemon (pid 777) died unexpectedly with status {{}} while attempting\nto launch so we are "
    f"aborting.\n{'-' * 74}\nmpirun noticed that the job aborted, but has no info as to the process\n"
    "that caused that situation.\n"
)


def test_a_daemon_of_mpi_that_died_yields_to_why_ssh_failed(explained: Callable[..., Explanation]) -> None:
    assert entry_of(explained(_DIED.format(127))) == "mpi-daemon-died"
    assert "status 255" in explained(_DIED.format(255)).headline()
    refused = "ssh: connect to host moon7 port 22: Connection refused\n" + _DIED.format(255)
    assert entry_of(explained(refused)) == "ssh-refused"
