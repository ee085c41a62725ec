"""Machines by name: healthy ones, and one for each thing that goes wrong."""

from __future__ import annotations

from dataclasses import replace

from ascend_node.node import Cann, Chip, Node, Process

HEALTHY = Node()
_REST = (Chip(),) * 7
_LEFT_OVER = Chip(memory_used_megabytes=26214, processes=(Process(472206, "python3.11", 23343),))

SCENARIOS: dict[str, Node] = {
    "healthy-910b4": HEALTHY,
    "healthy-a3": replace(
        HEALTHY,
        name="Ascend910",
        chips=(Chip(memory_used_megabytes=3395),) * 16,
        chips_per_card=2,
        memory_total_megabytes=65536,
    ),
    "card-alarmed": replace(HEALTHY, chips=(*_REST, Chip(health="Alarm", error_code="80E01801"))),
    "link-down": replace(HEALTHY, chips=(Chip(link="DOWN", network_health="Fault"), *_REST)),
    "tls-differs": replace(HEALTHY, chips=(Chip(tls=1), *_REST)),
    "udp-source-fixed": replace(HEALTHY, chips=tuple(replace(chip, udp_source="custom") for chip in HEALTHY.chips)),
    "link-unstable": replace(HEALTHY, chips=(Chip(link_downs=7), *_REST)),
    "udp-source-differs": replace(HEALTHY, chips=(Chip(udp_source="custom"), *_REST)),
    "address-lost": replace(
        HEALTHY, chips=(Chip(address=None, kept="10.20.0.10"), Chip(address=None, kept="10.20.0.11"), *_REST[:6])
    ),
    "address-other-than-kept": replace(HEALTHY, chips=(Chip(kept="10.20.9.9"), *_REST)),
    "without-network": replace(
        HEALTHY, chips=tuple(replace(chip, link=None, address=None, gateway=None) for chip in HEALTHY.chips)
    ),
    "address-twice": replace(HEALTHY, chips=(Chip(address="10.20.0.17"), *_REST)),
    "leftover-process": replace(HEALTHY, chips=(_LEFT_OVER, *_REST)),
    "used-by-nobody": replace(HEALTHY, chips=(Chip(memory_used_megabytes=26214), *_REST), container=True),
    "driver-too-old": replace(
        HEALTHY,
        driver="23.0.3",
        cann=(Cann("8.1.RC1"),),
        packages={**HEALTHY.packages, "torch": "2.5.1", "torch-npu": "2.5.1"},
    ),
    "firmware-differs": replace(HEALTHY, firmware="6.4.12.1.241"),
    "container-without-dcmi": replace(
        HEALTHY, container=True, dcmi=False, npu_smi="npu get board type failed. ret is -9005"
    ),
    "container-without-driver": replace(HEALTHY, container=True, driver_files=False, hccn_tool="absent"),
    "container-without-cards": replace(
        HEALTHY,
        container=True,
        device_nodes=0,
        shared_nodes=(),
        driver_files=False,
        dcmi=False,
        npu_smi="absent",
        hccn_tool="absent",
    ),
    "container-privileged": replace(HEALTHY, container=True, privileged=True),
    "container-healthy": replace(HEALTHY, container=True),
    "npu-smi-hangs": replace(HEALTHY, npu_smi="hangs"),
    "opened-without-npu-smi": replace(HEALTHY, npu_smi="absent", opened_by=(4711,)),
    "interface-too-old": replace(HEALTHY, interface="3.9.0"),
    "nnal-differs": replace(HEALTHY, nnal="8.0.0"),
    "npu-smi-absent": replace(HEALTHY, npu_smi="absent"),
    "hccn-tool-hangs": replace(HEALTHY, hccn_tool="hangs"),
    "card-missing": replace(HEALTHY, device_nodes=7),
    "node-missing": replace(HEALTHY, shared_nodes=("davinci_manager", "devmm_svm")),
    "driver-not-loaded": replace(HEALTHY, device_nodes=0, shared_nodes=(), npu_smi="absent"),
    "no-torch-npu": replace(HEALTHY, packages={"torch": "2.6.0"}),
    "torch-differs": replace(HEALTHY, packages={**HEALTHY.packages, "torch": "2.7.1+cpu"}),
    "cann-absent": replace(HEALTHY, cann=()),
    "cann-not-loaded": replace(HEALTHY, cann=(Cann(loaded=False),)),
    "cann-8.5-not-loaded": replace(HEALTHY, cann=(Cann("8.3.RC1", loaded=False), Cann("8.5.0", loaded=False))),
    "cann-without-kernels": replace(HEALTHY, cann=(Cann(kernels=""),)),
    "cann-kernels-of-an-a3": replace(HEALTHY, cann=(Cann("8.5.0", kernels="ascend910_93"),)),
    "library-missing": replace(HEALTHY, unresolved=("libhccl.so", "libascend_hal.so")),
    "saves-power": replace(HEALTHY, governor="powersave"),
    "cores-of-one-socket": replace(HEALTHY, container=True, cores_allowed="0-1"),
    "cores-of-the-cards": replace(HEALTHY, numa_of_chips=(0,), cores_allowed="0-1"),
    "hugepages-reserved": replace(HEALTHY, hugepages_free=100 << 10),
    "peft-too-old": replace(HEALTHY, packages={**HEALTHY.packages, "peft": "0.17.1"}),
    "memory-limited": replace(HEALTHY, memory_limit_bytes=8 << 30),
}
