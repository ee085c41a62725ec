"""Errors of torch, its collectives and the system, told as errors of this program that say what to do."""

from __future__ import annotations

import re

import torch
import torch.distributed as dist

from ascendtune.core.errors import AscendtuneError, MachineError, disk_fault, out_of_host_memory
from ascendtune.core.exit_cause import OUT_OF_MEMORY
from ascendtune.core.foreign_json import first_line
from ascendtune.core.rundir import RunDir
from ascendtune.train.strategy.base import started_by_torchrun

TIMED_OUT = "collective-timed-out"
"""Code of the error of a rank that waited for another one in vain."""

_OF_COLLECTIVES = re.compile("gloo|nccl|hccl", re.IGNORECASE)
_LOST_CONNECTION = re.compile(
    r"connection (?:was likely )?(?:closed|reset|refused)|broken pipe|bad file descriptor|remote process exit"
    r"|communicator was aborted|connectfullmesh failed"
    # HCCL's numbers: a time-out, connections by TCP and RoCE, the network, another rank.
    r"|(?=.*(?:gloo|nccl|hccl))(?:.*time[ds]? ?-?out)|hccl.*error code is (?:9|1[1-4]|19|21)(?!\d)",
    re.IGNORECASE | re.DOTALL,
)
"""In the messages of errors that follow when another rank has ended: never the first cause. Other errors of the same
libraries are causes: memory that is missing, tensors that do not fit, a device that two ranks were given."""
_TIMED_OUT = re.compile(r"(?<!connection )time[ds]? ?-?out|hccl.*error code is 9(?!\d)", re.IGNORECASE | re.DOTALL)
_NOT_MET = re.compile("timed out|timeout", re.IGNORECASE)
_OUT_OF_MEMORY = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory"
    r"|(?:CUDA (?:driver )?error|Triton Error \[CUDA\]): out of memory|CUBLAS_STATUS_ALLOC_FAILED"
)
"""Of the host; then where a context, a kernel or a library finds no memory, often as other processes hold it. That of
tensors has a class of its own."""
_DEVICE_FAILED = re.compile("acl api failed|CUDA error: ")
"""Torch's, before 2.8 without a class of its own, and torch_npu's."""
_MISSING_OPERATOR = re.compile(r"Could not run '(?P<name>[^']+)' with arguments from the '(?P<backend>[^']+)' backend")
"""Torch's message in c10/core/impl and the dispatcher (2.13)."""


def is_lost_connection(error: BaseException) -> bool:
    """Whether this rank failed because the connection to another one broke, in training or in a checkpoint."""
    if not started_by_torchrun():
        return False
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, RuntimeError) and _LOST_CONNECTION.search(str(cause)):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def lost_connection(error: BaseException, run: RunDir) -> MachineError:
    """The error of a rank that lost its connection to another one; with the code `TIMED_OUT` where it waited for it."""
    if _TIMED_OUT.search(str(error)):
        return MachineError(
            f"another rank did not take part in a collective before the time-out: {_one_line(error)}",
            code=TIMED_OUT,
            remedy="look which rank hung or was late: the stacks of a hang that was reported lie beside the logs, and "
            "the last phase of each rank in heartbeat/ of the run directory",
            where=run.logs,
        )
    return MachineError(
        f"the connection to another rank broke: {_one_line(error)}",
        code="connection-lost",
        remedy="look for the error of that rank: it is the cause",
        where=run.logs,
    )


def translated(error: BaseException) -> AscendtuneError | None:
    """The error of this program for one of torch or the system that has a remedy; None for others."""
    if isinstance(error, AscendtuneError):
        return error
    if isinstance(error, MemoryError):
        return out_of_host_memory(error)
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
            f"not all ranks came to meet this one in time: {first_line(error)}",
            code="ranks-not-met",
            remedy="look at the logs of the ranks that are missing, and whether the nodes reach each other",
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
    place, look = "device", "`ascendtune devices` shows what other processes hold"
    if "DefaultCPUAllocator" in str(error):
        place, look = "host", "`free -h` and `ulimit -v` show what this host gives"
    said = f"out of {place} memory: {str(error).strip().splitlines()[0]}"
    return MachineError(
        "; ".join((said, *getattr(error, "__notes__", ()))),
        code=OUT_OF_MEMORY,
        remedy="set memory.gradient_checkpointing: true, lower batch.per_device (and raise batch.accumulate) or "
        f"data.max_length, or use method.tuner: lora; {look}",
    )


def _is_of_collectives(error: BaseException) -> bool:
    is_named = isinstance(error, RuntimeError) and _OF_COLLECTIVES.search(str(error)) is not None
    return is_named or isinstance(error, dist.DistBackendError)


def _one_line(error: BaseException) -> str:
    """The whole message: these libraries name the cause in the last of several lines."""
    return " ".join(str(error).split())
