"""A Compose file: the container of `docker run` as the Compose specification describes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ascendtune.job.backend.submission import Submission, in_container
from ascendtune.job.backend.template import fill_yaml, heading, to_yaml


def write(submission: Submission, root: Path = Path("/")) -> str:
    """The file for `docker compose up`.

    Args:
        root: where the host's files are looked for.
    """
    needs = submission.needs
    numbers = needs.file_numbers(submission.device_ids, root)
    variables = [f"{name}={value}" for name, value in submission.variables.items()]
    values = {
        **submission.values,
        "command": in_container(submission, {}),
        "has_environment": bool(variables or submission.inherited or submission.nodes > 1),
        "variables": variables,
        "inherited": submission.inherited,
        "device_files": [f"{file}:{file}" for file in needs.device_files(numbers)],
        "docker_driver": needs.docker_driver,
        "device_ids": list(submission.device_ids),
        "capability": submission.vendor.noun.lower(),
        "ulimits": dict(needs.ulimits),
        "volumes": [
            *(_volume(path, writable=False) for path in needs.mounts(root)),
            *(_volume(str(mount.path), writable=mount.writable) for mount in submission.mounts),
        ],
    }
    return heading("compose.yaml", values) + to_yaml(*fill_yaml("compose.yaml", _literal(values)))


def _volume(path: str, *, writable: bool) -> dict[str, Any]:
    bind = {"type": "bind", "source": path, "target": path}
    return bind if writable else {**bind, "read_only": True, "bind": {"create_host_path": False}}


def _literal(value: Any) -> Any:
    """`value` with every dollar doubled: Compose substitutes variables."""
    if isinstance(value, dict):
        return {key: _literal(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_literal, value))
    return value.replace("$", "$$") if isinstance(value, str) else value
