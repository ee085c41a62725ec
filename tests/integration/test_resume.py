"""A run that was killed, stopped or moved continues with the same numbers, bit by bit."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from ascendtune.core.errors import AscendtuneError, InputError, RecipeError
from ascendtune.core.locks import file_lock
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.changes import ResumeOptions
from ascendtune.recipe.recipe import Recipe
from ascendtune.train import worker
from ascendtune.train.checkpoint.tensor_files import fill, stored_tensors
from ascendtune.train.prepare import prepare_run
from ascendtune.train.run_choice import planned_run
from cluster import until

if TYPE_CHECKING:
    from tests.integration.conftest import Job, Workshop

pytestmark = pytest.mark.usefixtures("preloaded")

STEPS, CHECKPOINT_EVERY, EVALUATE_EVERY = 24, 4, 6
# Dropout makes every step depend on the random state, bf16 makes sums depend on their order.
METHODS: dict[str, dict[str, Any]] = {
    "lora": {"method": {"tuner": "lora", "lora": {"rank": 4, "dropout": 0.3}}, "precision": "bf16"},
    "full": {"method": {"tuner": "full"}, "precision": "fp32"},
}
EXACT = ("step", "loss", "grad_norm", "learning_rate", "batch_hash", "tokens_seen", "skipped_steps")


def recipe_of(method: str) -> dict[str, Any]:
    return {
        "name": "run",
        "model": {"path": "model"},
        "data": {"train": "rows.json", "eval_fraction": 0.1, "max_length": 64, "packing": True},
        "optim": {"learning_rate": 2e-3, "max_steps": STEPS, "warmup_steps": 3},
        "batch": {"per_device": 2},
        "eval": {"every_steps": EVALUATE_EVERY},
        "checkpoint": {"every_steps": CHECKPOINT_EVERY, "keep": 3},
        "track": {"tensorboard": False},
        **METHODS[method],
    }


@pytest.fixture
def bench(workshop: Workshop, tiny_model: Path) -> Callable[[str], Workshop]:
    """A workshop with `recipe.yaml` of a method, and its rows."""

    def furnish(method: str) -> Workshop:
        _furnish(workshop, method, tiny_model)
        return workshop

    return furnish


def _furnish(place: Workshop, method: str, model: Path) -> None:
    rows = [
        {"instruction": f"What is {n} plus {n + 1}?", "output": f"It is {2 * n + 1}. " + "Sleep well. " * (n % 7)}
        for n in range(300)
    ]
    (place.directory / "rows.json").write_text(json.dumps(rows, indent=0))
    # The same recipe wherever the model lies: test processes have one each, and share the uninterrupted run.
    (place.directory / "model").symlink_to(model)
    place.write("recipe.yaml", recipe_of(method))


@pytest.fixture(scope="session")
def uninterrupted(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, new_workshop: Callable[[Path], Workshop]
) -> Callable[[str], RunDir]:
    """The run of a method that nobody disturbed; made once for all test processes."""
    base = tmp_path_factory.getbasetemp()
    together = base.parent / f"uninterrupted-{os.environ['PYTEST_XDIST_TESTRUNUID']}" if _is_xdist() else base / "once"

    def get(method: str) -> RunDir:
        directory = together / method
        directory.mkdir(parents=True, exist_ok=True)
        run = RunDir(directory / "runs" / "run")
        with file_lock(together / f"{method}.lock", wait=True):
            if not run.model.is_dir():
                place = new_workshop(directory)
                _furnish(place, method, tiny_model)
                ended = place.run("train", "recipe.yaml")
                assert ended.code == 0, ended.err
        return run

    return get


def _is_xdist() -> bool:
    return "PYTEST_XDIST_TESTRUNUID" in os.environ


# Kills


@pytest.mark.parametrize(
    ("method", "kills", "seed"),
    [("lora", ["preparation", "checkpoint", "step"], 0), ("full", ["checkpoint", "step"], 1)],
    ids=["lora", "full"],
)
def test_killed_and_started_again(
    bench: Callable[[str], Workshop],
    uninterrupted: Callable[[str], RunDir],
    method: str,
    kills: list[str],
    seed: int,
) -> None:
    _kill_and_compare(bench(method), uninterrupted(method), kills, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_run_killed_anywhere_resumes_to_the_same_result(
    bench: Callable[[str], Workshop], uninterrupted: Callable[[str], RunDir], seed: int
) -> None:
    """Five kills each: fifty in all."""
    draw, method = random.Random(seed), ("lora", "full")[seed % 2]
    kills = draw.choices(["step", "checkpoint", "any time"], k=4)
    _kill_and_compare(bench(method), uninterrupted(method), ["preparation", *kills], seed)


def _kill_and_compare(place: Workshop, whole: RunDir, kills: list[str], seed: int) -> None:
    draw = random.Random(seed)
    for kill in kills:
        run = _next_run(place)
        job = place.start("train", "recipe.yaml")
        _KILLS[kill](job, place, run, draw)
        job.process.kill()
        job.process.wait()
        _every_checkpoint_is_whole(run)
        if run.run_json.exists() and run.read()["state"] == "finished":
            break  # it was quicker than the kill
    else:
        run = _next_run(place)
        ended = place.run("train", "recipe.yaml")
        assert ended.code == 0, ended.err
    record = run.read()
    assert (record["state"], record["exit_cause"]) == ("finished", None)
    _same_curves(run, whole)
    assert _tensors(run.model) == _tensors(whole.model)
    assert place.leftovers(run) == []
    assert place.processes() == []


def _next_run(place: Workshop) -> RunDir:
    """Where the next start trains: a run with steps but without a checkpoint stays as it is, a new one begins."""
    runs = sorted((place.directory / "runs").glob("run*"), key=lambda path: (len(path.name), path.name))
    if not runs:
        return RunDir(place.directory / "runs" / "run")
    newest = RunDir(runs[-1])
    goes_on = newest.checkpoint_steps() or not newest.has_metrics()
    return newest if goes_on else RunDir(newest.path.with_name(f"run-{len(runs) + 1}"))


def _during_preparation(job: Job, place: Workshop, run: RunDir, draw: random.Random) -> None:
    tokens = place.cache / "ascendtune" / "tokens"
    job.until(lambda: any(tokens.glob(".building-*")))
    time.sleep(draw.uniform(0, 0.01))


def _during_a_checkpoint(job: Job, place: Workshop, run: RunDir, draw: random.Random) -> None:
    # Not the one that a former process left: that one goes when this process has loaded its checkpoint.
    old = {path: path.stat().st_ino for path in run.checkpoints.glob(".step_*.writing")}

    def is_writing() -> bool:
        return any(_inode(path) not in (None, old.get(path)) for path in run.checkpoints.glob(".step_*.writing"))

    job.until(is_writing)
    time.sleep(draw.choice([0, 0.002, 0.005, 0.02, 0.05]))


def _after_a_step(job: Job, place: Workshop, run: RunDir, draw: random.Random) -> None:
    last = max(run.checkpoint_steps(), default=0)
    job.until_step(run, draw.randint(last + 1, max(last + 1, STEPS - 2)))
    time.sleep(draw.uniform(0, 0.05))


def _any_time(job: Job, place: Workshop, run: RunDir, draw: random.Random) -> None:
    wait = time.monotonic() + draw.uniform(0, 8)
    while time.monotonic() < wait and job.process.poll() is None:
        time.sleep(0.001)


_KILLS = {
    "preparation": _during_preparation,
    "checkpoint": _during_a_checkpoint,
    "step": _after_a_step,
    "any time": _any_time,
}


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _every_checkpoint_is_whole(run: RunDir) -> None:
    for step in run.checkpoint_steps():
        directory = run.checkpoint(step)
        assert json.loads((directory / "state.json").read_text())["step"] == step
        assert load_file(directory / "rng" / "rank_0.safetensors")
        stored = stored_tensors(directory)
        fill({name: torch.empty(each.size, dtype=each.dtype) for name, each in stored.items()}, stored)
        assert stored


def _same_curves(run: RunDir, whole: RunDir) -> None:
    records, expected = list(run.read_metrics()), list(whole.read_metrics())
    assert [record["step"] for record in records] == list(range(1, STEPS + 1))
    assert [[record[key] for key in EXACT] for record in records] == [[each[key] for key in EXACT] for each in expected]
    evaluations = {each["step"]: each["loss"] for each in whole.read_evaluations()}
    found = [(each["step"], each["loss"]) for each in run.read_evaluations()]
    assert len(found) == len(dict(found)), "an evaluation stands twice"
    assert {step: loss for step, loss in found if step in evaluations} == evaluations


def _tensors(directory: Path) -> dict[str, list[Any]]:
    return {
        name: tensor.tolist() for file in directory.glob("*.safetensors") for name, tensor in load_file(file).items()
    }


# Signals


def test_run_stopped_by_sigterm_and_sigint_resumes_bitwise(
    bench: Callable[[str], Workshop], uninterrupted: Callable[[str], RunDir]
) -> None:
    place = bench("lora")
    # An evaluation after every step: the one of the step at which the run is stopped is still owed.
    words = ("train", "recipe.yaml", "eval.every_steps=1")
    run = RunDir(place.directory / "runs" / "run")
    for number, from_step in ((signal.SIGTERM, 3), (signal.SIGINT, 13)):
        job = place.start(*words)
        job.until_step(run, from_step)
        job.process.send_signal(number)
        ended = job.wait()
        assert ended.code == 128 + number
        assert f"stopped by {number.name} after step" in ended.err and "Traceback" not in ended.err
        last = list(run.read_metrics())[-1]["step"]
        assert run.read()["state"] == "stopped" and run.checkpoint_steps()[-1] == last
    ended = place.run(*words)
    assert ended.code == 0 and f"resuming runs/run from step {last}: it was stopped" in ended.err
    _same_curves(run, uninterrupted("lora"))
    assert [each["step"] for each in run.read_evaluations()] == list(range(1, STEPS + 1))
    assert place.leftovers(run) == []


def test_interrupted_twice_ends_at_once(bench: Callable[[str], Workshop]) -> None:
    place = bench("full")
    # Long steps, so that the second signal comes before the first one could have had its way.
    job = place.start("train", "recipe.yaml", "batch.accumulate=100", "data.max_length=128", "optim.max_steps=100")
    run = RunDir(place.directory / "runs" / "run")
    job.until_step(run, 1)
    job.process.send_signal(signal.SIGINT)
    job.until(lambda: "Ctrl-C again: at once" in job.err)
    job.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    ended = job.wait()
    assert time.monotonic() - began < 30
    assert ended.code == 130 and ended.err.rstrip().endswith("stopped at once") and "Traceback" not in ended.err
    assert run.read()["state"] == "stopped" and run.checkpoint_steps() == []
    explained = place.run("explain", str(run))
    assert explained.code == 0 and explained.out.startswith("nothing went wrong: stopped at once")


def test_interrupt_before_training_leaves_a_run_that_starts_over(bench: Callable[[str], Workshop]) -> None:
    """While the worker starts and the model is loaded; the next start is a first one."""
    place = bench("full")
    run = RunDir(place.directory / "runs" / "run")
    job = place.start("train", "recipe.yaml", "optim.max_steps=5000")
    job.until(run.run_json.exists)
    job.process.send_signal(signal.SIGINT)
    ended = job.wait()
    assert ended.code == 130 and "Traceback" not in ended.err
    assert list(run.read_metrics()) == [] and run.checkpoint_steps() == []
    listed = json.loads(place.run("jobs", "list", "--all", "--json").out)
    assert [each["state"] for each in listed] in ([], ["ended"])


# Several ranks


def _rank(job: Job, number: int) -> psutil.Process:
    for each in psutil.Process(job.process.pid).children(recursive=True):
        # Others of its processes come and go.
        with suppress(psutil.NoSuchProcess):
            if each.environ().get("RANK") == str(number):
                return each
    raise AssertionError(f"no rank {number} below process {job.process.pid}")


def test_two_ranks_lose_one_then_become_one(
    bench: Callable[[str], Workshop], uninterrupted: Callable[[str], RunDir]
) -> None:
    place = bench("full")
    run = RunDir(place.directory / "runs" / "run")
    words = ("train", "recipe.yaml", "batch.per_device=1")

    job = place.start(*words, "--devices", "2")
    # Written in the background: without it the next start would be a first one.
    job.until(run.checkpoint(4).is_dir)
    _rank(job, 1).kill()
    ended = job.wait()
    assert ended.code == 1 and "rank 1 was killed (SIGKILL)" in ended.err and "Traceback" not in ended.err
    assert run.read()["state"] == "failed"
    until(lambda: not place.processes())
    _every_checkpoint_is_whole(run)

    job = place.start(*words, "--devices", "2")
    job.until_step(run, 5)
    job.process.terminate()
    ended = job.wait()
    assert ended.code == 143 and "Traceback" not in ended.err
    assert run.read()["state"] == "stopped" and place.processes() == []

    ended = place.run(*words, "--devices", "1")
    assert ended.code == 0, ended.err
    assert "the global batch stays 2 sequences" in ended.err
    records, expected = list(run.read_metrics()), list(uninterrupted("full").read_metrics())
    assert [each["step"] for each in records] == list(range(1, STEPS + 1))
    assert [each["batch_hash"] for each in records] == [each["batch_hash"] for each in expected]
    for key in ("loss", "grad_norm", "learning_rate"):
        assert [each[key] for each in records] == pytest.approx([each[key] for each in expected], rel=2e-5)
    assert place.leftovers(run) == []


def test_torchrun_killed_before_the_first_checkpoint_is_a_failure_after_which_the_run_continues(
    bench: Callable[[str], Workshop],
) -> None:
    place = bench("full")
    run = RunDir(place.directory / "runs" / "run")
    words = ("batch.per_device=1", "batch.accumulate=8", "optim.max_steps=12", "checkpoint.every_steps=11")
    job = place.start("train", "recipe.yaml", *words, "--devices", "2", "--max-restarts", "1")
    job.until_step(run, 2)
    psutil.Process(_rank(job, 0).ppid()).kill()
    ended = job.wait()
    assert ended.code == 0, ended.err
    assert re.search(r"\(torchrun was killed \(SIGKILL\)\); resuming from step [2-9], 0 restarts left", ended.err)
    assert [each["state"] for each in run.read()["attempts"]] == ["failed", "finished"]
    assert [each["step"] for each in run.read_metrics()] == list(range(1, 13)) and place.processes() == []


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_two_ranks_resume_bitwise(bench: Callable[[str], Workshop], number: signal.Signals) -> None:
    place = bench("lora")
    words = ("train", "recipe.yaml", "batch.per_device=1", "--devices", "2")
    assert place.run(*words, "name=whole").code == 0
    run = RunDir(place.directory / "runs" / "run")
    for step in (5, 14):
        job = place.start(*words)
        job.until_step(run, step)
        job.until(run.checkpoint(4).is_dir if step == 5 else run.checkpoint(12).is_dir)
        if number == signal.SIGKILL:
            _rank(job, step % 2).kill()
        else:
            job.process.send_signal(number)
        assert job.wait().code == (1 if number == signal.SIGKILL else 128 + number)
        assert place.processes() == []
        _every_checkpoint_is_whole(run)
    assert place.run(*words).code == 0
    _same_curves(run, RunDir(place.directory / "runs" / "whole"))


@pytest.mark.soak
def test_two_ranks_interrupted_twice(bench: Callable[[str], Workshop]) -> None:
    place = bench("full")
    job = place.start("train", "recipe.yaml", "batch.accumulate=100", "optim.max_steps=100", "--devices", "2")
    job.until_step(RunDir(place.directory / "runs" / "run"), 1)
    for _ in range(2):
        job.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    ended = job.wait()
    assert ended.code == 130 and "Traceback" not in ended.err
    assert place.processes() == []


# What may change, and what is said about it


@pytest.fixture
def interrupted(
    bench: Callable[[str], Workshop],
    uninterrupted: Callable[[str], RunDir],
    monkeypatch: pytest.MonkeyPatch,
) -> RunDir:
    """A full run that was killed after step 20, in the working directory."""
    place, whole = bench("full"), uninterrupted("full")
    shutil.copytree(whole.path, place.directory / "runs" / "run")
    shutil.copytree(whole.path.parents[1] / "cache", place.cache)
    monkeypatch.chdir(place.directory)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place.cache))
    monkeypatch.setenv("XDG_STATE_HOME", str(place.directory / "state"))
    run = RunDir("runs/run")
    run.update(state="running")
    run.remove_checkpoints_after(20)
    shutil.rmtree(run.model)
    return run


def _prepare(*overrides: str, **options: Any) -> tuple[RunDir, str]:
    """The run that a start would train in, and what the user is told about it."""
    start = prepare_run(*Recipe.load_with_origins("recipe.yaml", overrides), resume_options=ResumeOptions(**options))
    assert start.run is not None
    return start.run, " ".join(start.messages)


def _refused(*overrides: str, **options: Any) -> AscendtuneError:
    with pytest.raises(AscendtuneError) as refusal:
        _prepare(*overrides, **options)
    return refusal.value


def test_a_recipe_that_changed_is_refused_unless_allowed(interrupted: RunDir) -> None:
    error = _refused("optim.learning_rate=1e-2")
    assert isinstance(error, RecipeError) and error.where == "runs/run/recipe.yaml"
    assert "optim.learning_rate: 0.002 -> 0.01" in error.what
    assert "--allow-change optim.learning_rate" in error.remedy
    misspelt = _refused("optim.learning_rate=1e-2", allow_change=["optim.learning_rat"])
    assert misspelt.remedy == "did you mean 'optim.learning_rate'?"
    run, message = _prepare("optim.learning_rate=1e-2", allow_change=["optim.learning_rate"])
    assert run.path == interrupted.path and "from step 20" in message
    assert Recipe.load(run.recipe).optim.learning_rate == 0.01
    # What is saved, and how often, and what happens when it hangs, may change as one likes.
    assert _prepare("optim.learning_rate=1e-2", "checkpoint.every_steps=7", "track.tensorboard=true", "on_hang=stop")


def test_data_that_changed_is_refused_unless_allowed(
    interrupted: RunDir, uninterrupted: Callable[[str], RunDir]
) -> None:
    rows = json.loads(Path("rows.json").read_text())
    Path("rows.json").write_text(json.dumps(rows[:-1]))
    error = _refused()
    assert isinstance(error, InputError) and "not what this run was trained on" in error.what
    assert "--allow-change data" in error.remedy
    run, _ = _prepare(allow_change=["data"])
    assert run.path == interrupted.path
    # What is trained on from here are the new rows, not those that the run began with.
    assert worker.main([str(run)]) == 0
    hashes, before = (
        {each["step"]: each["batch_hash"] for each in of.read_metrics()} for of in (run, uninterrupted("full"))
    )
    assert hashes[20] == before[20] and hashes[21] != before[21]


def test_a_start_chooses_the_run_to_resume(interrupted: RunDir) -> None:
    assert _prepare("checkpoint.resume=never")[0].path == Path("runs/run-2")
    shutil.rmtree("runs/run-2")
    interrupted.update(state="finished")
    run, message = _prepare()
    assert run.path == Path("runs/run-2") and message == "starting runs/run-2: runs/run has finished"
    # It has trained nothing, so the next start takes its place.
    assert _prepare()[0].path == Path("runs/run-2")
    Path("runs/run-2/run.json").write_text("{")
    error = _refused()
    assert error.exit_code == 3 and "run.json is damaged" in error.what and error.where == "runs/run-2/run.json"
    assert _prepare("name=other")[0].path == Path("runs/other")


def test_checkpoint_given_by_its_path_is_resumed_from(interrupted: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    own = "checkpoint.resume=runs/run/checkpoints/step_16"
    run, message = _prepare(own)
    assert run.path == interrupted.path and message == "resuming runs/run from runs/run/checkpoints/step_16: as asked"
    assert worker.main([str(run)]) == 0
    assert run.read()["attempts"][-1]["attempt"] == 2
    assert [(each["step"], each["attempt"]) for each in run.read_metrics()][15:18] == [(16, 1), (17, 2), (18, 2)]

    # A run with another name takes one that no other user may write.
    checkpoint = interrupted.checkpoint(16)
    checkpoint.chmod(0o777)
    error = _refused(own, "name=other")
    assert "other users may write this" in error.what and "--trust-checkpoint" in error.remedy
    resume_options = ResumeOptions(trust_checkpoint=True)
    planned = planned_run(Recipe.load("recipe.yaml", [own, "name=other"]), resume_options)
    assert planned.run.path == Path("runs/other")
    checkpoint.chmod(0o755)
    run, _ = _prepare(own, "name=other")
    assert run.path == Path("runs/other")
    assert worker.main([str(run)]) == 0
    assert [each["step"] for each in run.read_metrics()] == list(range(17, STEPS + 1))

    assert "no such checkpoint" in _refused("checkpoint.resume=runs/run/checkpoints/step_17").what
    assert "not a complete checkpoint" in _refused("checkpoint.resume=runs/run/checkpoints").what


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("tensors_rank_0.safetensors", _truncate),
        ("tensors_rank_0.safetensors", Path.unlink),
        ("tensors_rank_0.safetensors", _flip_a_bit),
        ("digests.json", _truncate),
        ("digests.json", Path.unlink),
        ("state.json", _truncate),
        ("state.json", lambda path: path.write_text("[]")),
        ("rng/rank_0.safetensors", _truncate),
        ("rng/rank_0.safetensors", Path.unlink),
    ],
)
def test_damaged_checkpoint_is_refused_and_nothing_is_forgotten(
    interrupted: RunDir,
    uninterrupted: Callable[[str], RunDir],
    capsys: pytest.CaptureFixture[str],
    file: str,
    damage: Callable[[Path], object],
) -> None:
    newest = interrupted.checkpoint(20)
    damage(newest / file)
    run, _ = _prepare()
    assert worker.main([str(run)]) == 3
    said = capsys.readouterr().err
    assert said.count("the checkpoint is damaged") == 1 and "Traceback" not in said
    assert f"where: {newest}" in said and "do: delete this directory" in said
    assert len(list(run.read_metrics())) == STEPS, "nothing is forgotten before the checkpoint is known to be good"
    if damage is not _truncate or file != "tensors_rank_0.safetensors":
        return
    # As the remedy says.
    shutil.rmtree(newest)
    run, message = _prepare()
    assert "from step 16" in message
    assert worker.main([str(run)]) == 0
    _same_curves(run, uninterrupted("full"))
