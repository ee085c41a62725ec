"""A simulated machine as the doctor sees it: what the files below the root do not say is filled in here."""

from __future__ import annotations

from pathlib import Path

from ascend_node.node import Node
from ascendtune.check.doctor.system import Interface, System

GIB = 1 << 30


def system_of(node: Node, root: Path, **env: str) -> System:
    """Lay `node` out below `root`, and look at it. `env` is added to the environment of a shell there."""
    shell = node.lay_out(root)
    work = root / "home"
    work.mkdir(exist_ok=True)
    site = root / "site"
    return System(
        root=root,
        env={**shell, **env},
        cwd=work,
        cache=work,
        state=work,
        python=node.python,
        package=node.packages.get,
        package_requirements=lambda name: (),
        package_directory=lambda module: site / module if (site / module).exists() else None,
        interfaces=lambda: {"lo": Interface(("127.0.0.1",), True), "eth0": Interface(("192.168.7.2",), True)},
        is_first_pid_namespace=lambda: not node.container,
        limits=lambda number: (65536, 65536),
        space=lambda path: (500 * GIB, 1000 * GIB),
        inodes=lambda path: (10_000_000, 20_000_000),
        file_speed=lambda path: (1e9, 2e9),
        site=site,
        memory_total_bytes=1024 * GIB,
        query_gpus=lambda: ((), None, ()),
        timeout_seconds=20,
    )
