"""What keeps this machine from training, and what to do about it."""

from __future__ import annotations

_CODES = (
    "accelerators",
    "device_nodes",
    "npu_smi",
    "health",
    "cann",
    "versions",
    "libraries",
    "cuda",
    "container",
    "driver_firmware",
    "visible_devices",
    "device_memory",
    "packages",
    "combinations",
    "environment",
    "shell_files",
    "hccl_host",
    "npu_network",
    "memory_limit",
    "shared_memory",
    "limits",
    "disk",
    "cpu_governor",
    "numa",
    "hugepages",
    "network",
)

CHECKS = {code: f"ascendtune.check.doctor.{code}:CHECK" for code in _CODES}
"""The table of checks, the more decisive first."""

DEEP_CHECKS = {code: f"ascendtune.check.doctor.{code}:CHECK" for code in ("compute", "transfer_to_npu", "all_reduce")}
"""Those that import torch, and take their time."""

NODE_CHECKS = {code: f"ascendtune.check.doctor.{code}:CHECK" for code in ("nodes_answer", "nodes_alike", "clock_skew")}
"""Those that need several machines (`--nodes`): they look from here at all of them."""
