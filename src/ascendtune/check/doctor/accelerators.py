"""What is plugged in, and whether this Python can compute on it."""

from __future__ import annotations

from collections.abc import Iterator

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok
from ascendtune.core.units import count_of

CODE = "accelerators"


def _look(outside: Outside) -> Iterator[Finding]:
    npus, gpus = len(outside.npu_nodes), len(outside.gpus[0])
    if outside.npus_on_bus and not npus:
        yield _without_driver(outside)
    elif npus and not outside.package("torch-npu"):
        yield Finding(
            CODE,
            "failure",
            f"{count_of(npus, 'NPU')} here, and this Python has no torch_npu: training would run on the CPU",
            expected="torch_npu of the same version as torch",
            remedy="pip install 'ascendtune[npu]'; `ascendtune doctor versions` names the pair that fits CANN",
        )
    elif npus:
        yield ok(CODE, f"{count_of(npus, 'NPU')}, torch_npu {outside.package('torch-npu')}")
    if outside.gpus_on_bus and not gpus and not npus:
        yield Finding(
            CODE,
            "warning",
            f"{count_of(outside.gpus_on_bus, 'NVIDIA device')} on the PCI bus, but the driver shows no GPU",
            remedy="check `nvidia-smi` and the kernel log; install the driver, in a container start it with --gpus all",
            evidence=tuple(trouble.what for trouble in outside.gpus[2]),
        )
    elif gpus:
        yield ok(CODE, f"{count_of(gpus, 'GPU')}, driver {outside.gpus[1] or 'of unknown version'}")
    if not (npus or gpus or outside.npus_on_bus or outside.gpus_on_bus or outside.npu_smi[0].devices):
        yield _cpu_alone(outside)


def _without_driver(outside: Outside) -> Finding:
    inside = "map /dev/davinci*, davinci_manager, devmm_svm and hisi_hdc into the container"
    return Finding(
        CODE,
        "failure",
        f"{count_of(outside.npus_on_bus, 'NPU')} on the PCI bus, and no /dev/davinci*: the driver is not loaded",
        expected="one /dev/davinciN for each chip",
        remedy=inside if outside.in_container else "install the driver (Ascend HDK) of this card and restart",
    )


def _cpu_alone(outside: Outside) -> Finding:
    if not outside.package("torch"):
        return Finding(
            CODE,
            "warning",
            "no accelerator, and torch is not installed: only commands that do not train work here",
            remedy="pip install 'ascendtune[train]'",
        )
    more = "none on the PCI bus or in /dev; torch trains on the CPU, which is enough for small models"
    return ok(CODE, f"no NPU and no GPU: {more}")


CHECK = Check(
    CODE,
    what="Counts NPUs and GPUs by device files, driver and PCI bus, and looks whether the installed torch can use "
    "them.",
    why="A job falls back to the CPU without a word when torch_npu is missing or the driver is not loaded, and then "
    "seems only slow.",
    fix="On the PCI bus but not in /dev: the driver is missing or not loaded; in a container the device files were "
    "not mapped. In /dev but without torch_npu: install the pair of torch and torch_npu that `ascendtune doctor "
    "versions` names. Nothing on the bus: this machine trains on the CPU.",
    look=_look,
    vital=True,
)
