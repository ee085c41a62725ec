"""`ascendtune align bisect` on real runs: the planted ingredient is named, the innocent ones are not."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ascendtune.core.rundir import RunDir

if TYPE_CHECKING:
    from tests.integration.conftest import Workshop

pytestmark = pytest.mark.usefixtures("preloaded")

SLOWEST_SECONDS = 900


@pytest.fixture(scope="module")
def parted(
    new_workshop: Callable[[Path], Workshop], tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Workshop:
    """runs/reference and runs/candidate: epsilon is the cause; precision, batch and attention differ, too."""
    workshop = new_workshop(tmp_path_factory.mktemp("parted"))
    common: dict[str, Any] = {"track": {"tensorboard": False}, "checkpoint": {"every_steps": 1000}}
    optim = {"learning_rate": 2e-3, "max_steps": 4}
    workshop.write_small_run(tiny_model, precision="fp32", batch={"per_device": 4}, optim=optim, **common)
    changes = ("optim.epsilon=0.01", "precision=bf16", "batch.per_device=2", "batch.accumulate=2")
    for words in (("name=reference",), ("name=candidate", *changes)):
        ended = workshop.run("train", "recipe.yaml", *words)
        assert ended.code == 0, ended.err
    return workshop


def content_of(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_planted_ingredient_is_named_and_the_runs_are_unchanged(parted: Workshop) -> None:
    runs = parted.directory / "runs"
    before = content_of(runs)
    job = parted.start("align", "bisect", "reference", "candidate", "--yes", "--json", "--to", "kept")
    job.process.wait(SLOWEST_SECONDS)
    ended = job.wait()
    assert ended.code == 1, ended.err
    found = json.loads(ended.out)
    assert found["culprits"] == [["optimizer"]] and found["findings"][0]["remedy"] and found["step"] == 2
    assert {each["swapped"][0]: each["agrees"] for each in found["trials"]} == {
        "dtype": False,
        "optimizer": True,
        "accumulate": False,
    }
    assert set(found["not_swapped"]) == {"attention", "kernels"}
    assert "optimizer: optim.epsilon: 0.01 -> 1e-08" in ended.err
    assert content_of(runs) == before
    trial = RunDir(parted.directory / "kept" / "optimizer")
    assert trial.last_step() == 2 and not trial.model.exists() and not trial.checkpoint_steps()


def test_interrupt_leaves_no_process_and_no_directory(parted: Workshop, tmp_path: Path) -> None:
    words = ("align", "bisect", "runs/reference", "runs/candidate", "--yes", "--switch", "optimizer")
    job = parted.start(*words, TMPDIR=str(tmp_path))
    job.until(lambda: list(tmp_path.glob("ascendtune-bisect-*/nothing/run.json")))
    job.process.send_signal(signal.SIGINT)
    assert job.process.wait(SLOWEST_SECONDS) == 130, job.err
    assert not parted.processes() and not list(tmp_path.iterdir())


REFUSED = {
    "without consent": (("reference", "candidate"), 2, "confirmation-needed"),
    "unknown ingredient": (("reference", "candidate", "--switch", "optimiser", "--yes"), 2, "unknown-name"),
    "ingredients that are the same": (("reference", "candidate", "--switch", "kernels", "--yes"), 4, "nothing-to-swap"),
    "place in a run": (
        ("reference", "candidate", "--to", "runs/reference/trials", "--yes"),
        2,
        "output-overwrites-input",
    ),
    "log of another trainer": (("trainer_state.json", "candidate", "--yes"), 2, "not-a-run-directory"),
}


@pytest.mark.parametrize(("words", "code", "name"), REFUSED.values(), ids=REFUSED)
def test_refusal_trains_nothing(parted: Workshop, words: tuple[str, ...], code: int, name: str) -> None:
    history = {"log_history": [{"step": 1, "loss": 2.0}]}
    (parted.directory / "trainer_state.json").write_text(json.dumps(history))
    ended = parted.run("align", "bisect", *words)
    assert ended.code == code and f"code: {name}" in ended.err, ended.err
    assert not ended.out and not (parted.directory / "runs" / "reference" / "trials").exists()


def test_runs_that_agree_are_not_trained_again(parted: Workshop) -> None:
    ended = parted.run("align", "bisect", "reference", "reference")
    assert ended.code == 0 and "aligned" in ended.out, ended.err
