"""`python -m ascend_node SCENARIO [COMMAND…]`: a shell, or one command, on a simulated machine.

`npu-smi` and `hccn_tool` there are ours, and `ascendtune doctor` looks at that machine instead of this one.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from ascend_node.node import SIMULATED
from ascend_node.scenarios import SCENARIOS
from ascend_node.system import system_of

_ASCENDTUNE = """#!{python}
import os, sys
from dataclasses import replace
sys.path.insert(0, {tests!r})
from pathlib import Path
from ascend_node.system import system_of
from ascend_node.scenarios import SCENARIOS
from ascendtune.check.doctor import system
from ascendtune.cli.main import main
sys.stderr.write({simulated!r} + "\\n")
machine = system_of(SCENARIOS[{scenario!r}], Path({root!r}))
machine.env = {{**machine.env, **os.environ}}
system.System = lambda needs=None: replace(machine, needs=needs)
main()
"""


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in SCENARIOS:
        sys.stderr.write(f"which machine? one of: {', '.join(SCENARIOS)}\n")
        return 2
    scenario, command = arguments[0], arguments[1:]
    with tempfile.TemporaryDirectory(prefix="ascend-node-") as directory:
        root = Path(directory)
        machine = system_of(SCENARIOS[scenario], root)
        _install(root, scenario)
        env = {
            **os.environ,
            **machine.env,
            "PATH": f"{root}/bin:{os.environ['PATH']}",
            "PS1": f"SIMULATED {scenario}$ ",
        }
        sys.stderr.write(f"{SIMULATED}; it is {scenario}, below {root}\n")
        argv = command or [
            os.environ.get("SHELL", "/bin/sh"),
            *(["--norc"] if "bash" in os.environ.get("SHELL", "") else []),
        ]
        return os.spawnvpe(os.P_WAIT, argv[0], argv, env)


def _install(root: Path, scenario: str) -> None:
    program = root / "bin" / "ascendtune"
    tests = str(Path(__file__).parents[1])
    text = _ASCENDTUNE.format(
        python=sys.executable, tests=tests, scenario=scenario, root=str(root), simulated=SIMULATED
    )
    program.write_text(text)
    program.chmod(0o755)
    tool = root / "usr/local/Ascend/driver/tools/hccn_tool"
    if tool.exists():
        (root / "bin" / "hccn_tool").symlink_to(tool)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
