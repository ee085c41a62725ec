"""What the processes of a job find in their environment. The user's settings win over defaults."""

from __future__ import annotations

from collections.abc import Mapping

from ascendtune.job.spec import JobSpec
from ascendtune.machine.visible import VARIABLES

_NPU = {
    # Level 2 of the dispatch queue also overlaps workspace allocation; runs are often bound by the host.
    "TASK_QUEUE_ENABLE": "2",
    # Ranks reach their first collective at different times (weights are read, kernels compiled); 120 s is too short.
    "HCCL_CONNECT_TIMEOUT": "600",
}

# A rank's place, left over when the command is started inside another job; this job has a world of its own.
_PLACES = frozenset(
    f"{prefix}{name}" for prefix in ("", "LOCAL_", "GROUP_", "ROLE_") for name in ("RANK", "WORLD_SIZE")
)


def environment(spec: JobSpec, user: Mapping[str, str], *, cores: int) -> dict[str, str]:
    """The environment for `spec`: the user's, and defaults for what is not in it.

    Args:
        cores: how many cores the job may use.
    """
    defaults: dict[str, str] = {}
    if spec.nproc > 1:
        # torchrun would set 1, which leaves most of a host idle in the optimiser and in data work.
        defaults["OMP_NUM_THREADS"] = str(max(1, cores // spec.nproc))
        # Gloo otherwise asks DNS for the name of this machine; all ranks are on it.
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    if spec.kind == "npu":
        defaults |= _NPU
    chosen: dict[str, str] = {}
    if spec.device_ids is not None and spec.kind in VARIABLES:
        chosen[VARIABLES[spec.kind]] = ",".join(spec.device_ids)
    inherited = {name: value for name, value in user.items() if name not in _PLACES}
    return {**defaults, **inherited, **chosen, **spec.variables}
