"""Failures of MindCluster's components on Kubernetes, and of MindSpore's jobs that they start."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_FORBIDDEN = (
    'Error from server (Forbidden): pods "tide" is forbidden: User "{}" cannot delete resource "pods" in API group "" '
    'in the namespace "moon"\n'
)
_NODE = (
    "[ERROR] DEVICE(7,f,python):2021 [mindspore/moon.cc:688] DumpTaskExceptionInfo] Dump node (Default/{}) task error "
    "input/output data to: ./rank_7/node_dump trace:\n"
)
_LOST = "there are(is) 1 abnormal device(s):\n    serverId[10.*.*.*], deviceId[7], Heartbeat Lost Occurred\n"
_CRASHED = "Aicore kernel execute failed, device_id=0, fault kernel_name={}\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        ("[ERROR] 2024/10/28 08:50:46.650662 7 moon get sem errno = 13\n", "mindcluster-semaphore"),
        (
            "[ERROR] 2024 moon.go:7 connecting to container runtime failed: connection error: no such file\n",
            "npu-exporter-runtime-socket",
        ),
        ("E1026 10:55:44.995088  1 framework.go:38] Failed to get plugin volcano-npu_v7\n", "volcano-plugin-missing"),
        ("[ERROR] 2024/10/28 08:50:46.650662 7 moon.go:7 get device ip failed, err: tide\n", "device-plugin-device-ip"),
        (
            "Warning volcano all nodes are unavailable: node annotations(6) not same node idle(8).\n",
            "volcano-npu-count-differs",
        ),
        ("[ERROR] npu is busy, check again.\n", "npu-busy-in-container"),
        ('Error from server (NotFound): namespaces "moon-tide" not found\n', "kubernetes-namespace-missing"),
        (_FORBIDDEN.format("system:node:moon7"), "kubectl-on-worker-node"),
        (_FORBIDDEN.format("moon"), "kubernetes-forbidden"),
        ("open /var/log/mindx-dl/clusterd/clusterd.log: permission denied\n", "mindx-log-directory"),
        ("open /var/log/moon/tide.log: permission denied\n", "permission"),
        ("Job for nfs-server.service failed because the control process exited with error code.\n", "nfs-server-start"),
        ("RuntimeError: The pointer[origin_node_output_addr] is null.\n", "mindspore-compile-cache-stale"),
        (_NODE.format("network/Gather-op7"), "mindspore-node-failed"),
        (_NODE.format("GetNext-op7"), "mindspore-getnext"),
        (_LOST + "malloc_consolidate(): invalid chunk size\n", "hccl-heartbeat"),
        ("malloc_consolidate(): invalid chunk size\n", "heap-corrupt"),
        (_CRASHED.format("add_13570952190744021808_0__kernel0"), "507015"),
        (_CRASHED.format("te_moon_fwd_kernel_7"), "kernel-of-triton"),
    ],
)
def test_words_of_components_and_jobs(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry
