"""Ascend NPUs.

Device files and driver mounts: LLaMA-Factory's docs for NPU and vllm-ascend's `docs/source/installation.md`, which use
the same ones; the second without `--privileged`. The whole driver directory rather than its `lib64`, as in
MindCluster's samples, because hccn_tool is in it. /etc/hccn.conf: addresses of the NPUs' network ports.
`huawei.com/Ascend910`: Ascend/mind-cluster, "Full-NPU scheduling", for A2 and A3 too (Ascend 950: huawei.com/npu).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from ascendtune.machine.vendor.base import ContainerNeeds, Peak, Planned, Vendor, ids_of_files

if TYPE_CHECKING:
    from ascendtune.machine.inventory import Accelerator
    from ascendtune.machine.npu.smi import NpuSmi

_ENVIRONMENT = {
    # Level 2 of the dispatch queue also overlaps workspace allocation; runs are often bound by the host. More memory at
    # the peak: https://www.hiascend.com/document/detail/zh/Pytorch/600/apiref/Envvariables/Envir_019.html
    "TASK_QUEUE_ENABLE": "2",
    # Ranks reach their first collective at different times (weights are read, kernels compiled); 120 s is too short.
    "HCCL_CONNECT_TIMEOUT": "600",
    # A multiple of 68, as the first generation requires, and less than the 30 minutes after which torch gives up:
    # HCCL's own message names the missing rank.
    "HCCL_EXEC_TIMEOUT": "1768",
    # The documented default of CANN; earlier releases had the opposite one and refused every peer.
    "HCCL_WHITELIST_DISABLE": "1",
}

_HCCS_LINK = 28e9
"""Bytes per second in one direction between two 910B of a server in which each is linked to each. Not a figure of
Huawei's: 56 GB/s is the one-to-one maximum in arthurchiao.art, "GPU Performance (Data Sheets) Quick Reference" (one to
seven: 392), which counts both directions: a public measurement on Atlas A2 has 26.2 GB/s in one, and 50.8 in both."""
_HCCS_CHIPS = ("910B1", "910B2", "910B3", "910B4")
"""A 910B without a digit is of the first generation."""

_TRANSFER_TO_NPU = Path(__file__).with_name("transfer_to_npu")

_CANN, _OLDER_CANN = "/usr/local/Ascend/cann/set_env.sh", "/usr/local/Ascend/ascend-toolkit/set_env.sh"
_LOAD_CANN = (
    f'if [ -n "${{ASCEND_HOME_PATH:-}}" ]; then :; elif [ -f {_CANN} ]; then . {_CANN}; '
    f"elif [ -f {_OLDER_CANN} ]; then . {_OLDER_CANN}; fi"
)
"""CANN 8.5 and later are in `cann`; root's installation also links `ascend-toolkit` to it."""


