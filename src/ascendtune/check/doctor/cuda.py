"""NVIDIA's driver against the CUDA that torch was built for."""

from __future__ import annotations

from collections.abc import Iterator

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.system import System
from ascendtune.check.finding import Finding, failure, ok, unknown
from ascendtune.machine.vendor.cuda import cuda_of_torch

CUDA = "cuda"

_OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
"""Minor-version compatibility: the first driver branch that runs any CUDA of the major version (CUDA release notes)."""


def _look(system: System) -> Iterator[Finding]:
    devices, driver, troubles = system.gpus
    for trouble in troubles:
        evidence = (trouble.evidence,) if trouble.evidence else ()
        yield failure(CUDA, trouble.what, remedy=trouble.remedy, evidence=evidence)
    if not devices or system.npu_nodes:
        return
    torch = system.package("torch")
    if torch is None:
        yield failure(CUDA, say("torch is not installed"), remedy=say("pip install 'ascendtune[cuda]'"))
        return
    directory = system.package_directory("torch")
    cuda = cuda_of_torch(directory) if directory else None
    if cuda is None:
        yield failure(
            CUDA,
            say("{count} GPU found, but torch {torch} is built without CUDA", count=len(devices), torch=torch),
            expected=say("a build of torch for CUDA"),
            remedy=say("pip uninstall torch; install torch from its CUDA index"),
        )
        return
    branch = int(driver.split(".")[0]) if driver and driver.split(".")[0].isdecimal() else None
    oldest = _OLDEST_DRIVER.get(int(cuda.split(".")[0]))
    if branch is None or oldest is None:
        yield unknown(
            CUDA,
            say(
                "torch {torch} for CUDA {cuda}, driver {value}: not in the table of versions",
                torch=torch,
                cuda=cuda,
                value=driver or "unknown",
            ),
        )
    elif branch < oldest:
        yield failure(
            CUDA,
            say(
                "driver {driver} is too old for torch {torch}, which is built for CUDA {cuda}",
                driver=driver,
                torch=torch,
                cuda=cuda,
            ),
            expected=say("driver {oldest} or newer", oldest=oldest),
            remedy=say("update the driver, or install a torch that is built for an older CUDA"),
        )
    else:
        yield ok(CUDA, say("torch {torch} for CUDA {cuda}, driver {driver}", torch=torch, cuda=cuda, driver=driver))


CUDA_CHECK = Check(
    CUDA,
    what="Reads GPUs and driver from NVML, and compares the driver with the CUDA that the installed torch was built "
    "for.",
    why="With a CPU build of torch a GPU machine trains on the CPU without a message. With a driver that is too old, "
    "torch sees no GPU at all. After a driver update without restart NVML fails with `Driver/library version "
    "mismatch`.",
    fix="Install the build of torch for a CUDA that the driver supports; restart after a driver update.",
    look=_look,
    vital=True,
)
