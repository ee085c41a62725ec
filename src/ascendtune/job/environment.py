"""The environment of a job's processes. The user's settings win over defaults."""

from __future__ import annotations

from collections.abc import Mapping

from ascendtune.core.errors import translated_disk_errors
from ascendtune.core.files import write_json
from ascendtune.core.rundir import JOB_MARK
from ascendtune.job.hang import flight_recorder
from ascendtune.job.spec import ALONE, JobSpec, NodePlace
from ascendtune.machine.peers import INIT_METHOD
from ascendtune.machine.vendor.find import vendor_of

# A rank's place, left over when the command is started inside another job; this job has a world of its own.
_PLACES = frozenset(
    f"{prefix}{name}" for prefix in ("", "LOCAL_", "GROUP_", "ROLE_") for name in ("RANK", "WORLD_SIZE")
) | {INIT_METHOD}


# A thread of libgomp that waits spins 300,000 times, milliseconds, before it sleeps. Where another process has its
# core, that is most of a training's time; this many are enough where nobody has.
_SPINS = "5000"


def environment(spec: JobSpec, user: Mapping[str, str], *, cores: int, place: NodePlace = ALONE) -> dict[str, str]:
    """The environment for `spec`: the user's, and defaults for what is not in it."""
    chosen: dict[str, str] = {}
    if spec.device_ids is not None and (variable := vendor_of(spec.kind).visible_variable):
        chosen[variable] = ",".join(spec.device_ids)
    inherited = {name: value for name, value in user.items() if name not in _PLACES}
    chosen |= {**spec.variables, JOB_MARK: spec.id}
    return {**defaults(spec, inherited, cores=cores, place=place), **inherited, **chosen}


def defaults(spec: JobSpec, user: Mapping[str, str], *, cores: int, place: NodePlace = ALONE) -> dict[str, str]:
    """The variables that are set where the user has not set them.

    Args:
        cores: how many cores of this node the job may use.
    """
    vendor = vendor_of(spec.kind)
    chosen: dict[str, str] = {}
    if spec.device_ids is not None and vendor.visible_variable not in user:
        # Where the user has set it, the user's order stays.
        chosen |= vendor.numbering
    if spec.nproc > 1:
        # torchrun would set 1, which leaves most of a host idle in the optimizer and in data work.
        chosen["OMP_NUM_THREADS"] = str(max(1, cores // spec.nproc))
    if "OMP_WAIT_POLICY" not in user:
        chosen["GOMP_SPINCOUNT"] = _SPINS
    if place.is_alone and spec.nproc > 1:
        # Gloo otherwise asks DNS for the name of this machine; all ranks are on it.
        chosen["GLOO_SOCKET_IFNAME"] = "lo"
    elif place.interface is not None:
        # Every library on the interface that leads to the master: each guesses otherwise, and not all guess the same.
        chosen |= {"GLOO_SOCKET_IFNAME": place.interface, "TP_SOCKET_IFNAME": place.interface}
        chosen |= vendor.network_environment(place.interface, place.address)
    if vendor.flight_recorder and not (place.is_alone and spec.nproc == 1):
        chosen |= flight_recorder.variables(vendor.flight_recorder, spec.run_dir)
    chosen |= vendor.environment(user)
    return {name: value for name, value in chosen.items() if name not in user}


def note(spec: JobSpec, given: Mapping[str, str], user: Mapping[str, str], place: NodePlace = ALONE) -> None:
    """Write what the processes of a node were given beside what the user had set to `environment_R.json` in the logs.

    Raises:
        MachineError: the directory cannot be written.
    """
    new = {name: value for name, value in sorted(given.items()) if user.get(name) != value}
    with translated_disk_errors(spec.logs, "opening a log"):
        spec.logs.mkdir(parents=True, exist_ok=True)
    write_json(spec.logs / f"environment_{place.node_rank}.json", new)
