"""Converts errors of torch, its collectives and the system to errors of this program, with a remedy."""

from __future__ import annotations

import re

import torch
import torch.distributed as dist

from ascendtune.core.errors import AscendtuneError, MachineError, disk_fault, out_of_host_memory
from ascendtune.core.exit_cause import OUT_OF_MEMORY
from ascendtune.core.foreign_json import first_line
from ascendtune.core.imports import import_fault
from ascendtune.core.rundir import RunDir
from ascendtune.train.strategy.base import started_by_torchrun

TIMED_OUT = "collective-timed-out"
"""Error code of a rank that waited for another rank until the time-out."""

_OF_COLLECTIVES = re.compile("gloo|nccl|hccl", re.IGNORECASE)
_LOST_CONNECTION = re.compile(
    r"connection (?:was likely )?(?:closed|reset|refused)|broken pipe|bad file descriptor|remote process exit"
    r"|communicator was aborted|connectfullmesh failed"
    # HCCL's error numbers: a time-out, connections over TCP and RoCE, the network, another rank.
    r"|\A(?=.*(?:gloo|nccl|hccl)).*time[ds]? ?-?out|\A(?>.*?hccl).*error code is (?:9|1[1-4]|19|21)(?!\d)",
    re.IGNORECASE | re.DOTALL,
)
"""In messages of errors that follow after another rank has ended: never the first cause. Other errors of these
libraries are causes: not enough memory, tensors that do not match, a device that two ranks use."""
_TIMED_OUT = re.compile(
    r"(?<!connection )time[ds]? ?-?out|\A(?>.*?hccl).*error code is 9(?!\d)", re.IGNORECASE | re.DOTALL
)
_NOT_MET = re.compile("timed out|timeout", re.IGNORECASE)
_OUT_OF_MEMORY = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory"
    r"|(?:CUDA (?:driver )?error|Triton Error \[CUDA\]): out of memory|CUBLAS_STATUS_ALLOC_FAILED"
)
"""Failed allocations of the host; then of contexts, kernels and libraries, often because other processes use the
memory. Failed allocations of tensors have a class of their own."""
_DEVICE_FAILED = re.compile("acl api failed|CUDA error: ")
"""Messages of torch, which had no class for them before 2.8, and of torch_npu."""
_MISSING_OPERATOR = re.compile(r"Could not run '(?P<name>[^']+)' with arguments from the '(?P<backend>[^']+)' backend")
"""Message of torch, in c10/core/impl and the dispatcher (2.13)."""


def is_lost_connection(error: BaseException) -> bool:
    """Whether this rank failed because its connection to another rank broke, in training or in a checkpoint."""
    if not started_by_torchrun():
        return False
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, RuntimeError) and _LOST_CONNECTION.search(str(cause)):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def lost_connection(error: BaseException, run: RunDir) -> MachineError:
    """The error of a rank that lost its connection to another; its code is `TIMED_OUT` if it was a time-out."""
    if _TIMED_OUT.search(str(error)):
        return MachineError(
            f"another rank did not take part in a collective before the time-out: {_one_line(error)}",
            code=TIMED_OUT,
            remedy="find the rank that hung or was late: the stacks of a reported hang are beside the logs, and "
            "the last phase of each rank is in heartbeat/ of the run directory",
            where=run.logs,
        )
    return MachineError(
        f"the connection to another rank broke: {_one_line(error)}",
        code="connection-lost",
        remedy="look for the error of that rank: it is the cause",
        where=run.logs,
    )


def translated(error: BaseException) -> AscendtuneError | None:
    """The error of this program, with a remedy, for one of torch or the system; None if there is no remedy."""
    if isinstance(error, AscendtuneError):
        return error
    if isinstance(error, MemoryError):
        return out_of_host_memory(error)
    if isinstance(error, ImportError):
        return import_fault(error)
    if _is_out_of_memory(error):
        return _out_of_memory(error)
    if _DEVICE_FAILED.search(str(error)) or isinstance(error, getattr(torch, "AcceleratorError", ())):
        return MachineError(
            f"the device failed: {str(error).strip().splitlines()[0]}",
            code="device-failed",
            remedy="look at the device with `ascendtune doctor`; the same command resumes from the last checkpoint",
        )
    if _is_of_collectives(error):
        return MachineError(
            f"a collective failed: {_one_line(error)}",
            code="collective-failed",
            remedy="look for the library's own message in the log, with NCCL_DEBUG=INFO or ASCEND_GLOBAL_LOG_LEVEL=1; "
            "`ascendtune comm test` tries the collectives alone",
        )
    if isinstance(error, dist.DistStoreError | dist.DistNetworkError) and _NOT_MET.search(str(error)):
        return MachineError(
            f"not all ranks reached the rendezvous in time: {first_line(error)}",
            code="ranks-not-met",
            remedy="look at the logs of the missing ranks, and check that the nodes can reach each other",
        )
    if isinstance(error, NotImplementedError) and (missing := _MISSING_OPERATOR.match(str(error))):
        return MachineError(
            f"the device cannot compute {missing['name']}: torch has no such operator for {missing['backend']}",
            code="operator-missing",
            remedy="set model.attention: eager, and each kernel key to false; or update torch and torch_npu",
        )
    return disk_fault(error, getattr(error, "filename", None) or ".", "training")


def _is_out_of_memory(error: BaseException) -> bool:
    message = str(error)
    is_named = _OUT_OF_MEMORY.search(message) or (_is_of_collectives(error) and "out of memory" in message)
    return isinstance(error, torch.OutOfMemoryError) or bool(is_named)


def _out_of_memory(error: BaseException) -> MachineError:
    place, look = "device", "`ascendtune devices` shows the memory that other processes use"
    if "DefaultCPUAllocator" in str(error):
        place, look = "host", "`free -h` and `ulimit -v` show the limits of this host"
    message = f"out of {place} memory: {str(error).strip().splitlines()[0]}"
    return MachineError(
        "; ".join((message, *getattr(error, "__notes__", ()))),
        code=OUT_OF_MEMORY,
        remedy="set memory.gradient_checkpointing: true, lower batch.per_device (and raise batch.accumulate) or "
        f"data.max_length, or use method.tuner: lora; {look}",
    )


def _is_of_collectives(error: BaseException) -> bool:
    is_named = isinstance(error, RuntimeError) and _OF_COLLECTIVES.search(str(error)) is not None
    return is_named or isinstance(error, dist.DistBackendError)


def _one_line(error: BaseException) -> str:
    """The whole message on one line: these libraries name the cause in the last of several lines."""
    return " ".join((error.what if isinstance(error, AscendtuneError) else str(error)).split())
