"""A manifest for kubectl: the recipe as a ConfigMap, and the job, from `templates/kubernetes/`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ascendtune.job.backend.submission import MASTER_PORT, ContainerMount, Submission, in_container, require_text
from ascendtune.job.backend.template import fill_yaml, heading, to_yaml

_RETRIES = 3
_NO_MOUNT_PATH = re.compile(":")

Object = dict[str, Any]


@dataclass(frozen=True)
class KubernetesKind:
    """Properties of the pods that depend on the kind of job."""

    rendezvous: Mapping[str, str]
    """torchrun's variable -> its value with the kind's variables, as a shell reads it; `<name>` is the job's name."""
    container: str = "train"
    """The container name that the kind's controller looks for."""
    pod_never_restarts: bool = True
    pod_has_deadline: bool = False
    pod_has_subdomain: bool = False
    grants_variables: bool = False
    """Whether the scheduler records the granted devices in the pod's annotations."""


KINDS = {
    "job": KubernetesKind(
        {"NODE_RANK": "$JOB_COMPLETION_INDEX", "MASTER_ADDR": "<name>-0.<name>", "MASTER_PORT": str(MASTER_PORT)},
        pod_has_subdomain=True,
    ),
    "volcano": KubernetesKind(
        {
            "NODE_RANK": "$VC_TASK_INDEX",
            "MASTER_ADDR": "${VC_WORKER_HOSTS%%,*}",
            "MASTER_PORT": str(MASTER_PORT),
        },
        pod_has_deadline=True,
        grants_variables=True,
    ),
    "pytorchjob": KubernetesKind({"NODE_RANK": "$RANK"}, container="pytorch", pod_never_restarts=False),
    "trainjob": KubernetesKind(
        {"NODE_RANK": "$PET_NODE_RANK", "MASTER_ADDR": "$PET_MASTER_ADDR", "MASTER_PORT": "$PET_MASTER_PORT"},
        container="node",
    ),
}
"""Values of `--kind`, each with a template of its name."""


def write(submission: Submission, kind: str, recipe_text: str) -> str:
    """The manifest.

    Args:
        kind: a key of `KINDS`.
        recipe_text: content of `submission.recipe`.
    """
    hours = submission.hours
    values: Object = {
        **submission.values,
        "namespace": submission.namespace,
        "vendor_labels": dict(submission.needs.labels),
        "seconds": None if hours is None else round(hours * 3600),
        "retries": _RETRIES,
        "retries_of_all_nodes": _RETRIES * submission.nodes,
        "workers": submission.nodes - 1,
        "container": KINDS[kind].container,
        "recipe_text": recipe_text,
        "in_namespace": f" -n {submission.namespace}" if submission.namespace else "",
        "secret": submission.secret,
        "from_literals": " ".join(f'--from-literal={name}="${name}"' for name in submission.inherited),
    }
    (values["metadata"],) = fill_yaml("kubernetes/metadata.yaml", values)
    values["labels"] = values["metadata"]["labels"]
    (values["failure_policy"],) = fill_yaml("kubernetes/failure_policy.yaml", values)
    (values["pod"],) = fill_yaml("kubernetes/pod.yaml", {**values, **_pod(submission, KINDS[kind])})
    objects = [*fill_yaml("kubernetes/configmap.yaml", values), *fill_yaml(f"kubernetes/{kind}.yaml", values)]
    return heading("kubernetes/configmap.yaml", values) + to_yaml(*objects)


def _pod(submission: Submission, kind: KubernetesKind) -> Object:
    needs, several = submission.needs, submission.nodes > 1
    rendezvous = {name: value.replace("<name>", submission.name) for name, value in kind.rendezvous.items()}
    exports = {"NNODES": str(submission.nodes), **rendezvous} if several else {}
    volumes, mounts = _volumes(submission)
    return {
        "args": [_literal(each) for each in in_container(submission, exports)],
        "env": [*(_granted(submission) if kind.grants_variables else []), *_environment(submission)],
        "resource": needs.resource,
        "recipe": None if submission.recipe is None else str(submission.recipe),
        "volumes": volumes,
        "volume_mounts": mounts,
        "never_restarts": kind.pod_never_restarts,
        "has_deadline": kind.pod_has_deadline and submission.hours is not None,
        "has_subdomain": kind.pod_has_subdomain and several,
    }


def _granted(submission: Submission) -> list[Object]:
    return [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}}
        for name, annotation in submission.needs.granted.items()
    ]


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
    """`text` escaped: Kubernetes substitutes $(NAME), and replaces two dollars by one."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def _volumes(submission: Submission) -> tuple[list[Object], list[Object]]:
    """Volumes, and their mounts."""
    volumes: list[Object] = []
    mounts: list[Object] = []
    for number, (place, claim) in enumerate(submission.volumes.items(), 1):
        volumes.append({"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": f"volume-{number}", "mountPath": str(place)})
    for number, host_path in enumerate(submission.needs.driver, 1):
        volumes.append({"name": f"driver-{number}", "hostPath": {"path": host_path}})
        mounts.append({"name": f"driver-{number}", "mountPath": host_path, "readOnly": True})
    for number, mount in enumerate(from_nodes(submission), 1):
        # A run directory may be created; missing data must not become an empty directory.
        kind = {"type": "DirectoryOrCreate"} if mount.writable else {}
        volumes.append({"name": f"node-{number}", "hostPath": {"path": str(mount.path), **kind}})
        read_only = {} if mount.writable else {"readOnly": True}
        mounts.append({"name": f"node-{number}", "mountPath": str(mount.path), **read_only})
    for path in (*(each["mountPath"] for each in mounts), str(submission.recipe or "")):
        require_text(path, _NO_MOUNT_PATH)
    return volumes, mounts


def from_nodes(submission: Submission) -> list[ContainerMount]:
    """The mounts that no claim covers: they come from the nodes' own file systems, at the same path on each node."""
    claimed = submission.volumes
    return [mount for mount in submission.mounts if not any(map(mount.path.is_relative_to, claimed))]
