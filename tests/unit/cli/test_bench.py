"""`ascendtune bench`: options, and what is kept from one call to the next; the trainings are made up."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ascendtune.check.bench.show import BenchSettings
from ascendtune.cli import bench as command
from ascendtune.cli import bench_cells
from ascendtune.cli.bench_cells import Bench, BenchedRecipe
from ascendtune.core.errors import AscendtuneError
from ascendtune.core.rundir import RunDir
from ascendtune.machine.visible import VisibleDevices

SETTING = BenchSettings("small", "a CPU", "cpu", None, 8, 4, 1, 2, "1.0")


class Trainings:
    """Stands for `train_briefly`: writes the metrics of a run whose speed is 100 tokens/s for each device."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.words: list[str] = []
        self.fails: set[str] = set()
        self.interrupted_at: int | None = None

    def __call__(self, _recipe: Path, words: list[str], *, devices: int, log: Path, **_: Any) -> tuple[int, Path]:
        keys = dict(word.split("=", 1) for word in words)
        name = keys["name"]
        if self.interrupted_at == len(self.started):
            raise KeyboardInterrupt
        self.started.append(name)
        self.words = words
        run = RunDir(keys["run_dir"].replace("{name}", name))
        run.create("", {}, {"resolved": {}, "started": time.time()})
        if name in self.fails:
            run.update(exit_cause={"what": "out of device memory"})
            return 3, run.path
        record = {"tokens": 100 * devices, "seconds": {"step": 1.0}}
        lines = [json.dumps({"step": at, **record}) + "\n" for at in range(1, 8)]
        run.metrics.write_text("".join(lines))
        return 0, run.path


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trainings:
    found = Trainings()
    monkeypatch.setattr(bench_cells, "train_briefly", found)
    monkeypatch.setattr(command, "_setting", lambda *_, **__: SETTING)
    monkeypatch.setattr("ascendtune.machine.visible.visible_devices", lambda: VisibleDevices("cpu", ("0",)))
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text("name: small\nmodel: {path: model}\ndata: {train: rows.json}\n")
    return found


def run_bench(**options: Any) -> None:
    command.bench(Path("recipe.yaml"), **{"devices": "1,2", "steps": 4, "warmup": 1, "repeats": 2, **options})


@pytest.mark.long
def test_a_benchmark_writes_its_tables_and_is_not_trained_again(
    trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    run_bench(as_json=True)
    # Every cell once before any is repeated.
    names = ("recipe-1x1x1", "recipe-1x1x2", "recipe-2x1x1")
    assert trainings.started == [f"{name}-r{number}" for number in (1, 2) for name in names]
    keys = dict(word.split("=", 1) for word in trainings.words)
    assert keys["optim.max_steps"] == "8" and keys["profile.steps"] == "7-8" and keys["profile.ranks"] == "[0]"
    assert keys["track.send_to"] == "[]"
    content = json.loads(capsys.readouterr().out)
    assert [row["speedup"] for row in content["rows"]] == [1.0, 2.0, 1.0, 2.0]
    assert content["shortfalls"] == []
    directory = Path("runs/small-bench")
    assert {each.name for each in directory.iterdir()} >= {"bench.json", "bench.md", "bench.svg"}
    run_bench()
    assert len(trainings.started) == 6
    assert "equal global batch" in capsys.readouterr().out


@pytest.mark.long
def test_an_interrupted_benchmark_continues_behind_the_last_training(trainings: Trainings) -> None:
    trainings.interrupted_at = 4
    with pytest.raises(KeyboardInterrupt):
        run_bench()
    trainings.interrupted_at = None
    run_bench()
    assert trainings.started[4:] == ["recipe-1x1x2-r2", "recipe-2x1x1-r2"]


@pytest.mark.long
def test_a_cell_that_failed_is_named_and_trained_again_in_the_next_call(
    trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    trainings.fails = {"recipe-2x1x1-r1"}
    with pytest.raises(SystemExit) as ended:
        try:
            run_bench()
        except command.typer.Exit as error:
            raise SystemExit(error.exit_code) from error
    assert ended.value.code == 1
    assert "recipe-2x1x1-r2" not in trainings.started
    assert "not measured: recipe-2x1x1: out of device memory" in capsys.readouterr().out
    trainings.fails, before = set(), len(trainings.started)
    run_bench()
    assert trainings.started[before:] == ["recipe-2x1x1-r1", "recipe-2x1x1-r2"]


def test_a_benchmark_without_any_measurement_fails(trainings: Trainings) -> None:
    trainings.fails = {"recipe-1x1x1-r1"}
    with pytest.raises(AscendtuneError) as caught:
        run_bench(devices="1")
    assert caught.value.code == "nothing-measured"


@pytest.mark.long
def test_another_recipe_takes_another_directory(trainings: Trainings) -> None:
    run_bench(devices="1", repeats=1)
    run_bench(devices="1", repeats=1, overrides=["optim.learning_rate=1e-3"])
    assert sorted(each.name for each in Path("runs").iterdir()) == ["small-bench", "small-bench-2"]
    with pytest.raises(AscendtuneError) as caught:
        run_bench(devices="1", overrides=["seed=5"], output=Path("runs/small-bench"))
    assert caught.value.code == "bench-differs"


def test_a_benchmark_in_use_or_damaged_is_refused(trainings: Trainings) -> None:
    recipe = BenchedRecipe.load(Path("recipe.yaml"), [])
    with Bench.open(Path("own"), recipe, SETTING), pytest.raises(AscendtuneError) as caught:
        run_bench(output=Path("own"))
    assert caught.value.code == "bench-in-use"
    Path("own/bench.json").write_text("[")
    with pytest.raises(AscendtuneError) as caught:
        run_bench(output=Path("own"))
    assert caught.value.code == "record-damaged"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"devices": "1,x"}, "invalid-option-value"),
        ({"devices": "0"}, "invalid-option-value"),
        ({"devices": ""}, "invalid-option-value"),
        ({"strategies": "dpp"}, "unknown-name"),
        ({"strategies": ""}, "unknown-name"),
    ],
)
def test_lists_that_are_not_understood_are_refused(trainings: Trainings, options: dict[str, str], code: str) -> None:
    with pytest.raises(AscendtuneError) as caught:
        run_bench(**options)
    assert caught.value.code == code


@pytest.mark.parametrize(("visible", "counts"), [(None, [1, 2]), (1, [1]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_the_default_numbers_of_devices_are_powers_of_two_and_all(visible: int | None, counts: list[int]) -> None:
    assert command._counts(None, visible) == counts


def test_more_devices_than_are_visible_are_refused() -> None:
    with pytest.raises(AscendtuneError) as caught:
        command._counts("1,9", 8)
    assert caught.value.code == "too-few-devices"
