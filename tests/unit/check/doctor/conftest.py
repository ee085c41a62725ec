"""Simulated machines as the checks see them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_node.node import Node
from ascend_node.scenarios import SCENARIOS
from ascend_node.system import system_of
from ascendtune.check.doctor.system import System

Lay = Callable[..., System]


@pytest.fixture
def lay(tmp_path: Path) -> Lay:
    """`lay("card-alarmed")` or `lay(Node(…))`: a machine in a directory of the test's; env is added to the shell's."""
    return lambda machine, **env: system_of(_node(machine), tmp_path / "machine", **env)


def _node(machine: str | Node) -> Node:
    return SCENARIOS[machine] if isinstance(machine, str) else machine
