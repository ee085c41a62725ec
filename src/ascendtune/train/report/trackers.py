"""Trackers to which runs are sent, each by its own client: wandb, swanlab, mlflow and trackio.

A client reads its key from the file of its own log-in, or from the environment. Clients are configured to collect
nothing by themselves: no hardware, no packages, no source code, no console.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from ascendtune.core.errors import AscendtuneError, InputError, MachineError
from ascendtune.core.mask import without_secrets
from ascendtune.recipe.sections import TrackerName

Outcome = Literal["running", "finished", "failed", "stopped"]

_ANSWER_SECONDS = 30.0
"""A server that does not answer for so long is considered down."""
_RETRIES = 3
_LOOK_AGAIN_SECONDS = 3.0
_MLFLOW_ENTITIES = 900
"""Metrics in a request; servers accept 1000."""
_MLFLOW_PARAMETERS = 90
"""Parameters in a request; servers accept 100."""
_MLFLOW_VALUE_CHARACTERS = 500
"""Servers accept 6000; before 2.10 they accepted 500."""
_RUN_TAG, _STEP_TAG = "ascendtune.run", "ascendtune.step"


@dataclass(frozen=True)
class Destination:
    """The tracker and project to which a run is sent.

    Attributes:
        host: URL of the server; None: the server that the client is configured for.
        offline: write the client's own files below the run directory; its `sync` command uploads them.
    """

    tracker: TrackerName
    project: str
    host: str | None = None
    offline: bool = False


@dataclass(frozen=True)
class Identity:
    """The identity of a run in trackers.

    Attributes:
        id: the same for every copy of the run directory, on every machine; so is `fixed_name`.
        name: name of the directory.
    """

    id: str
    name: str
    fixed_name: str
    config: dict[str, Any]
    directory: Path


@dataclass(frozen=True)
class Point:
    """All metrics of one step. `time`: seconds since 1970."""

    step: int
    time: float
    values: dict[str, float]


class Tracker(Protocol):
    """A connection to a run in a tracker."""

    def last_step(self) -> int | None:
        """The newest step that the tracker has, -1 if it has none; None if its client cannot request it."""

    def send(self, points: Sequence[Point]) -> None:
        """Send points in the order of their steps."""

    def close(self, outcome: Outcome) -> None:
        """Wait until everything has arrived."""


def open_tracker(destination: Destination, identity: Identity) -> Tracker:
    """Connect to the run in the tracker, and create it there if it is new.

    Raises:
        InputError: the tracker does not support the destination.
        MachineError: its client is not installed, this user is not logged in, or its server cannot be reached.
    """
    tracker, host = destination.tracker, destination.host
    if destination.offline and tracker in ("mlflow", "trackio"):
        raise InputError(
            f"{tracker} has no offline files",
            code="invalid-option-value",
            remedy="give --host sqlite:///PATH" if tracker == "mlflow" else "leave --offline out: it writes locally",
        )
    schemes = ("http://", "https://", *(("sqlite:///", "file:") if tracker == "mlflow" else ()))
    if host is not None and not host.startswith(schemes):
        raise InputError(f"{host!r} is not a URL of {tracker}", code="invalid-option-value", remedy="give https://HOST")
    with _translated(tracker):
        return _TRACKERS[tracker](destination, identity)


def _temporary_directory() -> tempfile.TemporaryDirectory[str]:
    """A temporary directory, removed even if the client cannot be started or fails at its end."""
    return tempfile.TemporaryDirectory(prefix="ascendtune-wandb-", ignore_cleanup_errors=True)


class _Wandb:
    def __init__(self, destination: Destination, identity: Identity) -> None:
        # Set before the import, when the client reads them. Its core process inherits them.
        os.environ.setdefault("WANDB_SILENT", "true")
        wandb: Any = importlib.import_module("wandb")
        self._wandb, self._host, self._last = wandb, destination.host, -1
        # The client's own files are not needed afterwards: the run directory is the source.
        self._temporary = None if destination.offline else _temporary_directory()
        settings: dict[str, Any] = {
            "base_url": destination.host,
            "console": "off",
            "disable_code": True,
            "disable_git": True,
            "disable_job_creation": True,
            "init_timeout": _ANSWER_SECONDS,
            "save_code": False,
            "x_disable_machine_info": True,
            "x_disable_meta": True,
            "x_disable_stats": True,
            "x_save_requirements": False,
            "x_file_stream_retry_max": _RETRIES,
            "x_file_stream_retry_wait_max_seconds": 2.0,
            "x_file_transfer_retry_max": _RETRIES,
            "x_graphql_retry_max": _RETRIES,
            "x_graphql_retry_wait_max_seconds": 2.0,
            "x_graphql_timeout_seconds": _ANSWER_SECONDS,
        }
        self._run: Any = wandb.init(
            project=destination.project,
            id=identity.id,
            name=identity.name,
            config=identity.config,
            dir=self._temporary.name if self._temporary else str(identity.directory),
            mode="offline" if destination.offline else "online",
            resume=None if destination.offline else "allow",
            settings=wandb.Settings(**{key: value for key, value in settings.items() if value is not None}),
        )

    def last_step(self) -> int | None:
        # For a resumed run, the client starts at the step after the server's last one.
        return int(self._run.starting_step) - 1 if self._run.resumed else -1

    def send(self, points: Sequence[Point]) -> None:
        with _translated("wandb"):
            for each in points:
                self._run.log({**each.values, "_timestamp": each.time}, step=each.step)
                self._last = each.step

    def close(self, outcome: Outcome) -> None:
        with _translated("wandb"):
            self._run.finish(exit_code=int(outcome == "failed"))
            if self._temporary:
                self._temporary.cleanup()
                self._require_arrived()

    def _require_arrived(self) -> None:
        """Request the newest step from the server: the client reports no error if its server went down."""
        api = self._wandb.Api(overrides={"base_url": self._host} if self._host else {}, timeout=int(_ANSWER_SECONDS))
        path = f"{self._run.entity}/{self._run.project}/{self._run.id}"
        for _ in range(_RETRIES):
            arrived = api.run(path).lastHistoryStep
            if arrived >= self._last:
                return
            # A server may store rows later than it acknowledges them.
            time.sleep(_LOOK_AGAIN_SECONDS)
            api.flush()
        raise RuntimeError(f"its server has steps up to {arrived} of {self._last}")


class _Swanlab:
    def __init__(self, destination: Destination, identity: Identity) -> None:
        if destination.host:
            # Set before the import: `swanlab.login` with a host would not read the key from the environment.
            os.environ["SWANLAB_API_HOST"] = destination.host
        swanlab: Any = importlib.import_module("swanlab")
        self._swanlab = swanlab
        # With an id and `resume` the client ignores steps that it has sent before.
        resumed = {} if destination.offline else {"id": identity.id, "resume": "allow"}
        probes = ("hardware", "runtime", "requirements", "conda", "git", "swanlab", "monitor")
        swanlab.init(
            project=destination.project,
            name=identity.name,
            config=identity.config,
            log_dir=str(identity.directory / "swanlog"),
            mode="offline" if destination.offline else "online",
            settings=swanlab.Settings(probe=dict.fromkeys(probes, False), terminal={"proxy_type": "none"}),
            **resumed,
        )

    def last_step(self) -> int | None:
        return None

    def send(self, points: Sequence[Point]) -> None:
        with _translated("swanlab"):
            for each in points:
                self._swanlab.log(each.values, step=each.step)

    def close(self, outcome: Outcome) -> None:
        with _translated("swanlab"):
            if outcome == "failed":
                self._swanlab.finish(state="crashed", error="see run.json")
            else:
                self._swanlab.finish(state="aborted" if outcome == "stopped" else "success")


class _Mlflow:
    def __init__(self, destination: Destination, identity: Identity) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", str(_RETRIES))
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(int(_ANSWER_SECONDS)))
        mlflow: Any = importlib.import_module("mlflow")
        self._entities: Any = importlib.import_module("mlflow.entities")
        self._client: Any = mlflow.MlflowClient(tracking_uri=destination.host)
        experiment = self._client.get_experiment_by_name(destination.project)
        number = experiment.experiment_id if experiment else self._client.create_experiment(destination.project)
        runs = self._client.search_runs([number], f"tags.`{_RUN_TAG}` = '{identity.id}'", max_results=1)
        if runs:
            self._id, self._last = runs[0].info.run_id, runs[0].data.tags.get(_STEP_TAG)
            return
        self._last = None
        created = self._client.create_run(number, tags={_RUN_TAG: identity.id}, run_name=identity.name)
        self._id = created.info.run_id
        parameters = [
            self._entities.Param(key, value[:_MLFLOW_VALUE_CHARACTERS]) for key, value in _flat(identity.config)
        ]
        for begin in range(0, len(parameters), _MLFLOW_PARAMETERS):
            self._client.log_batch(self._id, params=parameters[begin : begin + _MLFLOW_PARAMETERS])

    def last_step(self) -> int | None:
        return int(self._last) if self._last and self._last.isdecimal() else -1

    def send(self, points: Sequence[Point]) -> None:
        with _translated("mlflow"):
            batch: list[Any] = []
            for number, each in enumerate(points, 1):
                # The time is computed from the record: a point that is sent again is the same row.
                time = int(each.time * 1000)
                batch += [self._entities.Metric(key, value, time, each.step) for key, value in each.values.items()]
                following = len(points[number].values) if number < len(points) else _MLFLOW_ENTITIES
                if len(batch) + following >= _MLFLOW_ENTITIES:
                    # In one request: either both arrive, or neither.
                    tags = [self._entities.RunTag(_STEP_TAG, str(each.step))]
                    self._client.log_batch(self._id, metrics=batch, tags=tags, synchronous=True)
                    batch = []

    def close(self, outcome: Outcome) -> None:
        states = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED", "running": "RUNNING"}
        with _translated("mlflow"):
            if outcome == "running":
                self._client.update_run(self._id, status="RUNNING")
            else:
                self._client.set_terminated(self._id, status=states[outcome])


class _Trackio:
    def __init__(self, destination: Destination, identity: Identity) -> None:
        trackio: Any = importlib.import_module("trackio")
        self._run: Any = trackio.init(
            project=destination.project,
            # trackio identifies runs by their names.
            name=identity.fixed_name,
            config=identity.config,
            resume="allow",
            server_url=destination.host,
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        # The client has no public method for it.
        self._last = int(self._run._next_step) - 1

    def last_step(self) -> int | None:
        return self._last

    def send(self, points: Sequence[Point]) -> None:
        with _translated("trackio"):
            for each in points:
                self._run.log(each.values, step=each.step)

    def close(self, outcome: Outcome) -> None:
        with _translated("trackio"):
            self._run.finish()


_TRACKERS: dict[TrackerName, Callable[[Destination, Identity], Tracker]] = {
    "wandb": _Wandb,
    "swanlab": _Swanlab,
    "mlflow": _Mlflow,
    "trackio": _Trackio,
}


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


@contextmanager
def _translated(tracker: str) -> Iterator[None]:
    """Convert a client's errors, of whatever class, to errors of this program."""
    try:
        yield
    except AscendtuneError:
        raise
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != tracker:
            raise
        raise MachineError(
            f"{tracker} is not installed", code="package-missing", remedy=f"pip install 'ascendtune[{tracker}]'"
        ) from error
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise MachineError(
            f"{tracker} did not accept the run: {without_secrets(lines[0])[:300]}",
            code="tracker-unreachable",
            remedy="check the network, the address and the log-in (`ascendtune track login`), then send again: "
            "steps that have arrived are skipped",
        ) from error
