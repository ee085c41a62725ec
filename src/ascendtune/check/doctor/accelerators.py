"""Checks which devices are plugged in, can be opened, and are visible to a process."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import counted, say
from ascendtune.check.doctor.permissions import join_vendor_group
from ascendtune.check.doctor.required_versions import advice_for
from ascendtune.check.doctor.system import System
from ascendtune.check.finding import Finding, failure, ok, warning
from ascendtune.machine.inventory import Accelerator
from ascendtune.machine.vendor.find import vendor_of

ACCELERATORS = "accelerators"


def _look_at_accelerators(system: System) -> Iterator[Finding]:
    npus, gpus = len(system.npu_nodes), len(system.gpus[0])
    yield from _look_at_npus(system, npus)
    if gpus or not npus:
        yield from _look_at_gpus(system, gpus)
    if not (npus or gpus or system.npus_on_bus or system.gpus_on_bus or system.npu_smi[0].devices):
        yield _cpu_alone(system)


def _look_at_npus(system: System, npus: int) -> Iterator[Finding]:
    if system.npus_on_bus and not npus:
        yield _without_driver(system)
    elif npus and not system.package("torch-npu"):
        yield failure(
            ACCELERATORS,
            say(
                "{count} found, but torch_npu is not installed: training would run on the CPU",
                count=counted(npus, "NPU"),
            ),
            expected=say("torch_npu of the same version as torch"),
            remedy=advice_for(system).text,
        )
    elif npus:
        yield ok(
            ACCELERATORS,
            say("{count}, torch_npu {value}", count=counted(npus, "NPU"), value=system.package("torch-npu")),
        )


def _look_at_gpus(system: System, gpus: int) -> Iterator[Finding]:
    if system.gpus_on_bus and not gpus:
        yield warning(
            ACCELERATORS,
            say(
                "{count} on the PCI bus, but the driver shows no GPU",
                count=counted(system.gpus_on_bus, "NVIDIA device"),
            ),
            remedy=say(
                "check `nvidia-smi` and the kernel log; install the driver, in a container start it with --gpus all"
            ),
            evidence=tuple(trouble.what for trouble in system.gpus[2]),
        )
    elif gpus:
        yield ok(
            ACCELERATORS,
            say(
                "{count}, driver {value}",
                count=counted(gpus, "GPU"),
                value=system.gpus[1] or say("of unknown version"),
            ),
        )


def _without_driver(system: System) -> Finding:
    nodes = counted(system.npus_on_bus, "NPU")
    expected = say("one /dev/davinciN for each chip")
    if not system.in_container:
        return failure(
            ACCELERATORS,
            say("{count} on the PCI bus, but no /dev/davinci*: the driver is not loaded", count=nodes),
            expected=expected,
            remedy=say("install the driver (Ascend HDK) of this card and restart"),
        )
    measured = say("{count} on the PCI bus, but the container has no /dev/davinci*", count=nodes)
    if "KUBERNETES_SERVICE_HOST" in system.env:
        resource = vendor_of("npu").container.resource
        remedy = say(
            "request cards for this container of the pod: resources.limits {resource}: {count}",
            resource=resource,
            count=system.npus_on_bus,
        )
        return failure(ACCELERATORS, measured, expected=expected, remedy=remedy)
    requested = system.env.get(_CONTAINER, "")
    remedy = say(
        "start the container with {options}",
        options=_device_options(_named(requested, system.npus_on_bus) or _all(system.npus_on_bus)),
    )
    if requested and requested != _NO_CARD:
        # hiascend.com, MindCluster 7.3.0, "Usage on the Docker Client"; its installer names the runtime "ascend".
        measured += say("; Ascend Docker Runtime alone reads {name}={value}", name=_CONTAINER, value=requested)
        remedy = say("if `docker info` on the host lists the runtime ascend: --runtime=ascend; else ") + remedy
    return failure(ACCELERATORS, measured, expected=expected, remedy=remedy)


def _device_options(ids: str) -> str:
    """Options of `docker run`; bash expands the braces."""
    cards = f"{{{ids}}}" if "," in ids else ids
    return " ".join(f"--device={file}" for file in vendor_of("npu").container.device_files([cards]))


def _cpu_alone(system: System) -> Finding:
    if not system.package("torch"):
        return warning(
            ACCELERATORS,
            say("no accelerator, and torch is not installed: only commands that do not train work on this machine"),
            remedy=say("pip install 'ascendtune[train]'"),
        )
    more = say("none on the PCI bus or in /dev; torch trains on the CPU, which is sufficient for small models")
    return ok(ACCELERATORS, say("no NPU and no GPU: {more}", more=more))


ACCELERATORS_CHECK = Check(
    ACCELERATORS,
    what="Counts NPUs and GPUs by device files, driver and PCI bus, and checks whether the installed torch can use "
    "them.",
    why="When torch_npu is missing or the driver is not loaded, a job falls back to the CPU without a message, and "
    "only seems slow.",
    fix="On the PCI bus but not in /dev: the driver is missing or not loaded; in a container the device files were not "
    "mapped (ASCEND_VISIBLE_DEVICES does that with Ascend Docker Runtime only). In /dev but without torch_npu: install "
    "the pair of torch and torch_npu that `ascendtune doctor versions` names. Nothing on the bus: this machine trains "
    "on the CPU.",
    look=_look_at_accelerators,
    vital=True,
)


DEVICE_NODES = "device_nodes"

_SHARED = ("davinci_manager", "devmm_svm", "hisi_hdc")
"""Device files that every process needs in addition to its davinciN (vendor's container guide)."""


def _look_at_device_nodes(system: System) -> Iterator[Finding]:
    cards = system.npu_nodes
    if not cards:
        return
    nodes = [*cards, *(system.path(f"/dev/{name}") for name in _SHARED)]
    missing = [node.name for node in nodes if not node.exists()]
    closed = [node.name for node in nodes if node.exists() and not system.may_access(node, os.R_OK | os.W_OK)]
    if missing:
        options = " ".join(f"--device=/dev/{name}" for name in missing)
        yield failure(
            DEVICE_NODES,
            say(
                "/dev has davinci0 to davinci{name} but not {names}", name=cards[-1].name[7:], names=", ".join(missing)
            ),
            expected=say("{names} beside the cards", names=", ".join(_SHARED)),
            remedy=say("start the container with {options}", options=options)
            if system.in_container
            else say("install the driver again, restart"),
        )
    if closed:
        yield failure(
            DEVICE_NODES,
            say("this user may not read and write {names}", names=", ".join(f"/dev/{name}" for name in closed)),
            expected=say("read and write for this user, by the group HwHiAiUser"),
            remedy=say("sudo usermod -aG HwHiAiUser $USER, then log in again"),
            repair=join_vendor_group(system),
        )
    if not missing and not closed:
        yield ok(
            DEVICE_NODES,
            say("{count} {count:card|cards} and {names} can be opened", count=len(cards), names=", ".join(_SHARED)),
        )


DEVICE_NODES_CHECK = Check(
    DEVICE_NODES,
    what="Checks that /dev/davinci0…, davinci_manager, devmm_svm and hisi_hdc exist and that this user may open them.",
    why="Without one of the three shared files the runtime fails with an initialisation error (507033, -8005) that "
    "names none of them. Their group is HwHiAiUser; for users outside of it no tool shows the cards.",
    fix="Container: pass the missing ones with `--device`. Host: add the user to the group HwHiAiUser and log in "
    "again; if the files are missing, the driver is not loaded (`lsmod | grep drv`).",
    look=_look_at_device_nodes,
    vital=True,
)


VISIBLE_DEVICES = "visible_devices"

_NPU, _CUDA, _CONTAINER = "ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES"
_NO_CARD = "void"
"""The value of ASCEND_VISIBLE_DEVICES for a container without cards."""
_MISSPELT = ("ASCEND_RT_VISIBLE_DEVICE", "ASCEND_RT_VISIABLE_DEVICES", "NPU_VISIBLE_DEVICES")
"""Misspelt names in public scripts; no program reads them."""


def _look_at_visible_devices(system: System) -> Iterator[Finding]:
    env, npus, gpus = system.env, len(system.npu_nodes), len(system.gpus[0])
    found: list[Finding] = []
    if npus and _NPU in env:
        found += _npu(env[_NPU], npus)
    if gpus and _CUDA in env:
        found += _cuda(env[_CUDA], system.gpus[0])
    if npus:
        found += _confused(system)
    yield from found
    if (npus and _NPU in env) or (gpus and _CUDA in env):
        if not found:
            name = _NPU if npus and _NPU in env else _CUDA
            yield ok(VISIBLE_DEVICES, f"{name}={env[name]}")
    elif (npus or gpus) and not found:
        yield ok(VISIBLE_DEVICES, say("every device is visible ({value})", value=npus or gpus))


def _npu(value: str, count: int) -> Iterator[Finding]:
    names = value.split(",")
    problem = _problem(names, count, ascending=True)
    if problem:
        kept = vendor_of("npu").visible([str(number) for number in range(count)], value)
        yield Finding(
            VISIBLE_DEVICES,
            "failure" if not kept else "warning",
            say(
                "{npu}={value!r}: {problem}; a process sees {visible}",
                npu=_NPU,
                value=value,
                problem=problem,
                visible=", ".join(kept) or "no NPU at all",
            ),
            expected=say("ids 0 to {value}, ascending, separated by commas without blanks", value=count - 1),
            remedy=say("export {npu}={names}", npu=_NPU, names=_named(value, count) or _all(count)),
        )


def _cuda(value: str, gpus: Sequence[Accelerator]) -> Iterator[Finding]:
    names, count = value.split(","), len(gpus)
    if value.startswith(("GPU-", "MIG-")):
        yield from _unique_names(names, gpus)
        return
    if problem := _problem([name.strip() for name in names], count, ascending=False):
        yield warning(
            VISIBLE_DEVICES,
            f"{_CUDA}={value!r}: {problem}",
            expected=say("ids 0 to {value}", value=count - 1),
            remedy=say("export {cuda}={names}", cuda=_CUDA, names=_named(value, count) or _all(count)),
        )


def _unique_names(names: list[str], gpus: Sequence[Accelerator]) -> Iterator[Finding]:
    """Check names of whole GPUs; those of parts of a GPU (MIG-…) are not known here."""
    known = [gpu.uuid for gpu in gpus if gpu.uuid]
    unique = [name for name in names if not name.startswith("MIG-")]
    absent = [name for name in unique if sum(each.startswith(name) for each in known) != 1]
    if absent and len(known) == len(gpus):
        yield warning(
            VISIBLE_DEVICES,
            say(
                "{cuda}={value!r}: {name!r} is not the name of one GPU; a process sees those before it",
                cuda=_CUDA,
                value=",".join(names),
                name=absent[0],
            ),
            expected=say("names that `nvidia-smi -L` prints"),
            remedy=say("export {cuda}={names}", cuda=_CUDA, names=",".join(known)),
        )


def _problem(names: list[str], count: int, *, ascending: bool) -> str | None:
    if names == [""]:
        return say("it is empty")
    if any(name != name.strip() for name in names):
        return say("a blank ends the list")
    strange = [name for name in names if not name.isdecimal()]
    if strange:
        return say("{name!r} is not an id", name=strange[0])
    ids = [int(name) for name in names]
    absent = [each for each in ids if each >= count]
    if absent:
        return say("device {id} does not exist", id=absent[0])
    if len(set(ids)) < len(ids):
        return say("an id is repeated")
    if ascending and ids != sorted(ids):
        return say("the ids must be ascending")
    return None


def _all(count: int) -> str:
    return ",".join(map(str, range(count)))


def _named(value: str, count: int) -> str:
    """The ids that `value` means, as the runtime reads them; empty if there are none.

    ASCEND_VISIBLE_DEVICES may also contain ranges ("0-3") and types ("Ascend910-0"); users write the same into other
    variables, and torch's names ("npu:0"), quotes, blanks and Chinese commas.
    """
    ids: set[int] = set()
    for name in re.split(r"[,，、]", value.strip("\"'")):
        if found := re.fullmatch(r"\s*(?:[A-Za-z]\w*[-:])?([0-9]{1,4})(?:-([0-9]{1,4}))?\s*", name):
            ids.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return ",".join(str(each) for each in sorted(ids) if each < count)


def _confused(system: System) -> Iterator[Finding]:
    count = len(system.npu_nodes)
    for name in _MISSPELT:
        if name in system.env:
            yield warning(
                VISIBLE_DEVICES,
                say("{name}={env} is set; the runtime does not read it", name=name, env=system.env[name]),
                expected=_NPU,
                remedy=_other_variable_remedy(name, _named(system.env[name], count)),
            )
    if _CONTAINER in system.env and _NPU not in system.env and not system.in_container:
        yield warning(
            VISIBLE_DEVICES,
            say(
                "{container}={env} has no effect outside a container's start",
                container=_CONTAINER,
                env=system.env[_CONTAINER],
            ),
            expected=say("{npu} to choose cards for a process", npu=_NPU),
            remedy=_other_variable_remedy(_CONTAINER, _named(system.env[_CONTAINER], count)),
        )
    # Empty or -1: it hides GPUs, and does not refer to NPUs.
    if _NPU not in system.env and (ids := _named(system.env.get(_CUDA, ""), count)):
        yield warning(
            VISIBLE_DEVICES,
            say("{cuda}={env} does not limit NPUs", cuda=_CUDA, env=system.env[_CUDA]),
            expected=_NPU,
            remedy=say("export {npu}={env}", npu=_NPU, env=ids),
        )


def _other_variable_remedy(name: str, ids: str) -> str:
    return say("export {npu}={env}; unset {name}", npu=_NPU, env=ids, name=name) if ids else f"unset {name}"


VISIBLE_DEVICES_CHECK = Check(
    VISIBLE_DEVICES,
    what="Reads ASCEND_RT_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES as the runtimes do, and checks for misspelt names.",
    why="The runtime ignores everything after the first invalid entry, without a message: `1, 2,3` leaves only card 1. "
    "Ids must be ascending. ASCEND_VISIBLE_DEVICES is read by the container runtime only.",
    fix="List ids in ascending order, each once, separated by commas without blanks. Ids are logical: they count from "
    "0 within the container.",
    look=_look_at_visible_devices,
)
