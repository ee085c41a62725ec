"""Which problems of this machine prevent training, and how are they fixed?"""

from __future__ import annotations

CHECKS = {
    code: f"ascendtune.check.doctor.{module}:{code.upper()}_CHECK"
    for code, module in {
        "recipe": "recipe_needs",
        "accelerators": "accelerators",
        "device_nodes": "accelerators",
        "npu_smi": "device_state",
        "health": "device_state",
        "cann": "cann",
        "versions": "versions",
        "libraries": "libraries",
        "cuda": "cuda",
        "container": "container",
        "driver_firmware": "versions",
        "visible_devices": "accelerators",
        "device_memory": "device_state",
        "packages": "packages",
        "combinations": "packages",
        "environment": "environment",
        "shell_files": "environment",
        "hccl_host": "hccl_host",
        "npu_network": "npu_network",
        "memory_limit": "limits",
        "shared_memory": "limits",
        "limits": "limits",
        "disk": "disk",
        "storage": "storage",
        "permissions": "permissions",
        "log_directories": "log_directories",
        "cpu_governor": "cpu",
        "numa": "cpu",
        "hugepages": "limits",
        "network": "network",
        "tracker": "tracker",
    }.items()
}
"""The table of checks: code -> module and object. The more decisive come first."""

DEEP_CHECKS = {
    code: f"ascendtune.check.doctor.deep:{code.upper()}_CHECK" for code in ("compute", "transfer_to_npu", "all_reduce")
}
"""Checks that start programs which import torch; they take minutes."""

NODE_CHECKS = {
    code: f"ascendtune.check.doctor.{module}:{code.upper()}_CHECK"
    for code, module in {
        "nodes_answer": "nodes",
        "nodes_alike": "nodes",
        "nodes_npu_network": "nodes_npu_network",
        "clock_skew": "nodes",
    }.items()
}
"""Checks that compare the machines of `--nodes`, run on this machine."""
