"""Simulated machines as the checks see them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_node.node import Node
from ascend_node.scenarios import SCENARIOS
from ascendtune.check.doctor.outside import Interface, Outside

GIB = 1 << 30
Lay = Callable[..., Outside]


@pytest.fixture
def lay(tmp_path: Path) -> Lay:
    """`lay("card-alarmed")` or `lay(Node(…))`: a machine in a directory of the test's; env is added to the shell's."""

    def outside(machine: str | Node, **env: str) -> Outside:
        node = SCENARIOS[machine] if isinstance(machine, str) else machine
        root = tmp_path / "machine"
        shell = node.lay_out(root)
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        return Outside(
            root=root,
            env={**shell, **env},
            cwd=work,
            cache=work,
            python=node.python,
            package=node.packages.get,
            package_directory=lambda module: root / "site" / module if (root / "site" / module).exists() else None,
            interfaces=lambda: {"lo": Interface(("127.0.0.1",), True), "eth0": Interface(("192.168.7.2",), True)},
            limits=lambda number: (65536, 65536),
            space=lambda path: (500 * GIB, 1000 * GIB),
            memory_total_bytes=1024 * GIB,
            ask_gpus=lambda: ((), None, ()),
            timeout_seconds=20,
        )

    return outside
