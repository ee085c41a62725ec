"""DeepSpeed over simulated NPUs, which HCCL joins. All stages: `make matrix-npu`."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascend_node.cann.node import Node
from matrix.cells import WAYS, asked, attempt, write_rows
from matrix.page import same
from matrix.simulated import attempt_in_turn, with_small_buckets

pytest.importorskip("deepspeed", reason="DeepSpeed is shown to a process of its own (make deepspeed-tests)")


def test_divided_weights_give_the_curve_of_one_cpu(node: Node, tiny_model: Path, tmp_path: Path) -> None:
    (way,) = (each for each in WAYS if each.parallel.get("deepspeed") == {"stage": 3})
    files, parallel = write_rows(tmp_path), with_small_buckets(way, tmp_path)
    recipe = asked("ipo", "lora, pissa", way, files, tiny_model, tmp_path / "npu") | {"parallel": parallel}
    (found,) = attempt_in_turn(node, [recipe], way.ranks)
    expected = attempt(asked("ipo", "lora, pissa", WAYS[0], files, tiny_model, tmp_path / "cpu"), 1)
    assert same(found, expected), f"{found.failed or found.curve}, not {expected.curve}"
