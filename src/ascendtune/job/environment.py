"""The environment of a job's processes. The user's settings take precedence over defaults."""

from __future__ import annotations

from collections.abc import Mapping

from ascendtune.core.errors import translated_disk_errors
from ascendtune.core.records import write_json
from ascendtune.core.rundir import JOB_MARK
from ascendtune.job.hang import flight_recorder
from ascendtune.job.numa_binding import numa_binding
from ascendtune.job.spec import ALONE, JobSpec, NodePlace
from ascendtune.machine.peers import INIT_METHOD
from ascendtune.machine.vendor.find import vendor_of
from ascendtune.machine.visible import cpu_count

# Variables of a rank, inherited if the command is started inside another job; this job has its own world.
_PLACES = frozenset(
    f"{prefix}{name}" for prefix in ("", "LOCAL_", "GROUP_", "ROLE_") for name in ("RANK", "WORLD_SIZE")
) | {INIT_METHOD}


# A waiting thread of libgomp spins 300,000 times, for milliseconds, before it sleeps. If another process uses its core,
# that is most of a training's time; this number suffices if none does.
_SPINS = "5000"


def local_environment(spec: JobSpec, user: Mapping[str, str], place: NodePlace = ALONE) -> dict[str, str]:
    """The environment for `spec` on this machine, with the cores of each rank."""
    return environment(spec, user, cores=cpu_count(), place=place) | numa_binding(spec, user)


def environment(spec: JobSpec, user: Mapping[str, str], *, cores: int, place: NodePlace = ALONE) -> dict[str, str]:
    """The environment for `spec`: the user's, with defaults for missing variables."""
    chosen: dict[str, str] = {}
    if spec.device_ids is not None and (variable := vendor_of(spec.kind).visible_variable):
        chosen[variable] = ",".join(spec.device_ids)
    inherited = {name: value for name, value in user.items() if name not in _PLACES}
    chosen |= {**spec.variables, JOB_MARK: spec.id}
    return {**defaults(spec, inherited, cores=cores, place=place), **inherited, **chosen}


def defaults(spec: JobSpec, user: Mapping[str, str], *, cores: int, place: NodePlace = ALONE) -> dict[str, str]:
    """Variables that are set unless the user has set them.

    Args:
        cores: number of cores of this node that the job may use.
    """
    vendor = vendor_of(spec.kind)
    chosen: dict[str, str] = {}
    if spec.device_ids is not None and vendor.visible_variable not in user:
        # If the user has set it, the user's order is kept.
        chosen |= vendor.numbering
    if spec.nproc > 1:
        # torchrun would set 1, which leaves most of a host idle in the optimizer and in data work.
        chosen["OMP_NUM_THREADS"] = str(max(1, cores // spec.nproc))
    if "OMP_WAIT_POLICY" not in user:
        chosen["GOMP_SPINCOUNT"] = _SPINS
    if place.is_alone and spec.nproc > 1:
        # All ranks are on this machine; otherwise Gloo looks up its name in DNS.
        chosen["GLOO_SOCKET_IFNAME"] = "lo"
    elif place.interface is not None:
        # Every library uses the interface that leads to the master; otherwise each chooses one, and they may differ.
        chosen |= {"GLOO_SOCKET_IFNAME": place.interface, "TP_SOCKET_IFNAME": place.interface}
        chosen |= vendor.network_environment(place.interface, place.address)
    if vendor.flight_recorder and not (place.is_alone and spec.nproc == 1):
        chosen |= flight_recorder.variables(vendor.flight_recorder, spec.run_dir)
    chosen |= vendor.environment(user)
    return {name: value for name, value in chosen.items() if name not in user}


def record_environment(
    spec: JobSpec, given: Mapping[str, str], user: Mapping[str, str], place: NodePlace = ALONE
) -> None:
    """Write the variables of a node's processes that differ from the user's to `environment_R.json` in the logs.

    Raises:
        MachineError: the directory cannot be written.
    """
    new = {name: value for name, value in sorted(given.items()) if user.get(name) != value}
    with translated_disk_errors(spec.logs, "opening a log"):
        spec.logs.mkdir(parents=True, exist_ok=True)
    write_json(spec.logs / f"environment_{place.node_rank}.json", new)
