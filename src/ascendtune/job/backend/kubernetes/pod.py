"""The pod of one node, which every kind of job has a template for. Core kinds: Kubernetes' API v1."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ascendtune.job.backend.submission import (
    GRACE_SECONDS,
    SHARED_MEMORY_GIB,
    Mount,
    Submission,
    in_container,
    require_text,
)

Object = dict[str, Any]

_NO_MOUNT_PATH = re.compile(":")

_RECIPE = "recipe.yaml"
"""Its key in the ConfigMap, which takes fewer letters than a file name."""


def template(submission: Submission, rendezvous: Mapping[str, str], *, container: str) -> Object:
    """A PodTemplateSpec without the restart policy, which kinds set themselves.

    Args:
        rendezvous: variable of torchrun's -> what it is in the words of the kind, as a shell reads it.
        container: the name that the kind's controller looks for.
    """
    volumes, mounts = _volumes(submission)
    needs = submission.needs
    exports = {"NNODES": str(submission.nodes), **rendezvous} if submission.nodes > 1 else {}
    content: Object = {
        "name": container,
        "image": submission.image,
        # Not `command`, which would replace the image's entry point: it may set up CANN.
        "args": list(map(_literal, in_container(submission, exports))),
        "workingDir": str(submission.directory),
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": mounts,
    }
    if environment := _environment(submission):
        content["env"] = environment
    if needs.resource:
        granted = {needs.resource: str(submission.devices)}
        content["resources"] = {"requests": granted, "limits": granted}
    spec = {"terminationGracePeriodSeconds": GRACE_SECONDS, "containers": [content], "volumes": volumes}
    return {"metadata": {"labels": labels(submission)}, "spec": spec}


def labels(submission: Submission) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "ascendtune",
        "app.kubernetes.io/instance": submission.name,
        **submission.needs.labels,
    }


def metadata(submission: Submission, name: str | None = None) -> Object:
    here = {"namespace": submission.namespace} if submission.namespace else {}
    return {"name": name or submission.name, **here, "labels": labels(submission)}


def config_map(submission: Submission, text: str) -> Object:
    """The recipe, which travels with the job: the nodes need no copy."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(submission),
        "data": {_RECIPE: text},
    }


def _environment(submission: Submission) -> list[Object]:
    plain = [{"name": name, "value": _literal(value)} for name, value in submission.variables.items()]
    secret = [
        {
            "name": name,
            # Optional: a pod should not wait for a token that this training may not need.
            "valueFrom": {"secretKeyRef": {"name": submission.secret, "key": name, "optional": True}},
        }
        for name in submission.inherited
    ]
    return [*plain, *secret]


def _literal(text: str) -> str:
    """`text` as it stays: Kubernetes puts values for $(NAME), and one dollar for two."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def _volumes(submission: Submission) -> tuple[list[Object], list[Object]]:
    """Volumes, and where they are mounted."""
    volumes: list[Object] = [
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHARED_MEMORY_GIB}Gi"}}
    ]
    mounts: list[Object] = [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    for number, (place, claim) in enumerate(submission.volumes.items(), 1):
        volumes.append({"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": f"volume-{number}", "mountPath": str(place)})
    for number, host_path in enumerate(submission.needs.driver, 1):
        volumes.append({"name": f"driver-{number}", "hostPath": {"path": host_path}})
        mounts.append({"name": f"driver-{number}", "mountPath": host_path, "readOnly": True})
    for number, mount in enumerate(from_nodes(submission), 1):
        # A run directory may be made on the way; data that are not there must not become an empty directory.
        kind = {"type": "DirectoryOrCreate"} if mount.writable else {}
        volumes.append({"name": f"node-{number}", "hostPath": {"path": str(mount.path), **kind}})
        read_only = {} if mount.writable else {"readOnly": True}
        mounts.append({"name": f"node-{number}", "mountPath": str(mount.path), **read_only})
    if submission.recipe is not None:
        volumes.append({"name": "recipe", "configMap": {"name": submission.name}})
        at = {"mountPath": str(submission.recipe), "subPath": _RECIPE, "readOnly": True}
        mounts.append({"name": "recipe", **at})
    for each in mounts:
        require_text(each["mountPath"], _NO_MOUNT_PATH)
    return volumes, mounts


def from_nodes(submission: Submission) -> list[Mount]:
    """What no claim covers: it comes from the nodes' own file systems, at the same path on each."""
    return [mount for mount in submission.mounts if not _covered(mount.path, submission.volumes)]


def _covered(path: Path, places: Iterable[Path]) -> bool:
    return any(path.is_relative_to(place) for place in places)
