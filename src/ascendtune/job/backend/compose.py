"""A Compose file: the container of `docker run` in the words of the Compose specification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ascendtune.job.backend.docker import BY_HAND
from ascendtune.job.backend.submission import (
    GRACE_SECONDS,
    HEADER,
    SHARED_MEMORY_GIB,
    Submission,
    in_container,
    to_yaml,
)


def write(submission: Submission, root: Path = Path("/")) -> str:
    """The file for `docker compose up`.

    Args:
        root: where the host's files are looked for.
    """
    service = _literal(_service(submission, root))
    if submission.nodes > 1:
        # Compose takes these from the environment.
        service["environment"] += [f"{name}={value}" for name, value in BY_HAND.items()]
    content = {"name": submission.name, "services": {"train": service}}
    file = f"{submission.name}.compose.yaml"
    comments = [
        f"# {HEADER}: {submission.places}.",
        f"#   docker compose -f {file} up --detach    # again: resumes",
        f"#   docker compose -f {file} stop           # with a checkpoint",
    ]
    if submission.nodes > 1:
        comments += ["# On every node, with NODE_RANK=0, 1, … and MASTER_ADDR=<address of node 0> in the environment."]
    return "\n".join([*comments, to_yaml(content)])


def _service(submission: Submission, root: Path) -> dict[str, Any]:
    needs = submission.needs
    service: dict[str, Any] = {
        "image": submission.image,
        "command": in_container(submission, {}),
        "working_dir": str(submission.directory),
        "init": True,
        "restart": "no",
        "stop_grace_period": f"{GRACE_SECONDS}s",
        "security_opt": ["no-new-privileges:true"],
        "shm_size": f"{SHARED_MEMORY_GIB}gb",
    }
    environment = [f"{name}={value}" for name, value in submission.variables.items()]
    if submission.nodes > 1:
        service["network_mode"] = "host"
        environment += [f"NNODES={submission.nodes}"]
    if environment := [*environment, *submission.inherited]:
        service["environment"] = environment
    if files := needs.device_files(submission.device_ids):
        service["devices"] = [f"{file}:{file}" for file in files]
    if needs.docker_driver:
        reserved = {
            "driver": needs.docker_driver,
            "device_ids": list(submission.device_ids),
            "capabilities": [submission.vendor.noun.lower()],
        }
        service["deploy"] = {"resources": {"reservations": {"devices": [reserved]}}}
    if needs.ulimits:
        service["ulimits"] = dict(needs.ulimits)
    service["volumes"] = [_volume(path, writable=False) for path in needs.mounts(root)]
    service["volumes"] += [_volume(str(mount.path), writable=mount.writable) for mount in submission.mounts]
    return service


def _volume(path: str, *, writable: bool) -> dict[str, Any]:
    bind = {"type": "bind", "source": path, "target": path}
    return bind if writable else {**bind, "read_only": True, "bind": {"create_host_path": False}}


def _literal(value: Any) -> Any:
    """`value` with `$$` for each dollar in it: Compose puts values for what looks like a variable."""
    if isinstance(value, dict):
        return {key: _literal(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return list(map(_literal, value))
    return value.replace("$", "$$") if isinstance(value, str) else value
