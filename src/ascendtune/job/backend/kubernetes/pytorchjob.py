"""PyTorchJob of Kubeflow's training operator (its version 1).

Fields: kubeflow/training-operator, `sdk/python/docs/KubeflowOrgV1{PyTorchJob,PyTorchJobSpec,ReplicaSpec,RunPolicy}.md`.
The container has to be called `pytorch`. Variables: its `pkg/controller.v1/pytorch/envvar.go`. RANK counts pods, not
processes, so it is torchrun's NODE_RANK; MASTER_ADDR and MASTER_PORT are set.
"""

from __future__ import annotations

from ascendtune.job.backend.kubernetes.job import RETRIES
from ascendtune.job.backend.kubernetes.pod import Object, metadata, template
from ascendtune.job.backend.submission import Submission

_RENDEZVOUS = {"NODE_RANK": "$RANK"}


def objects(submission: Submission) -> list[Object]:
    pod = template(submission, _RENDEZVOUS, container="pytorch")
    replicas = {"Master": _replica(pod, 1)}
    if submission.nodes > 1:
        replicas["Worker"] = _replica(pod, submission.nodes - 1)
    policy: Object = {"cleanPodPolicy": "None", "backoffLimit": RETRIES}
    if submission.hours is not None:
        policy["activeDeadlineSeconds"] = round(submission.hours * 3600)
    spec = {"runPolicy": policy, "pytorchReplicaSpecs": replicas}
    return [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata(submission), "spec": spec}]


def _replica(pod: Object, count: int) -> Object:
    # Codes from 128 on, which are signals, are tried again; those below are final.
    return {"replicas": count, "restartPolicy": "ExitCode", "template": pod}
