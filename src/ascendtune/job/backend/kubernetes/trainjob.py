"""TrainJob of Kubeflow Trainer (version 2), with a TrainingRuntime of its own.

A runtime of the job's own, because how a TrainJob changes the pods of a given one was called podSpecOverrides,
podTemplateOverrides and runtimePatches in successive versions, while a runtime's template has stayed the same. Fields:
`manifests/base/crds/trainer.kubeflow.org_{trainjobs,trainingruntimes}.yaml` of kubeflow/trainer; shape of the template:
its `manifests/base/runtimes/torch_distributed.yaml` (job and container have to be called `node`). Variables (PET_…):
its `pkg/runtime/framework/plugins/torch/torch.go`.
"""

from __future__ import annotations

from ascendtune.job.backend.kubernetes.job import RETRIES, failure_policy
from ascendtune.job.backend.kubernetes.pod import Object, metadata, template
from ascendtune.job.backend.submission import Submission

_GROUP = "trainer.kubeflow.org"
_RENDEZVOUS = {"NODE_RANK": "$PET_NODE_RANK", "MASTER_ADDR": "$PET_MASTER_ADDR", "MASTER_PORT": "$PET_MASTER_PORT"}


def objects(submission: Submission) -> list[Object]:
    pod = template(submission, _RENDEZVOUS, container="node")
    pod["spec"]["restartPolicy"] = "Never"
    job: Object = {
        "backoffLimit": RETRIES * submission.nodes,
        "podFailurePolicy": failure_policy("node"),
        "template": pod,
    }
    node = {
        "name": "node",
        "template": {"metadata": {"labels": {f"{_GROUP}/trainjob-ancestor-step": "trainer"}}, "spec": job},
    }
    runtime = {
        "apiVersion": f"{_GROUP}/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": metadata(submission),
        "spec": {
            "mlPolicy": {"numNodes": submission.nodes, "torch": {}},
            "template": {"spec": {"replicatedJobs": [node]}},
        },
    }
    spec: Object = {
        "runtimeRef": {"apiGroup": _GROUP, "kind": "TrainingRuntime", "name": submission.name},
        "trainer": {"numNodes": submission.nodes},
    }
    if submission.hours is not None:
        spec["activeDeadlineSeconds"] = round(submission.hours * 3600)
    train_job = {
        "apiVersion": f"{_GROUP}/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(submission),
        "spec": spec,
    }
    return [runtime, train_job]
