"""Entries for one cause of what tools and runtimes report, and the neighbours that share their words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_BUS_ERROR = "[moon:71 :0:77] Caught signal 7 (Bus error: nonexistent physical address)\n"
_HOOK = (
    "docker: Error response from daemon: failed to create task for container: error running hook: exit status 1, "
    "stdout: , stderr: Auto-detected mode as 'legacy'\n"
)
_MEMLOCK = (
    "[7.7] [moon:71:0]  ib_log.c:7  UCX  ERROR tide_0: ibv_create_cq() failed: Cannot allocate memory. Please set max "
    "locked memory (ulimit -l) to 'unlimited' (current: 71 kbytes)\n"
)
_RESULT = "\n# OSU MPI Tide Latency Test v7.7\n# Size       Avg Latency(us)\n1                       0.71\n"
_BARRIER = (
    "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: "
    "store_based_barrier_key:1 (world_size=2, worker_count={came}, timeout=0:02:00)\n"
)
_RECOMPILED = "torch._dynamo.exc.FailOnRecompileLimitHit: recompile_limit reached with fullgraph=True.\n"
_REASON = (
    "W0107 7 convert_frame.py:7] [2/8]    function: 'tide' (/moon/tide.py:7)\n"
    "W0107 7 convert_frame.py:7] [2/8]    last reason: 2/7: tensor 'X[0]' size mismatch at index 1. expected 71\n"
)
_UV = (
    "  × No solution found when resolving dependencies:\n"
    "  ╰─▶ Because {because} and you require {package}, we can conclude that\n"
    "      the requirements are unsatisfiable.\n"
)
_NO_WHEELS = "{package} has no wheels are available with a matching Python {tag}"
_CPU_INDEX = "uv pip install {package} --index-url https://download.pytorch.org/whl/cpu\n"
_HINT = (
    "\n      hint: `tide` was found on https://moon.example/whl/cu126, but not at the requested version (tide==7.1).\n"
)
_OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.10 GiB "
    "of which 7.00 MiB is free. 71.00 GiB is allocated by PyTorch, with {pool} allocated in private pools (e.g., CUDA "
    "Graphs)\n"
)
_COUNT = (
    "/v/torch/cuda/__init__.py:7: UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). "
    "{reason} (Triggered internally at moon.cpp:7.)\n  return torch._C._cuda_getDeviceCount() > 0\nFalse\n"
)
_NO_PLACE = "'/home/moon/.cache/tide.txt.{end}' -> '/home/moon/.cache/tide.txt'"
_CACHE = "/home/moon/.triton/cache/7f7f628804055ab05f902072733c9ab2d/tide.ttir"
_NOT_THERE = "FileNotFoundError: [Errno 2] No such file or directory: "


def _raised(file: str, code: str, exception: str, function: str = "rise") -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 7, in {function}\n    {code}\n{exception}\n'


_MISMATCH = (
    "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
    "CollectiveFingerPrint(SequenceNumber=7, OpType=BROADCAST, TensorShape=[1]"
)
_GRPC = "grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (f"{_BUS_ERROR} 2 0x0000000000071000 ncclGroupEnd()  ???:0\n", "sigbus-nccl"),
        (f"{_BUS_ERROR} 5 0x0000000000071000 ???()  /usr/lib/moon/libnccl.so.2:0\n", "sigbus-nccl"),
        (f"{_BUS_ERROR} 2 0x0000000000071000 tide_read()  ???:0\n", "sigbus"),
        (
            f"{_HOOK}nvidia-container-cli: mount error: file creation failed: /moon/merged/usr/lib/libtide.so.1: "
            "file exists: unknown.\n",
            "nvidia-library-in-image",
        ),
        (f"{_HOOK}nvidia-container-cli: mount error: failed to add rules: unknown.\n", "container-device"),
        (
            "E: Conflicting values set for option Signed-By regarding source http://moon/ /: !=\n",
            "apt-sources-conflict",
        ),
        ("E: Malformed entry 7 in list file /etc/apt/sources.list.d/moon.list (URI)\n", "apt-sources-malformed"),
        (_COUNT.format(reason="Error 804: forward compatibility was attempted"), "cuda-forward-compatibility-warned"),
        (_COUNT.format(reason="Error 802: system not yet initialized"), "cuda-count-warned"),
        (_BARRIER.format(came=4) + "File already exists: tide.tmp/init\n", "rendezvous-file-stale"),
        (_BARRIER.format(came=4), "two-jobs-one-rendezvous"),
        (_BARRIER.format(came=1) + "File already exists: tide.tmp/init\n", "barrier-store"),
        (
            "AssertionError: libcuda.so cannot found!\nPossible files are located at ['/lib/libcuda.so.1'].Please\n",
            "triton-libcuda-link",
        ),
        ("AssertionError: libcuda.so cannot found!\n", "triton-not-working"),
        ('"hipErrorNoBinaryForGpu: no code object!"\nAborted (core dumped)\n', "rocm-no-kernel"),
        (_REASON + _RECOMPILED, "recompile-limit-reason"),
        (_RECOMPILED, "recompile-limit"),
        ("torch._dynamo.exc.BackendCompilerFailed: backend='tide' raised:\n", "compile"),
        (
            "ValueError: VLLM_PORT 'tcp://10.0.0.7:6785' appears to be a URI. This may be caused by the moon\n",
            "kubernetes-service-variable",
        ),
        (f"{_NOT_THERE}'{_CACHE}.tmp.pid_7_71' -> '{_CACHE}'\n", "triton-cache-race"),
        (_NOT_THERE + _NO_PLACE.format(end="tmp") + "\n", "file-missing"),
        (
            _UV.format(because="there is no version of tide==7.1", package="tide==7.1") + _HINT,
            "resolver-first-index",
        ),
        (_UV.format(because="there is no version of tide==7.1", package="tide==7.1"), "resolver-without-version"),
        (
            _CPU_INDEX.format(package="torch==7.1.0")
            + _UV.format(
                because=_NO_WHEELS.format(package="torch==7.1.0", tag="implementation"), package="torch==7.1.0"
            ),
            "resolver-local-version",
        ),
        (
            _CPU_INDEX.format(package="tide==7.1.0")
            + _UV.format(because=_NO_WHEELS.format(package="tide==7.1.0", tag="implementation"), package="tide==7.1.0"),
            "resolver-without-version",
        ),
        (
            _raised("/v/tide.py", "fcntl.flock(file.fileno(), mode)", "OSError: [Errno 9] Bad file descriptor"),
            "flock-wrong-mode",
        ),
        (
            _raised("/v/tide.py", "fcntl.flock(file, mode)", "OSError: [Errno 524] Unknown error 524"),
            "locks-not-implemented",
        ),
        (_raised("/v/ray/monitor.py", "moon(timeout=4)", _GRPC), "ray-head-unreachable"),
        (_raised("/v/tide.py", "moon(timeout=4)", _GRPC), "remote-service"),
        (
            'zmq.error.ZMQError: ipc path "/moon/tide" is longer than 107 characters (sizeof(sockaddr_un.sun_path)).\n',
            "socket-path-long",
        ),
        (
            "RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against (9, 7, 1) but found runtime "
            "version (8, 7, 0). PyTorch already comes bundled\n",
            "cudnn-other-loaded",
        ),
        (
            "AssertionError: The tide(ray_num_nodes: 0) cannot meet the required number of nodes (`num_nodes`7).\n",
            "ray-too-few-nodes",
        ),
        (
            "torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: "
            "(None, 'g++')\n",
            "compiler-missing",
        ),
        (
            _raised(
                "/v/ray/job_head.py",
                "await tide()",
                "aiohttp.web_exceptions.HTTPRequestEntityTooLarge: Request Entity Too Large",
                "upload_package",
            ),
            "ray-working-dir-large",
        ),
        (_OUT_OF_MEMORY.format(pool="47.11 GiB"), "oom-private-pools"),
        (_OUT_OF_MEMORY.format(pool="1.11 GiB"), "cuda-oom"),
        (_OUT_OF_MEMORY.format(pool="471.11 MiB"), "cuda-oom"),
        (
            _raised("/v/lightning_fabric/distributed.py", "moon()", _MISMATCH, "_sync_ddp"),
            "logged-keys-differ",
        ),
        (_raised("/v/tide.py", "moon()", _MISMATCH), "ranks-differ"),
        (
            _raised("/v/torch/utils/file_baton.py", "time.sleep(7)", "KeyboardInterrupt", "wait"),
            "extension-lock-interrupted",
        ),
        (
            'Thread 71 (idle): "MainThread"\n    wait (torch/utils/file_baton.py:42)\n    rise (tide.py:7)\n',
            "extension-lock-waited-for",
        ),
        (_MEMLOCK, "nccl-memlock"),
        (_MEMLOCK + "step 1\n" * 9, "nccl-memlock"),
    ],
)
def test_cause_is_told_from_what_else_the_log_says(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_card_that_a_benchmark_did_without_is_not_a_failure(explained: Explained) -> None:
    explanation = explained(_MEMLOCK + _RESULT)

    assert explanation.is_healthy
    assert [event.hit.entry.id for event in explanation.verdict.notices] == ["ucx-memlock-survived"]


def test_other_line_than_the_survived_one_is_a_failure(explained: Explained) -> None:
    assert not explained(f"{_MEMLOCK}{_RESULT}OSError: [Errno 12] Cannot allocate memory\n").is_healthy
    assert not explained(f"{_MEMLOCK}{_RESULT}RuntimeError: no moon above the tide 7\n").is_healthy


def test_reason_of_a_hook_stands_below_the_mode(explained: Explained) -> None:
    assert "failed to add rules" in explained(f"{_HOOK}nvidia-container-cli: failed to add rules of tide\n").headline()


_ATTEMPT = "filelock/_api.py[line:7] - DEBUG: Attempting to acquire lock {lock} on /moon/tide.lock\n"
_ACQUIRED = "filelock/_api.py[line:7] - DEBUG: Lock {lock} acquired on /moon/tide.lock\n"
_SLEPT = "INFO 07-07 07:07:07 worker.py:7] Sleep mode freed {freed} GiB memory, 47.11 GiB memory is still in use.\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_ATTEMPT.format(lock=7) + _ATTEMPT.format(lock=71), "file-lock-waited-for"),
        (_ATTEMPT.format(lock=7) + _ACQUIRED.format(lock=7), None),
        (_ATTEMPT.format(lock=7) + "step 1\n" * 9, None),
        (_SLEPT.format(freed="0.00") + "step 1\n", "vllm-sleep-frees-nothing"),
        (_SLEPT.format(freed="17.00") + "step 1\n", None),
        (_SLEPT.format(freed="0.00") + "step 1\n" * 40, None),
        (_COUNT.format(reason="Error 804: forward compatibility was attempted") + "step 1\n" * 40, None),
    ],
)
def test_news_counts_only_where_the_log_ends_with_it(explained: Explained, log: str, entry: str | None) -> None:
    assert entry_of(explained(log)) == entry
