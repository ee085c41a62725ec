"""Sending runs to trackers. The clients are stand-ins with the calls and the memory of the real ones."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ascendtune.core.errors import AscendtuneError
from ascendtune.core.rundir import RunDir
from ascendtune.train.report import trackers
from ascendtune.train.report.event_import import ImportedRun, write_run
from ascendtune.train.report.sending import Points, exclusive_sending, identity_of, send_run, sent_step
from ascendtune.train.report.trackers import Destination, TrackerName

_BEGAN = 1.7e9


def make_run(place: Path, steps: int = 6) -> RunDir:
    place.mkdir()
    run = RunDir(place)
    record = {"state": "finished", "host": "a", "attempts": [{"attempt": 1, "started": _BEGAN}]}
    run.run_json.write_text(json.dumps({"schema_version": 1, **record}))
    run.recipe.write_text("name: one\nmodel: {path: 'https://me:hunter2@example.com/m'}\n")
    add_steps(run, range(1, steps + 1))
    run.evaluations.write_text(json.dumps({"attempt": 1, "step": 3, "loss": 0.5, "seconds": 1.0}) + "\n")
    return run


def add_steps(run: RunDir, steps: range) -> None:
    with run.metrics.open("a") as file:
        for step in steps:
            record = {"attempt": 1, "step": step, "loss": 1 / step, "grad_norm": None, "seconds": {"step": 0.5}}
            file.write(json.dumps(record) + "\n")


class Server:
    """What the stand-ins have received: of each run its rows, the configuration and the outcome."""

    def __init__(self) -> None:
        self.rows: dict[str, list[tuple[int, dict[str, float]]]] = {}
        self.config: dict[str, Any] = {}
        self.outcomes: list[Any] = []
        self.is_down = False
        self.loses = False

    def add(self, run: str, step: int, values: dict[str, float]) -> None:
        if self.is_down:
            raise ConnectionError("token=verysecretvalue refused")
        if not self.loses:
            self.rows.setdefault(run, []).append((step, values))

    def last(self, run: str) -> int:
        return max((step for step, _ in self.rows.get(run, [])), default=-1)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    for name, client in (("wandb", _wandb), ("swanlab", _swanlab), ("mlflow", _mlflow), ("trackio", _trackio)):
        monkeypatch.setitem(sys.modules, name, client(server))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "mlflow.entities", sys.modules["mlflow"])
    monkeypatch.setattr(trackers, "_LOOK_AGAIN_SECONDS", 0.0)
    for variable in (
        "WANDB_SILENT",
        "SWANLAB_API_HOST",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES",
        "MLFLOW_HTTP_REQUEST_TIMEOUT",
    ):
        # Restored afterwards, also where it was absent.
        monkeypatch.setenv(variable, "1")
    return server


def _wandb(server: Server) -> Any:
    def init(*, id: str, config: dict[str, Any], **_: Any) -> Any:
        server.config = config
        last = server.last(id)

        def log(values: dict[str, float], step: int) -> None:
            server.add(id, step, values)

        return SimpleNamespace(
            id=id, entity="me", project="p", resumed=last >= 0, starting_step=max(last + 1, 0), log=log,
            finish=lambda exit_code: server.outcomes.append(exit_code),
        )  # fmt: skip

    def api(**_: Any) -> Any:
        return SimpleNamespace(
            run=lambda path: SimpleNamespace(lastHistoryStep=server.last(path.split("/")[-1])), flush=lambda: None
        )

    return SimpleNamespace(init=init, Settings=dict, Api=api)


def _swanlab(server: Server) -> Any:
    client = SimpleNamespace(Settings=lambda **_: None)

    def init(*, name: str, config: dict[str, Any], **others: Any) -> None:
        server.config = config
        client.log = lambda values, step: server.add(others.get("id", name), step, values)

    client.init, client.finish = init, lambda **how: server.outcomes.append(how["state"])
    return client


def _mlflow(server: Server) -> Any:
    tags: dict[str, str] = {}

    class MlflowClient:
        def __init__(self, tracking_uri: str | None) -> None: ...

        def get_experiment_by_name(self, name: str) -> Any:
            return None

        def create_experiment(self, name: str) -> str:
            return "1"

        def search_runs(self, experiments: list[str], wanted: str, max_results: int) -> list[Any]:
            found = bool(tags) and tags["ascendtune.run"] in wanted
            return [SimpleNamespace(info=SimpleNamespace(run_id="r"), data=SimpleNamespace(tags=tags))] if found else []

        def create_run(self, experiment: str, tags: dict[str, str], run_name: str) -> Any:
            globals_of_server.update(tags)
            return SimpleNamespace(info=SimpleNamespace(run_id="r"))

        def log_batch(
            self, run: str, metrics: Any = (), params: Any = (), tags: Any = (), synchronous: bool = True
        ) -> None:
            assert len(metrics) + len(params) + len(tags) <= 1000 and len(params) <= 100, "as the server demands"
            server.config.update(params)
            for key, value, time, step in metrics:
                assert time == int((_BEGAN + 0.5 * step) * 1000), "milliseconds, the same on every machine"
                server.add(run, step, {key: value})
            globals_of_server.update(tags)

        def set_terminated(self, run: str, status: str) -> None:
            server.outcomes.append(status)

    globals_of_server = tags
    return SimpleNamespace(
        MlflowClient=MlflowClient, Metric=lambda *each: each, Param=lambda *each: each, RunTag=lambda *each: each
    )


def _trackio(server: Server) -> Any:
    def init(*, name: str, config: dict[str, Any], **_: Any) -> Any:
        server.config = config
        return SimpleNamespace(
            _next_step=server.last(name) + 1, log=lambda values, step: server.add(name, step, values),
            finish=lambda: server.outcomes.append(None),
        )  # fmt: skip

    return SimpleNamespace(init=init)


@pytest.mark.parametrize("name", ["wandb", "swanlab", "mlflow", "trackio"])
def test_each_step_arrives_once_however_often_a_run_is_sent(tmp_path: Path, server: Server, name: TrackerName) -> None:
    run, to = make_run(tmp_path / "run"), Destination(name, "p")
    assert send_run(run, to, "finished") == 6
    assert send_run(run, to, "finished") == 0
    add_steps(run, range(7, 9))
    # A copy on another machine, under another name.
    copy = RunDir(shutil.copytree(run.path, tmp_path / "copy"))
    assert send_run(copy, to, "finished") == 2
    (rows,) = server.rows.values()
    steps = [step for step, values in rows if "train/loss" in values]
    assert steps == list(range(1, 9))
    assert {key: value for step, values in rows if step == 3 for key, value in values.items()}["eval/loss"] == 0.5
    assert "hunter2" not in json.dumps(server.config), "no password of a URL leaves the machine"


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_tracker_decides_what_is_missing_when_the_record_is_lost(
    tmp_path: Path, server: Server, name: TrackerName
) -> None:
    run, to = make_run(tmp_path / "run"), Destination(name, "p")
    send_run(run, to, "finished")
    shutil.rmtree(run.path / "track")
    assert send_run(run, to, "finished") == 0


def test_long_run_is_sent_to_mlflow_within_the_limits_of_a_request(tmp_path: Path, server: Server) -> None:
    run = make_run(tmp_path / "run", steps=2000)
    assert send_run(run, Destination("mlflow", "p"), "failed") == 2000
    assert server.last("r") == 2000 and server.outcomes == ["FAILED"]


def test_newest_step_of_a_running_run_waits_for_its_evaluation(tmp_path: Path, server: Server) -> None:
    run, to = make_run(tmp_path / "run"), Destination("wandb", "p")
    assert send_run(run, to, "running") == 5
    assert send_run(run, to, "lost") == 1 and server.outcomes[-1] == 1


def test_points_come_once_in_order_with_evaluations_between_recorded_steps() -> None:
    points = Points([{"attempt": 1, "started": 10.0}, {"attempt": 2, "started": 100.0}])
    for step, attempt in ((10, 1), (20, 2)):
        points.add("train", {"step": step, "attempt": attempt, "loss": 1.0, "seconds": {"step": 2.0}})
    points.add("eval", {"step": 15, "attempt": 2, "loss": float("nan"), "accuracy": 0.5})
    first = points.take(with_last=False)
    assert [(each.step, each.time, each.values) for each in first] == [
        (10, 12.0, {"train/loss": 1.0}),
        (15, 12.0, {"eval/accuracy": 0.5}),
    ]
    assert [each.step for each in points.take(with_last=True)] == [20]


@pytest.mark.parametrize("trains_on", [True, False])
def test_evaluation_that_a_run_was_stopped_before_arrives_once_after_it_has_gone_on(
    tmp_path: Path, server: Server, trains_on: bool
) -> None:
    run, to = make_run(tmp_path / "run", steps=4), Destination("wandb", "p")
    assert send_run(run, to, "stopped") == 4
    with run.evaluations.open("a") as file:
        file.write(json.dumps({"attempt": 2, "step": 4, "loss": 0.25, "seconds": 1.0}) + "\n")
    run.update(attempts=[*run.read()["attempts"], {"attempt": 2, "started": _BEGAN + 100}])
    add_steps(run, range(5, 7) if trains_on else range(0))
    assert send_run(run, to, "finished") == (2 if trains_on else 1)
    assert send_run(run, to, "finished") == 0
    (rows,) = server.rows.values()
    assert [(step, values["eval/loss"]) for step, values in rows if "eval/loss" in values] == [(3, 0.5), (5, 0.25)]


def _code(run: RunDir, to: Destination, state: str = "finished") -> str:
    with pytest.raises(AscendtuneError) as caught:
        send_run(run, to, state)
    assert "verysecret" not in str(caught.value)
    return caught.value.code


def test_tracker_that_is_down_is_an_error_and_a_later_try_sends_all(tmp_path: Path, server: Server) -> None:
    run, to = make_run(tmp_path / "run"), Destination("wandb", "p")
    server.is_down = True
    assert _code(run, to) == "tracker-unreachable" and sent_step(run, to) == -1
    server.is_down, server.loses = False, True
    assert _code(run, to) == "tracker-unreachable", "its client reported no error, and nothing arrived"
    server.loses = False
    assert send_run(run, to, "finished") == 6


def test_wrong_use_is_refused(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run")
    assert _code(run, Destination("mlflow", "p", offline=True)) == "invalid-option-value"
    assert _code(run, Destination("wandb", "p", host="file:///etc")) == "invalid-option-value"
    assert _code(run, Destination("wandb", "p", offline=True), "running") == "run-in-use"
    with exclusive_sending(run, Destination("wandb", "p")):
        assert _code(run, Destination("wandb", "p")) == "run-in-use"
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert _code(run, Destination("wandb", "p")) == "package-missing"
    run.metrics.write_text('{"step": "1"}\n')
    assert _code(run, Destination("swanlab", "p")) == "record-damaged"
    run.metrics.write_text("")
    run.evaluations.unlink()
    assert _code(run, Destination("swanlab", "p")) == "no-training-records"


def test_offline_files_are_written_once(tmp_path: Path, server: Server) -> None:
    run, to = make_run(tmp_path / "run"), Destination("swanlab", "p", offline=True)
    assert send_run(run, to, "finished") == 6
    assert send_run(run, to, "finished") == 0
    add_steps(run, range(7, 9))
    assert _code(run, to) == "path-exists"


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_imported_run_is_written_into_offline_files(tmp_path: Path, server: Server, name: TrackerName) -> None:
    found = ImportedRun(tmp_path / "logs")
    for step in range(1, 4):
        found.add(step, _BEGAN + step, "train/loss", 1 / step)
        found.add(step, _BEGAN + step, "eval/accuracy", step / 4)
        found.add(step, _BEGAN + step, "train/margin", 7)
        found.add(step, _BEGAN + step, "margin", 8)
    run = write_run(found, tmp_path / "run")
    assert send_run(run, Destination(name, "p", offline=True), "imported") == 3
    (rows,) = server.rows.values()
    expected = {"train/loss": 0.5, "eval/accuracy": 0.5, "train/margin": 8, "train/train/margin": 7}
    assert {name: value for name, value in rows[1][1].items() if name != "_timestamp"} == expected
    assert [step for step, _ in rows] == [1, 2, 3]
    assert server.outcomes == [0 if name == "wandb" else "success"]


def test_id_outlives_resuming_copying_and_renaming(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    before = identity_of(run)
    run.update(attempts=[*run.read()["attempts"], {"attempt": 2, "started": _BEGAN + 1}], name="other")
    moved = RunDir(run.path.rename(tmp_path / "moved"))
    assert identity_of(moved).id == before.id and identity_of(moved).name == "moved"
