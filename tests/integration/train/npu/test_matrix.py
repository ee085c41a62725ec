"""A part of `make matrix-npu`: every loss and tuner on one simulated NPU, and strategies on two that HCCL joins."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascend_node.cann.node import Node
from matrix.cells import LOSSES, TUNERS, WAYS, Way, asked, attempt, write_rows
from matrix.page import same
from matrix.simulated import attempt_in_turn

_ALONE = WAYS[0]
_SAMPLE = {
    _ALONE: [*((loss, "lora") for loss in LOSSES), *(("kto", tuner) for tuner in TUNERS if tuner != "lora")],
    **{
        way: [("kto", "full"), ("ipo", "lora, pissa")]
        for way in WAYS
        if way.ranks == 2 and way.parallel["strategy"] in ("ddp", "fsdp")
    },
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_rows(tmp_path_factory.mktemp("rows"))


@pytest.mark.parametrize("way", _SAMPLE, ids=str)
def test_cells_in_one_process_group_are_those_of_one_cpu(
    node: Node, files: dict[str, Path], tiny_model: Path, tmp_path: Path, way: Way
) -> None:
    recipes = [asked(*cell, way, files, tiny_model, tmp_path / "npu") for cell in _SAMPLE[way]]
    for cell, found in zip(_SAMPLE[way], attempt_in_turn(node, recipes, way.ranks), strict=True):
        expected = attempt(asked(*cell, _ALONE, files, tiny_model, tmp_path / "cpu"), 1)
        assert same(found, expected), f"{cell}: {found.failed or found.curve}, not {expected.curve}"
