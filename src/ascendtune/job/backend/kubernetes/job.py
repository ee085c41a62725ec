"""Kubernetes' own Job: runs on any cluster. Several nodes are an Indexed Job behind a headless Service.

kubernetes.io, "Indexed Job": the pod of index 0 is reached as `<job>-0.<service>`, and each finds JOB_COMPLETION_INDEX.
There is no gang scheduling: pods of a job that does not fit wait for each other, holding their devices.
"""

from __future__ import annotations

from ascendtune.job.backend.kubernetes.pod import Object, metadata, template
from ascendtune.job.backend.submission import MASTER_PORT, Submission

RETRIES = 3


def objects(submission: Submission) -> list[Object]:
    name, nodes = submission.name, submission.nodes
    rendezvous = {
        "NODE_RANK": "$JOB_COMPLETION_INDEX",
        "MASTER_ADDR": f"{name}-0.{name}",
        "MASTER_PORT": str(MASTER_PORT),
    }
    pod = template(submission, rendezvous, container="train")
    pod["spec"]["restartPolicy"] = "Never"
    spec: Object = {
        # When one node fails, all do.
        "backoffLimit": RETRIES * nodes,
        "podFailurePolicy": failure_policy("train"),
    }
    if submission.hours is not None:
        spec["activeDeadlineSeconds"] = round(submission.hours * 3600)
    if nodes == 1:
        return [_job(submission, {**spec, "template": pod})]
    pod["spec"]["subdomain"] = name
    spec |= {"completionMode": "Indexed", "completions": nodes, "parallelism": nodes, "template": pod}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(submission),
        "spec": {
            "clusterIP": "None",
            # Names must resolve while the pods still look for each other.
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": name},
        },
    }
    return [service, _job(submission, spec)]


def failure_policy(container: str) -> Object:
    """When a pod of `container` has failed, whether it is worth another try."""
    final = {"containerName": container, "operator": "In", "values": [1, 2, 4]}
    return {
        "rules": [
            # Draining a node is not a failure of training.
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
            # Wrong recipe or data, a loss that is not a number: the same again would end the same.
            {"action": "FailJob", "onExitCodes": final},
        ]
    }


def _job(submission: Submission, spec: Object) -> Object:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata(submission), "spec": spec}
