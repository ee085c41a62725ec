"""`ascendtune profile` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.conftest import Workshop

pytestmark = pytest.mark.usefixtures("preloaded")


def test_a_recipe_is_trained_shown_and_shown_again(workshop: Workshop, tiny_model: Path) -> None:
    workshop.write_small_run(tiny_model, batch={"per_device": 2}, precision="fp32")
    recorded = workshop.run("profile", "recipe.yaml", "--steps", "2-3")
    assert recorded.code == 0, recorded.err
    assert "2 steps" in recorded.out and "matmul" in recorded.out and "top operators" in recorded.out
    run = workshop.directory / "runs" / "run-profile"
    assert sorted(each.name for each in (run / "profile").iterdir()) == [
        "rank_0.json", "rank_0.trace.json.gz", "report.html", "summary.json",
    ]  # fmt: skip
    assert "2 steps (2 to 3)" in recorded.out and str(Path("run-profile", "profile", "report.html")) in recorded.out
    # It ends behind the last profiled step, and keeps neither checkpoint nor model.
    record = json.loads((run / "run.json").read_text())
    assert record["attempts"][0]["step"] == 3 and record["state"] == "finished"
    assert not (run / "model").exists()
    assert not list((run / "checkpoints").iterdir())
    again = workshop.run("profile", "run-profile", "--json")
    assert again.code == 0, again.err
    (rank,) = json.loads(again.out)["ranks"]
    idle = rank["idle_seconds"]
    parts = [
        *(sum(rank[f"{name}_seconds"].values()) for name in ("compute", "exposed_communication", "copies", "aside")),
        *(idle["data"], sum(idle["synchronisation"].values()), idle["launch"], idle["gaps"]),
    ]
    assert sum(parts) == pytest.approx(rank["mean_step_seconds"], rel=0.01)
    assert rank["model_flops"] > 0 and rank["mfu"] is None
    # All weights train in fp32: AdamW's two moments take twice their bytes, and a count for each tensor.
    memory, parameters = rank["memory"], record["resolved"]["parameters"]
    assert memory["held_before_bytes"]["weights"] == memory["at_peak_bytes"]["weights"] == 4 * parameters
    assert memory["held_before_bytes"]["optimizer state"] == pytest.approx(8 * parameters, rel=0.01)
    assert max(memory["curve"]["bytes"]["gradients"]) == pytest.approx(4 * parameters, rel=0.01)
    assert memory["at_peak_bytes"]["activations"] > 0 and memory["peak_bytes"] == sum(memory["at_peak_bytes"].values())


def test_a_recipe_that_cannot_be_trained_ends_with_its_error(workshop: Workshop) -> None:
    workshop.write_small_run(workshop.directory / "missing-model")
    ended = workshop.run("profile", "recipe.yaml")
    assert ended.code == 1
    assert "error:" in ended.err and "profile-failed" in ended.err