class NpuVendor(Vendor):
    kind = "npu"
    noun = "NPU"
    plural = "NPU"
    visible_variable = "ASCEND_RT_VISIBLE_DEVICES"
    # HCCL's buffers are part of the context: 200 MB twice for each group by default (HCCL_BUFFSIZE).
    planned = Planned(
        "npu_fusion", "npu", context_bytes=2**30, fuses_optimizer_in_fp16=False, fuses_without_bf16=False,
        # Public runs of 7B and 8B models: 0.20 to 0.53 (docs/plan.md).
        flops_share=(0.2, 0.35, 0.5),
    )  # fmt: skip
    interface_variables = ("HCCL_SOCKET_IFNAME",)
    container = ContainerNeeds(
        # Atlas 800T A3: 8 cards of two chips each; Atlas 200T A2 Box: 16 chips.
        most_in_a_node=16,
        device_file="/dev/davinci{}",
        control_files=("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
        driver=("/usr/local/Ascend/driver", "/usr/local/dcmi", "/etc/ascend_install.info"),
        # The driver's installer puts npu-smi into one or the other, depending on its version.
        driver_if_there=("/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi", "/etc/hccn.conf"),
        resource="huawei.com/Ascend910",
        # Ascend/mind-cluster: "product type identifier", for A2 and A3.
        labels={"ring-controller.atlas": "ascend-910b"},
        granted={"ASCEND_VISIBLE_DEVICES": "huawei.com/Ascend910"},
        # Slurm has no plugin for NPUs: a site names them itself in gres.conf, and no variable is set.
        gres="npu",
        slurm_limits_devices=False,
        image="ascendtune:ascend",
        set_up=(_LOAD_CANN,),
    )

    def device_ids(self, dev: Path) -> tuple[str, ...]:
        # Logical ids count from 0, independent of the numbers of the device files (containers map a part of them).
        return ids_of_files(dev, r"davinci\d+")

    def visible(self, ids: Sequence[str], value: str) -> tuple[str, ...]:
        # The runtime stops at the first name that does not exist or does not ascend, without a message.
        kept: list[str] = []
        for name in value.split(","):
            if name not in ids or (kept and int(name) <= int(kept[-1])):
                break
            kept.append(name)
        return tuple(kept)

    def why_unused(self) -> str | None:
        return None if find_spec("torch_npu") else "torch_npu is not installed (pip install 'ascendtune[npu]')"

    def near_cores(self, ids: Sequence[str], root: Path = Path("/")) -> list[set[int]]:
        from ascendtune.machine.npu.smi import NpuSmi
        from ascendtune.machine.npu.topology import cores_of

        topology = NpuSmi().topology()
        if topology is None:
            return [set() for _ in ids]
        # The lines are in the order of the logical ids.
        cores = {str(index): cores_of(topology.cores.get(npu, "")) for index, npu in enumerate(topology.npus)}
        return [cores.get(each, set()) for each in ids]

    def link_peak(self, ids: Sequence[str], *, smi: NpuSmi | None = None) -> Peak:
        """`smi`: npu-smi (default: this machine's)."""
        from ascendtune.machine.npu.smi import NpuSmi

        smi = smi or NpuSmi()
        topology = smi.topology()
        if topology is None:
            return Peak(None, "npu-smi does not report the topology")
        numbers = [int(name) for name in ids if name.isdecimal()]
        if len(numbers) < len(ids) or any(number >= len(topology.npus) for number in numbers):
            return Peak(None, f"the topology does not show the NPUs {', '.join(ids)}")
        npus = [topology.npus[number] for number in numbers]
        ways = sorted({topology.links.get(pair, "NA") for pair in combinations(npus, 2)})
        chips = {device.name for device in smi.info().devices}
        if ways == ["HCCS"] and chips and all(name and name.startswith(_HCCS_CHIPS) for name in chips):
            return Peak(_HCCS_LINK, "HCCS of the 910B, as reported in public")
        return Peak(None, f"no published speed of {', '.join(ways)} between these NPUs is known here")

    def label(self, device: Accelerator) -> str:
        return f"NPU {device.npu_id}" + (f" chip {device.chip_id}" if device.chip_id else "")

    def environment(self, user: Mapping[str, str]) -> dict[str, str]:
        # Both variables at once are an error from torch_npu 26.2 on.
        if "PYTORCH_ALLOC_CONF" in user:
            return dict(_ENVIRONMENT)
        # Expandable segments leave fewer gaps if lengths differ from batch to batch; needs Ascend HDK 23.0.0.
        # https://www.hiascend.com/document/detail/zh/Pytorch/710/comref/Envvariables/Envir_011.html
        return {**_ENVIRONMENT, "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}

    def cuda_environment(self, user: Mapping[str, str]) -> dict[str, str]:
        places = [str(_TRANSFER_TO_NPU), user.get("PYTHONPATH", "")]
        return {"PYTHONPATH": os.pathsep.join(filter(None, places)), "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}

    def network_environment(self, interface: str, address: str | None) -> dict[str, str]:
        # With "=" HCCL matches the whole name, otherwise a prefix of names.
        own_address = {"HCCL_IF_IP": address} if address else {}
        return {"HCCL_SOCKET_IFNAME": f"={interface}", **own_address}
