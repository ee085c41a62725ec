"""Causes behind general lines of launchers, collectives, machines and schedulers, told apart by what real logs show."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

_WARN = "moon:7:7 [0] misc/tide.cc:7 NCCL WARN "
_COMPLETION = f"{_WARN}NET/IB : Got completion from peer 10.7.7.7<7> with "
_COMMAND = "subprocess.CalledProcessError: Command '{}' returned non-zero exit status 7.\n"
_NO_GPU = "RuntimeError: No CUDA GPUs are available\n"
_DENIED = "PermissionError: [Errno 13] Permission denied"
_CRASH = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f77 (most recent call first):\n"
_LOADING = "Loading checkpoint shards:  {}%|##   | 7/14 [00:07<00:07]\n"
_OFFLOADED = "Adam Optimizer #0 is created with AVX512 arithmetic capability.\n"
_PODS = "Warning  FailedScheduling  default-scheduler  0/7 nodes are available: "


def _raised(error: str, file: str = "/x/moon.py", function: str = "rise", code: str = "tide()") -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 7, in {function}\n    {code}\n{error}\n'


def _frame(file: str, function: str) -> str:
    return f'  File "{file}", line 7 in {function}\n'


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_raised("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. "), "loader-worker-killed"),
        (_raised("RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly"), "dataloader-worker"),
        (_raised(_COMMAND.format("['git', 'clone', 'https://moon.example/tide']")), "child-git"),
        (_raised(_COMMAND.format("['moonlet', '-v']")), "child-command"),
        (_raised("RuntimeError: Socket Timeout", "/x/torch/distributed/distributed_c10d.py", "_store_based_barrier"),
         "init-group-ranks-late"),
        (_raised("RuntimeError: Socket Timeout"), "store-timeout"),
        (_raised("socket.gaierror: [Errno -2] Name or service not known"), "host-name-unknown"),
        (_raised("socket.gaierror: [Errno -2] Name or service not known", "/x/torch/distributed/rendezvous.py", "f"),
         "master-addr-unknown"),
        (_raised("OSError: [Errno 99] Cannot assign requested address"), "address-not-here"),
        (_raised("OSError: [Errno 99] Cannot assign requested address", code="sock.bind(address)"),
         "listen-address-not-here"),
        ("t.py: error: argument --moon: invalid int value: ''\n", "argument-empty"),
        ("t.py: error: argument --moon: invalid int value: '7.0'\n", "argument-of-other-type"),
        ("t.py: error: unrecognized arguments: –moon 7\n", "argument-with-long-dash"),
        ("t.py: error: unrecognized arguments: --moon 7\n", "argument-unrecognized"),
        (_CRASH + _frame("/x/site-packages/moonlet/a.py", "rise"), "crash-in-package"),
        (_CRASH + _frame("/x/site-packages/moonlet/a.py", "rise")
         + _frame("/x/site-packages/torch/utils/data/_utils/worker.py", "_worker_loop"), "crash-in-data-worker"),
        (_CRASH + _frame("/x/moon.py", "rise"), "crash-with-dump"),
        (_LOADING.format(50) + "Killed\n", "killed-while-weights-load"),
        (_LOADING.format(50) + _LOADING.format(100) + "Killed\n", "killed"),
        (f"{_OFFLOADED}Killed\n", "killed-with-optimizer-offloaded"),
        (_raised("MemoryError"), "host-memory"),
        (_raised("MemoryError", "/x/safetensors/torch.py", "load_file"), "host-memory-of-weights"),
        (_raised("OSError: [Errno 5] Input/output error", code="print(moon)"), "terminal-gone"),
        (_raised("OSError: [Errno 5] Input/output error: '/moon/tide'", code="print(moon)"), "io-error"),
        ("t.sh: line 7: torchrun: command not found\n", "python-program-not-on-path"),
        ("t.sh: line 7: moonlet: command not found\n", "command-not-found"),
        (_raised("ImportError: libc10_cuda.so: cannot open shared object file: No such file or directory"),
         "torch-cuda-library-missing"),
        (_raised("ImportError: libmoon.so: cannot open shared object file: No such file or directory"),
         "shared-object"),
        (_raised(f"{_DENIED}: '/moonlets'"), "path-below-root-directory"),
        (_raised(f"{_DENIED}: 'moonlets'"), "working-directory-not-writable"),
        (_raised(f"{_DENIED}: '/moon/tide'"), "permission"),
        (_raised(_NO_GPU), "cuda-none-visible"),
        (_raised(_NO_GPU, "/x/site-packages/ray/_private/worker.py", "main_loop"), "cuda-hidden-by-ray"),
        ("source /usr/local/Ascend/ascend-toolkit/set_env.sh\n" + _raised(_NO_GPU), "cuda-asked-for-on-npu"),
        (f"{_COMPLETION}status=12 opcode=1 len=0 vendor err 129\n", "nccl-ib-retries"),
        (f"{_COMPLETION}status=12 opcode=1 len=0 vendor err 129\n".replace("IB :", "IB:"), "nccl-ib-retries"),
        (f"{_COMPLETION}status=5 opcode=1 len=0 vendor err 244\n", "nccl-ib-flushed"),
        (f"{_COMPLETION}error 4, opcode 1, len 7, vendor err 81\n", "nccl-ib-memory-access"),
        (f"{_WARN}Call to ibv_modify_qp failed with error No data available\n", "nccl-ib-no-gid"),
        (f"{_WARN}Call to ibv_modify_qp failed with error Moon\n", "nccl-ib-peer"),
        (f"{_PODS}7 Insufficient nvidia.com/gpu.\n", "pod-waits-for-devices"),
        (f"{_PODS}3 Insufficient nvidia.com/gpu, 4 node(s) had untolerated taint {{moon: tide}}.\n",
         "kubernetes-schedule"),
    ],
)  # fmt: skip
def test_cause_behind_a_general_line(explained: Callable[..., Explanation], log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


@pytest.mark.parametrize(
    "log",
    [
        "bash: ulimit: max locked memory: cannot modify limit: Operation not permitted\nstep 7 loss 1.5\n",
        "source /usr/local/Ascend/ascend-toolkit/set_env.sh\nimport torch_npu\nstep 7 loss 1.5\n",
        f"{_OFFLOADED}step 7 loss 1.5\n",
    ],
)
def test_job_that_continues_is_healthy(explained: Callable[..., Explanation], log: str) -> None:
    assert explained(log).is_healthy


def test_first_collective_names_the_rank_that_did_not_come(explained: Callable[..., Explanation]) -> None:
    log = _raised(
        "torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [7] "
        "via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout"
    )

    assert explained(log).verdict.rank == 7
