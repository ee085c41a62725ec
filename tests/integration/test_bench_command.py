"""`ascendtune bench` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.conftest import Workshop

pytestmark = pytest.mark.usefixtures("preloaded")


def test_one_and_two_ranks_are_trained_and_compared(workshop: Workshop, tiny_model: Path) -> None:
    workshop.write_small_run(tiny_model, batch={"per_device": 2}, precision="fp32")
    words = ("bench", "recipe.yaml", "--devices", "1,2", "--steps", "2", "--warmup", "1", "--repeats", "1", "--json")
    ended = workshop.run(*words)
    assert ended.code == 0, ended.err
    content = json.loads(ended.out)
    rows = {(row["comparison"], row["devices"]): row for row in content["rows"]}
    assert len(rows) == 4 and {row["global_batch"] for row in content["rows"]} == {2, 4}
    assert all(row["tokens_per_second"] > 0 and row["failure"] is None for row in content["rows"])
    two = rows["equal batch per device", 2]
    assert two["chosen_strategy"] == "ddp"
    assert two["efficiency"] == pytest.approx(two["speedup"] / 2)
    runs = workshop.directory / "runs" / "run-bench" / "runs"
    assert sorted(each.name for each in runs.iterdir()) == ["recipe-1x2x1-r1", "recipe-1x2x2-r1", "recipe-2x2x1-r1"]
    # Both ranks are profiled; neither checkpoint nor model is kept.
    run = runs / "recipe-2x2x1-r1"
    assert len(list((run / "profile").glob("rank_*.trace.json.gz"))) == 2
    assert not (run / "model").exists()
    assert json.loads(workshop.run(*words).out)["rows"] == content["rows"]
