"""The real client of wandb and `ascendtune track`, against a stand-in for wandb's server."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from ascendtune.core.rundir import RunDir
from wandb_server import KEY, WandbRun, WandbServer, serving_wandb

pytestmark = pytest.mark.usefixtures("clients")

_STEPS = 20
_PROGRAM = """
import sys, wandb
run = wandb.init(project="theirs", id=sys.argv[1], mode="offline", settings=wandb.Settings(console="off"))
for step in range(20):
    run.log({"loss": 1 / (step + 1)}, step=step)
run.finish()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what a program with WANDB_MODE=offline has left."""
    place = tmp_path_factory.mktemp("recorded")
    (place / "train.py").write_text(_PROGRAM)
    packages = Path(__file__).parents[2] / ".venv-clients/packages"
    env = {**os.environ, "HOME": str(place / "home"), "PYTHONPATH": str(packages)}
    argv = [sys.executable, "train.py", "abc"]
    if packages.is_dir():
        subprocess.run(argv, cwd=place, env=env, check=True, capture_output=True, timeout=300)
    return place


class Place:
    """A directory in which `ascendtune` is started with the real client and the server's address."""

    def __init__(self, directory: Path, server: WandbServer) -> None:
        self.directory, self.server = directory, server
        self.env = {
            **os.environ, "HOME": str(directory / "home"), "WANDB_API_KEY": KEY, "WANDB_BASE_URL": server.endpoint,
            # Whole seconds: of a part of one the client makes 0, which is its own default.
            "WANDB_X_FILE_STREAM_RETRY_MAX": "2", "WANDB_X_FILE_STREAM_RETRY_WAIT_MIN_SECONDS": "1",
            "WANDB_X_FILE_STREAM_RETRY_WAIT_MAX_SECONDS": "1",
        }  # fmt: skip

    def start(self, *words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "ascendtune", *words]
        return subprocess.Popen(
            argv, cwd=self.directory, env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip

    def run(self, *words: str) -> tuple[int, str]:
        """Exit code and output."""
        process = self.start(*words)
        out, err = process.communicate(timeout=300)
        return process.returncode, out + err

    @property
    def only(self) -> WandbRun:
        """The only run that the server has."""
        (run,) = self.server.runs.values()
        return run

    def losses(self, name: str = "loss") -> dict[int, float]:
        """By step. A step that arrived twice is an error."""
        found: dict[int, float] = {}
        for row in self.only.rows.values():
            if name in row:
                assert row["_step"] not in found, "a step arrived twice"
                found[row["_step"]] = row[name]
        return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "home").mkdir()
    with serving_wandb(WandbServer()) as server:
        yield Place(tmp_path, server)


def _with_offline_run(place: Place, recorded: Path) -> Path:
    shutil.copytree(recorded / "wandb", place.directory / "wandb", symlinks=True)
    (run,) = (place.directory / "wandb").glob("offline-run-*")
    return run


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.05)


_EXPECTED = {step: pytest.approx(1 / (step + 1)) for step in range(_STEPS)}


def test_offline_run_is_uploaded_once(place: Place, recorded: Path) -> None:
    _with_offline_run(place, recorded)
    code, output = place.run("track", "sync")
    assert code == 0 and "uploaded offline-run" in output, output
    assert place.losses() == _EXPECTED and place.only.project == "theirs" and place.only.exit_code == 0
    assert place.server.keys == {"Basic " + base64.b64encode(f"api:{KEY}".encode()).decode()}
    asked = len(place.server.operations)
    code, output = place.run("track", "sync")
    assert code == 0 and len(place.server.operations) == asked, "an uploaded run is passed over"
    assert KEY not in output


def test_project_is_chosen(place: Place, recorded: Path) -> None:
    _with_offline_run(place, recorded)
    code, output = place.run("track", "sync", "--project", "ours")
    assert code == 0 and place.only.project == "ours", output


def test_run_that_was_online_and_was_killed_is_uploaded_when_it_is_named(place: Place, recorded: Path) -> None:
    offline = _with_offline_run(place, recorded)
    online = offline.rename(offline.with_name(offline.name.removeprefix("offline-")))
    code, output = place.run("track", "sync")
    assert code == 0 and "no offline runs" in output, "its own process may still send it"
    code, output = place.run("track", "sync", str(online.relative_to(place.directory)))
    assert code == 0 and f"uploaded {online.name}" in output, output
    assert place.losses() == _EXPECTED


@pytest.mark.parametrize("refuses", [[401] * 50, [500] * 50, [0] * 50], ids=["refused", "failing", "cut"])
def test_run_that_the_server_does_not_take_stays_new(place: Place, recorded: Path, refuses: list[int]) -> None:
    run = _with_offline_run(place, recorded)
    place.server.refuses = refuses
    code, output = place.run("track", "sync")
    assert code == 1 and "upload-failed" in output and KEY not in output, output
    assert not list(run.glob("*.synced")) and not place.only.rows
    place.server.refuses.clear()
    code, output = place.run("track", "sync")
    assert code == 0 and place.losses() == _EXPECTED, output


