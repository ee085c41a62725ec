"""Whether the cores may run at full clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok

CODE = "cpu_governor"


def _look(outside: Outside) -> Iterator[Finding]:
    if not outside.npu_nodes and not outside.gpus[0]:
        return
    governors = Counter(
        outside.text(f"/sys/devices/system/cpu/{cpu.name}/cpufreq/scaling_governor").strip()
        for cpu in outside.path("/sys/devices/system/cpu").glob("cpu[0-9]*")
    )
    del governors[""]
    if not governors:
        return
    slow = sum(count for name, count in governors.items() if name in ("powersave", "conservative"))
    # intel_pstate and amd-pstate call their ordinary governor powersave.
    scales_itself = "pstate" in outside.text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver")
    told = ", ".join(f"{name} on {count}" for name, count in sorted(governors.items()))
    if slow and not scales_itself:
        yield Finding(
            CODE,
            "warning",
            f"{slow} of {sum(governors.values())} cores save power",
            expected="performance",
            remedy="sudo cpupower frequency-set -g performance",
            evidence=(told,),
        )
    else:
        yield ok(CODE, f"{told} cores")


CHECK = Check(
    CODE,
    what="Reads the frequency governor of every core.",
    why="Operators are sent to the NPU by the CPU. At a low clock a small model is bound by the host, and cards idle "
    "while everything looks right.",
    fix="sudo cpupower frequency-set -g performance; for good in the BIOS or by tuned.",
    look=_look,
)
