"""Healthy machines of every kind: no check warns."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from ascend_node.node import Cann, Chip, Node
from ascend_node.scenarios import HEALTHY
from ascend_node.system import system_of
from ascendtune.check.doctor.check import examine
from ascendtune.machine.compatibility import drivers_for, release_key, wheels

_CHIPS = [("910B1", 1, 65536), ("910B2C", 1, 65536), ("910B3", 1, 65536), ("910B4", 1, 32768), ("Ascend910", 2, 65536)]


def _healthy_nodes(count: int) -> list[Node]:
    """Machines drawn from the vendor's tables: chip, cards, driver, CANN, Python and packages go together."""
    draw = random.Random(1)
    pairs = [wheel for wheel in wheels() if release_key(wheel.torch) >= release_key("2.6") and wheel.python]
    nodes = []
    for _ in range(count):
        name, dies, memory = draw.choice(_CHIPS)
        wheel, cards = draw.choice(pairs), draw.choice([1, 2, 4, 8])
        cann = wheel.cann.replace(".X", ".0")
        drivers = drivers_for(cann)
        python = draw.choice(wheel.python)
        numpy = "1.26.4" if release_key(cann) < release_key("9.0.0") else draw.choice(["1.26.4", "2.2.6"])
        packages = {"torch": draw.choice([wheel.torch, f"{wheel.torch}+cpu"]), "torch-npu": wheel.version}
        packages |= {"numpy": numpy, "transformers": "5.2.0", "peft": draw.choice(["0.19.1", "0.21.2"])}
        chip = Chip(memory_used_megabytes=int(memory * draw.uniform(0.03, 0.13)), link_downs=draw.choice([0, 1, 2]))
        nodes.append(
            replace(
                HEALTHY,
                name=name,
                chips=(chip,) * (cards * dies),
                chips_per_card=dies,
                memory_total_megabytes=memory,
                driver=draw.choice(drivers.versions).replace(".X", ".0") if drivers else "25.5.0",
                cann=(Cann(cann),),
                python=python,
                packages=packages,
                container=draw.random() < 0.5,
            )
        )
    return nodes


def _require_silence(directory: Path, nodes: list[Node]) -> None:
    for number, node in enumerate(nodes):
        system = system_of(node, directory / str(number))
        loud = [each for each in examine(system).findings if each.status in ("warning", "failure")]
        assert loud == [], node


@pytest.mark.long
def test_healthy_machines_give_no_warning(tmp_path: Path) -> None:
    _require_silence(tmp_path, _healthy_nodes(200)[::25])


@pytest.mark.soak
def test_two_hundred_healthy_machines_give_no_warning(tmp_path: Path) -> None:
    _require_silence(tmp_path, _healthy_nodes(200))
