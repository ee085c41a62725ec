"""Several starts of one name at once: each trains its own recipe in a directory of its own, or is refused."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from ascendtune.core.errors import MachineError
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe
from ascendtune.train import worker
from ascendtune.train.prepare import prepare_run

if TYPE_CHECKING:
    from tests.integration.conftest import Workshop

pytestmark = pytest.mark.usefixtures("preloaded")

REFUSED = "this run is being trained by another process"


@pytest.fixture
def place(workshop: Workshop, tiny_model: Path) -> Workshop:
    workshop.write_small_run(
        tiny_model,
        optim={"learning_rate": 1e-3, "max_steps": 3, "scheduler": "constant"},
        track={"tensorboard": False},
    )
    return workshop


def learning_rates(run: RunDir) -> set[float]:
    return {record["learning_rate"] for record in run.read_metrics()}


@pytest.mark.parametrize("options", [(), ("--devices", "2"), ("--detach",)], ids=["exec", "torchrun", "detach"])
def test_starts_of_one_name_at_once_train_their_own_recipes(place: Workshop, options: tuple[str, ...]) -> None:
    rates = [1e-3, 2e-3, 3e-3]
    jobs = [place.start("train", "recipe.yaml", *options, f"optim.learning_rate={rate}") for rate in rates]
    ended = [job.wait() for job in jobs]
    if options == ("--detach",):
        _wait_for_the_background(place)
    began = [(rate, each) for rate, each in zip(rates, ended, strict=True) if each.code == 0]
    refused = [each for each in ended if each.code != 0]
    assert began and all(each.code == 3 and REFUSED in each.err for each in refused), [each.err for each in ended]
    runs = [RunDir(path) for path in sorted((place.directory / "runs").iterdir())]
    assert len(runs) == len(began)
    trained = [learning_rates(run) for run in runs]
    assert sorted(trained, key=min) == [{rate} for rate, _ in began]
    for run, rate in zip(runs, trained, strict=True):
        asked = yaml.safe_load(run.recipe.read_text())["optim"]["learning_rate"]
        assert {asked} == rate and run.read()["state"] == "finished"


def _wait_for_the_background(place: Workshop) -> None:
    deadline = time.monotonic() + 120
    while place.processes() and time.monotonic() < deadline:
        time.sleep(0.1)


def test_start_during_training_is_refused_and_changes_nothing(place: Workshop) -> None:
    run = RunDir(place.directory / "runs/run")
    job = place.start("train", "recipe.yaml", "optim.max_steps=400")
    job.until_step(run, 2)
    before = (run.recipe.read_text(), run.read()["start_id"], run.origins.read_text())
    second = place.run("train", "recipe.yaml", "optim.learning_rate=5e-3")
    assert second.code == 3 and f"{REFUSED}: {job.process.pid} on " in second.err
    assert (run.recipe.read_text(), run.read()["start_id"], run.origins.read_text()) == before
    job.process.send_signal(signal.SIGINT)
    assert job.wait().code == 130
    assert place.run("train", "recipe.yaml", "checkpoint.resume=never").code == 0


@pytest.mark.parametrize("point", ["claimed", "recipe written", "run.json written", "prepared"])
def test_start_that_was_killed_leaves_the_name_free(
    place: Workshop, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Forked, and killed by itself at the named point, so that nothing depends on time."""
    monkeypatch.chdir(place.directory)
    pid = os.fork()
    if pid == 0:
        try:
            _die_at(point)
            prepare_run(*Recipe.load_with_origins(Path("recipe.yaml"), []))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert (place.directory / "runs/run/.claim").exists()
    ended = place.run("train", "recipe.yaml")
    assert ended.code == 0, ended.err
    assert [path.name for path in (place.directory / "runs").iterdir()] == ["run"]
    assert place.leftovers(RunDir(place.directory / "runs/run")) == []


def _die_at(point: str) -> None:
    from ascendtune.train import prepare

    def die(*arguments: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    names = {"claimed": "prepare_data", "run.json written": "write_json"}
    if point in names:
        setattr(prepare, names[point], die)
    elif point == "recipe written":
        from ascendtune.core import rundir

        rundir.write_json = die


def test_start_that_fails_leaves_no_directory(place: Workshop) -> None:
    (place.directory / "rows.json").write_text('[{"instruction": ')
    assert place.run("train", "recipe.yaml").code == 2
    assert list((place.directory / "runs").glob("*")) == []


def test_worker_of_a_recipe_that_was_rewritten_is_refused(
    place: Workshop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place.directory)
    started = prepare_run(*Recipe.load_with_origins(Path("recipe.yaml"), []))
    assert started.run is not None and started.claim is not None
    with started.claim:
        text = started.run.recipe.read_text()
        started.run.recipe.write_text(text.replace("0.001", "0.002"))
        assert worker.main([str(started.run), started.claim.start_id]) == 3
        assert "not the recipe that this process was started for" in capsys.readouterr().err
        started.run.recipe.write_text(text)
        with pytest.raises(MachineError, match=REFUSED), worker.claimed(started.run, None):
            pass
    with worker.claimed(started.run, None):
        assert worker.main([str(started.run), "another-start"]) == 3
    assert not started.run.has_metrics()


def test_fits_in_one_process_at_once_do_not_share_a_run(place: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.directory)

    def prepare(rate: float) -> Any:
        try:
            return prepare_run(*Recipe.load_with_origins(Path("recipe.yaml"), [f"optim.learning_rate={rate}"]))
        except MachineError as error:
            return error

    with ThreadPoolExecutor(4) as pool:
        starts = list(pool.map(prepare, [1e-3, 2e-3, 3e-3, 4e-3]))
    begun = [each for each in starts if not isinstance(each, MachineError)]
    assert len(begun) == 1 and sum(REFUSED in str(each) for each in starts if isinstance(each, MachineError)) == 3
    begun[0].claim.release()
