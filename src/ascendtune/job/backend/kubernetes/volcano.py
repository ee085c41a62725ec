"""Volcano's Job, which MindCluster schedules NPUs by: all pods start, or none.

Fields: `config/crd/volcano/bases/batch.volcano.sh_jobs.yaml` of volcano-sh/volcano. Variables: its plugins `env`
(VC_TASK_INDEX) and `svc` (VC_WORKER_HOSTS, host names with commas between them, for a task named `worker`). Policies
are tried in order and the first that fits decides (`applyPolicies` in its job controller). Labels, resource and
ASCEND_VISIBLE_DEVICES: Ascend/mind-cluster, "Full-NPU scheduling", the sample of a Volcano Job.
"""

from __future__ import annotations

from ascendtune.job.backend.kubernetes.job import RETRIES
from ascendtune.job.backend.kubernetes.pod import Object, metadata, template
from ascendtune.job.backend.submission import MASTER_PORT, Submission

_RENDEZVOUS = {
    "NODE_RANK": "$VC_TASK_INDEX",
    "MASTER_ADDR": "${VC_WORKER_HOSTS%%,*}",
    "MASTER_PORT": str(MASTER_PORT),
}

_POLICIES = [
    # Wrong recipe or data, a loss that is not a number: the same again would end the same.
    {"exitCode": 1, "action": "AbortJob"},
    {"exitCode": 2, "action": "AbortJob"},
    {"events": ["PodFailed", "PodEvicted"], "action": "RestartJob"},
    {"event": "TaskCompleted", "action": "CompleteJob"},
]


def objects(submission: Submission) -> list[Object]:
    pod = template(submission, _RENDEZVOUS, container="train")
    pod["spec"]["restartPolicy"] = "Never"
    container = pod["spec"]["containers"][0]
    granted = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}}
        for name, annotation in submission.needs.granted.items()
    ]
    if granted:
        container["env"] = [*granted, *container.get("env", [])]
    if submission.hours is not None:
        pod["spec"]["activeDeadlineSeconds"] = round(submission.hours * 3600)
    task = {"name": "worker", "replicas": submission.nodes, "template": pod}
    spec = {
        "schedulerName": "volcano",
        "minAvailable": submission.nodes,
        "maxRetry": RETRIES,
        "plugins": {"env": [], "svc": []},
        "policies": _POLICIES,
        "tasks": [task],
    }
    return [{"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": metadata(submission), "spec": spec}]
