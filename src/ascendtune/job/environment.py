"""What the processes of a job find in their environment. The user's settings win over defaults."""

from __future__ import annotations

from collections.abc import Mapping

from ascendtune.core.errors import translated_disk_errors
from ascendtune.core.files import write_json
from ascendtune.job.hang import flight_recorder
from ascendtune.job.spec import ALONE, JobSpec, Place
from ascendtune.machine.init_method import INIT_METHOD
from ascendtune.machine.visible import VARIABLES

MARK = "ASCENDTUNE_JOB"
"""Carries the job's id into every process of the job, so that none is lost when its parents are gone."""

_NPU = {
    # Level 2 of the dispatch queue also overlaps workspace allocation; runs are often bound by the host. More memory at
    # the peak: https://www.hiascend.com/document/detail/zh/Pytorch/600/apiref/Envvariables/Envir_019.html
    "TASK_QUEUE_ENABLE": "2",
    # Ranks reach their first collective at different times (weights are read, kernels compiled); 120 s is too short.
    "HCCL_CONNECT_TIMEOUT": "600",
    # A multiple of 68, as the first generation wants it, and less than the 30 minutes after which torch gives up:
    # HCCL's own message names the rank that is missing.
    "HCCL_EXEC_TIMEOUT": "1768",
    # What CANN documents as its default; releases before had it the other way round and refused every peer.
    "HCCL_WHITELIST_DISABLE": "1",
}
_ALLOCATOR = "PYTORCH_NPU_ALLOC_CONF"

# A rank's place, left over when the command is started inside another job; this job has a world of its own.
_PLACES = frozenset(
    f"{prefix}{name}" for prefix in ("", "LOCAL_", "GROUP_", "ROLE_") for name in ("RANK", "WORLD_SIZE")
) | {INIT_METHOD}


def environment(spec: JobSpec, user: Mapping[str, str], *, cores: int, place: Place = ALONE) -> dict[str, str]:
    """The environment for `spec`: the user's, and defaults for what is not in it."""
    chosen: dict[str, str] = {}
    if spec.device_ids is not None and spec.kind in VARIABLES:
        chosen[VARIABLES[spec.kind]] = ",".join(spec.device_ids)
    inherited = {name: value for name, value in user.items() if name not in _PLACES}
    chosen |= {**spec.variables, MARK: spec.id}
    return {**defaults(spec, inherited, cores=cores, place=place), **inherited, **chosen}


def defaults(spec: JobSpec, user: Mapping[str, str], *, cores: int, place: Place = ALONE) -> dict[str, str]:
    """What is set where the user has set nothing.

    Args:
        cores: how many cores of this node the job may use.
    """
    chosen: dict[str, str] = {}
    if spec.nproc > 1:
        # torchrun would set 1, which leaves most of a host idle in the optimiser and in data work.
        chosen["OMP_NUM_THREADS"] = str(max(1, cores // spec.nproc))
    if place.is_alone and spec.nproc > 1:
        # Gloo otherwise asks DNS for the name of this machine; all ranks are on it.
        chosen["GLOO_SOCKET_IFNAME"] = "lo"
    elif place.interface is not None:
        chosen |= _network(spec, place.interface, place.address)
    if spec.kind == "cuda" and not (place.is_alone and spec.nproc == 1):
        chosen |= flight_recorder.for_nccl(spec.run_dir)
    if spec.kind == "npu":
        chosen |= _NPU
        # Segments that grow leave fewer gaps where lengths differ from batch to batch; needs Ascend HDK 23.0.0.
        # https://www.hiascend.com/document/detail/zh/Pytorch/710/comref/Envvariables/Envir_011.html
        # Both variables at once are an error from torch_npu 26.2 on.
        if "PYTORCH_ALLOC_CONF" not in user:
            chosen[_ALLOCATOR] = "expandable_segments:True"
    return {name: value for name, value in chosen.items() if name not in user}


def note(spec: JobSpec, given: Mapping[str, str], user: Mapping[str, str], place: Place = ALONE) -> None:
    """Write what the processes of a node were given beside what the user had set to `environment_R.json` in the logs.

    Raises:
        MachineError: the directory cannot be written.
    """
    new = {name: value for name, value in sorted(given.items()) if user.get(name) != value}
    with translated_disk_errors(spec.logs, "opening a log"):
        spec.logs.mkdir(parents=True, exist_ok=True)
    write_json(spec.logs / f"environment_{place.node_rank}.json", new)


def _network(spec: JobSpec, interface: str, address: str | None) -> dict[str, str]:
    """Every library on the interface that leads to the master: left alone each guesses, and not all guess the same."""
    chosen = {"GLOO_SOCKET_IFNAME": interface, "TP_SOCKET_IFNAME": interface}
    if spec.kind == "npu":
        # With "=" the name is taken as a whole; HCCL otherwise takes it as the beginning of names.
        chosen["HCCL_SOCKET_IFNAME"] = f"={interface}"
        if address:
            chosen["HCCL_IF_IP"] = address
    if spec.kind == "cuda":
        chosen["NCCL_SOCKET_IFNAME"] = f"={interface}"
    return chosen
