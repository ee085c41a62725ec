"""Errors of torch and of the system as a user reads them."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ascendtune.core.errors import MachineError, RecipeError
from ascendtune.core.rundir import RunDir
from ascendtune.train.torch_errors import is_lost_connection, lost_connection, translated


@pytest.mark.parametrize(
    ("error", "what", "remedy"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nSee the documentation"),
            "out of device memory: CUDA out of memory. Tried to allocate 2 GiB.",
            "gradient_checkpointing",
        ),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: not enough memory: you tried 9 GB"),
            "out of host memory: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: not enough memory: "
            "you tried 9 GB",
            "ulimit -v",
        ),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried 9"),
            "out of host memory: [enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: "
            "you tried 9",
            "ulimit -v",
        ),
        (
            RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
            "out of device memory: CUDA error: out of memory",
            "ascendtune devices",
        ),
        (
            RuntimeError("CUDA driver error: out of memory"),
            "out of device memory: CUDA driver error: out of memory",
            "ascendtune devices",
        ),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            "out of device memory: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "ascendtune devices",
        ),
        (
            RuntimeError("call aclnnMatmul failed\nacl api failed, error code is 507015"),
            "the device failed: call aclnnMatmul failed",
            "ascendtune doctor",
        ),
        (
            RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported"),
            "the device failed: CUDA error: an illegal memory access was encountered",
            "ascendtune doctor",
        ),
        (
            NotImplementedError("Could not run 'aten::foo' with arguments from the 'NPU' backend. More words"),
            "the device cannot compute aten::foo: torch has no such operator for NPU",
            "model.attention: eager",
        ),
    ],
)
def test_errors_of_devices_become_one_line_with_a_remedy(error: Exception, what: str, remedy: str) -> None:
    told = translated(error)
    assert isinstance(told, MachineError) and told.exit_code == 3
    assert told.what == what and remedy in told.remedy


def test_memory_error_of_python_or_numpy_is_of_the_host() -> None:
    told = translated(MemoryError("Unable to allocate 3.00 GiB for an array"))
    assert isinstance(told, MachineError) and told.code == "out-of-memory" and told.exit_code == 3
    assert told.what == "out of host memory: Unable to allocate 3.00 GiB for an array" and "ulimit -v" in told.remedy


@pytest.mark.parametrize(
    "error",
    [
        dist.DistStoreError("Timed out after 1801 seconds waiting for clients. 1/2 clients joined."),
        dist.DistStoreError("wait timeout after 1800000ms, keys: /default_pg/0//cpu//0"),
        dist.DistNetworkError("The client socket has timed out after 1800000ms while trying to connect to (a, 29500)."),
    ],
)
def test_ranks_that_do_not_come_are_not_a_fault_of_the_program(error: Exception) -> None:
    told = translated(error)
    assert told is not None and told.code == "ranks-not-met"


_NCCL = "NCCL error in: /pytorch/torch/csrc/NCCLUtils.cpp:94, unhandled {kind} error (run with NCCL_DEBUG=INFO)\n{why}"


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (RuntimeError("[/src/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:29060."), True),
        (RuntimeError("[/src/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.1]:1: Connection reset by peer"), True),
        (RuntimeError("[/src/gloo/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation"), True),
        (dist.DistNetworkError("failed to recv, got 0 bytes. Connection was likely closed."), True),
        (dist.DistBackendError("NCCL communicator was aborted on rank 1."), True),
        (
            dist.DistBackendError(
                _NCCL.format(
                    kind="remote", why="ncclRemoteError: network error or a remote process exiting prematurely."
                )
            ),
            True,
        ),
        (RuntimeError("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE)"), True),
        (RuntimeError("HCCL function error: HcclAllReduce(a, b), error code is 9"), True),
        (RuntimeError("[/gloo/transport/tcp/pair.cc:170] writev [10.0.0.1]:80: Bad file descriptor"), True),
        (RuntimeError("Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error"), True),
        (
            dist.DistBackendError(
                "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by "
                "key '0', but store->get('0') got error: wait timeout after 600000ms, keys: /default_pg/0//cuda//0"
            ),
            True,
        ),
        (RuntimeError("ProcessGroupGloo::allgather: invalid tensor size at index 1 (expected (2), got (3))"), False),
        (RuntimeError("[/src/gloo/transport/tcp/pair.cc:1] op.preamble.length <= op.nbytes. 800 vs 400"), False),
        (
            dist.DistBackendError(
                _NCCL.format(kind="cuda", why="Last error:\nFailed to CUDA calloc 10 bytes: 'out of memory'")
            ),
            False,
        ),
        (
            dist.DistBackendError(
                _NCCL.format(
                    kind="invalid usage", why="Duplicate GPU detected : rank 0 and rank 1 both on device 1b000"
                )
            ),
            False,
        ),
        (RuntimeError("HCCL function error: HcclAllReduce(a, b), error code is 1"), False),
        (RuntimeError("HCCL function error: HcclAllReduce(a, b), error code is 3"), False),
    ],
)
def test_error_of_a_collective_is_a_lost_rank_only_where_it_says_so(
    error: Exception, is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is taken for a lost rank is not noted as the cause, and sends the user to the other ranks' logs."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert is_lost_connection(error) == is_lost


def test_memory_that_nccl_lacks_is_told_as_that() -> None:
    told = translated(dist.DistBackendError(_NCCL.format(kind="cuda", why="Cuda failure 2 'out of memory'")))
    assert told is not None and told.code == "out-of-memory"


_NCCL_WITH_LAST = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, {}, NCCL version 2.27.3\n{}\nLast error:\n{}"
)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            dist.DistBackendError(
                _NCCL_WITH_LAST.format(
                    "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed",
                    "Error while creating shared memory segment /dev/shm/nccl-eDM (size 33030528)",
                )
            ),
            "Error while creating shared memory segment /dev/shm/nccl-eDM",
        ),
        (
            dist.DistBackendError(
                _NCCL_WITH_LAST.format(
                    "invalid usage (run with NCCL_WARN for details)",
                    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
                    "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000",
                )
            ),
            "Duplicate GPU detected",
        ),
        (
            RuntimeError(
                "createHCCLComm:torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:2354 HCCL function error: "
                "HcclGetRootInfo(&hcclID), error code is 7\nEI0004: The ranktable is invalid"
            ),
            "EI0004: The ranktable is invalid",
        ),
        (
            RuntimeError(
                "[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:83] ifa != nullptr. "
                "Unable to find address for: eth7"
            ),
            "Unable to find address for: eth7",
        ),
    ],
)
def test_a_rank_whose_own_collectives_fail_is_the_cause_and_its_whole_message_is_shown(
    error: RuntimeError, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not is_lost_connection(error)
    told = translated(error)
    assert told is not None and told.code == "collective-failed" and reason in told.what and "\n" not in told.what


def test_a_lost_rank_behind_another_error_is_not_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    try:
        raise ValueError("a checkpoint") from RuntimeError("store->get failed: Broken pipe")
    except ValueError as error:
        assert is_lost_connection(error)
    assert not is_lost_connection(RuntimeError("size mismatch"))


def test_connection_that_broke_while_a_checkpoint_was_written_is_told_in_one_sentence(tmp_path: Path) -> None:
    what = "the checkpoint of step 6 could not be written: Connection reset by peer"
    error = MachineError(what, code="checkpoint-not-written", remedy="check the file system")
    told = lost_connection(error, RunDir(tmp_path)).what
    assert told == f"the connection to another rank broke: {what}"


def test_a_full_disk_is_told_with_its_place() -> None:
    told = translated(OSError(errno.ENOSPC, "No space left on device", "/data/run/metrics.jsonl"))
    assert isinstance(told, MachineError)
    assert told.where == "/data/run/metrics.jsonl" and "training" in told.what


def test_our_own_errors_stay_and_unknown_ones_are_not_guessed_at() -> None:
    ours = RecipeError("wrong", code="test", remedy="mend it")
    assert translated(ours) is ours
    assert translated(RuntimeError("something else")) is None
    assert translated(NotImplementedError("not yet")) is None
