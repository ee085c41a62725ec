"""The variables that put a process on a simulated Ascend node, as `set_env.sh` of CANN does on a real one.

Nothing is loaded or patched by hand: the loader finds our libraries where CANN's would be, Python finds torch_npu, and
torch loads it by its own autoload, in this process and in whatever it starts.
"""

from __future__ import annotations

import os
from pathlib import Path

from ascend_node.cann.build import PACKAGES, build

WHAT = "SIMULATED Ascend node of tests/ascend_node/cann: no NPU here, no number is one of a device"


def simulated_environment(
    base: dict[str, str], *, devices: int = 2, memory_mb: int = 65536, soc: str = "Ascend910B2"
) -> dict[str, str]:
    """`base` and what makes it a node with `devices` chips of type `soc`; builds the libraries when needed."""
    home = build()
    own = {
        "SIMULATED_NPU": WHAT,
        "SIMULATED_NPU_DEVICES": str(devices),
        "SIMULATED_NPU_MEMORY_MB": str(memory_mb),
        "SIMULATED_NPU_SOC": soc,
        "ASCEND_HOME_PATH": str(home),
        "ASCEND_OPP_PATH": str(home / "opp"),
        "LD_LIBRARY_PATH": _before(home / "lib64", base.get("LD_LIBRARY_PATH")),
        "PYTHONPATH": _before(PACKAGES, base.get("PYTHONPATH")),
    }
    return {**base, **own}


def _before(path: Path, rest: str | None) -> str:
    return os.pathsep.join([str(path), rest] if rest else [str(path)])