def test_upload_goes_through_cut_connections_and_errors(place: Place, recorded: Path) -> None:
    _with_offline_run(place, recorded)
    place.server.refuses = [0, 503]
    code, output = place.run("track", "sync")
    assert code == 0 and place.losses() == _EXPECTED, output


def _core_processes(directory: Path) -> list[int]:
    """Processes of wandb's client that were started for this directory."""
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            home = each.environ().get("HOME")
            if home == str(directory / "home") and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each.pid)
    return found


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda each: each.name
)
def test_upload_that_is_ended_ends_the_client_and_is_continued(
    place: Place, recorded: Path, number: signal.Signals
) -> None:
    run = _with_offline_run(place, recorded)
    place.server.takes_rows = 8
    process = place.start("track", "sync")
    until(place.server.holds.is_set)
    assert len(_core_processes(place.directory)) >= 3, "ours, wandb's command line, wandb's core"
    process.send_signal(number)
    process.communicate()
    until(lambda: not _core_processes(place.directory))
    assert not list(run.glob("*.synced")) and len(place.only.rows) == 8
    place.server.holds.clear()
    code, output = place.run("track", "sync")
    assert code == 0 and "12 of 20 rows, the others were there" in output, output
    assert place.losses() == _EXPECTED and sorted(place.only.rows) == [*range(_STEPS)]
    assert place.only.exit_code == 0 and json.loads(place.only.summary)["_step"] == _STEPS - 1
    assert "requirements.txt" in place.server.stored, "the files of the run are found from the copy"
    assert [path.name for path in run.glob(".*")] == [], "no copy is left"


def test_upload_that_another_process_does_is_left_to_it(place: Place, recorded: Path) -> None:
    _with_offline_run(place, recorded)
    place.server.holds.set()
    process = place.start("track", "sync")
    assert place.server.asked_for_rows.wait(60)
    code, output = place.run("track", "sync")
    assert code == 1 and "run-in-use" in output, output
    place.server.holds.clear()
    process.communicate()
    assert process.returncode == 0 and place.losses() == _EXPECTED


def test_rows_of_another_file_of_the_run_are_not_taken_for_this_ones(place: Place, recorded: Path) -> None:
    run = _with_offline_run(place, recorded)
    assert place.run("track", "sync")[0] == 0
    # The same program, started again: the same steps, at other times.
    env = {**place.env, "WANDB_MODE": "offline"}
    argv = [sys.executable, str(recorded / "train.py"), "abc"]
    subprocess.run(argv, cwd=place.directory, env=env, check=True, capture_output=True, timeout=300)
    code, output = place.run("track", "sync")
    assert code == 0 and "got all rows of this file" in output, output
    assert len(place.only.rows) == 2 * _STEPS and run.is_dir()


def _events(directory: Path) -> None:
    writer = EventFileWriter(str(directory))
    for step in range(1, 7):
        value = Summary.Value(tag="train/loss", simple_value=1 / step)
        writer.add_event(Event(wall_time=1.7e9 + step, step=step, summary=Summary(value=[value])))
    writer.close()


def test_imported_run_is_sent_each_step_once(place: Place) -> None:
    _events(place.directory / "logs")
    assert place.run("track", "import", "logs")[0] == 0
    send = ("track", "send", "runs/logs", "--to", "wandb", "--project", "p", "--host", place.server.endpoint)
    code, output = place.run(*send)
    assert code == 0 and "6 steps sent" in output, output
    assert place.losses("train/loss") == {step: pytest.approx(1 / step) for step in range(1, 7)}
    assert "GetDefaultEntity" in place.server.operations, "the client asks after the run, whose it is"
    code, output = place.run(*send)
    assert code == 0 and "nothing new" in output and len(place.losses("train/loss")) == 6, output


def test_imported_run_is_written_offline_and_uploaded_later(place: Place) -> None:
    _events(place.directory / "logs")
    assert place.run("track", "import", "logs")[0] == 0
    code, output = place.run("track", "send", "runs/logs", "--to", "wandb", "--offline")
    assert code == 0 and not place.server.operations, output
    code, output = place.run("track", "sync", "runs/logs")
    assert code == 0 and len(place.losses("train/loss")) == 6, output
    # Online the same run is found again: its id does not depend on the way.
    code, output = place.run("track", "send", "runs/logs", "--to", "wandb", "--host", place.server.endpoint)
    assert code == 0 and "nothing new" in output, output
    files = [path for path in RunDir(place.directory / "runs/logs").path.rglob("*") if path.is_file()]
    assert files and not [path for path in files if KEY.encode() in path.read_bytes()]
