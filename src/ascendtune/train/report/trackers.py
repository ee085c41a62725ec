"""Trackers that runs are sent to, each through its own client: wandb, swanlab, mlflow and trackio.

A client reads its key from where its own log-in keeps it, or from the environment. Clients are told to collect nothing
by themselves: no hardware, no packages, no source code, no console.
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
"""A server that does not answer for so long counts as down."""
_RETRIES = 3
_LOOK_AGAIN_SECONDS = 3.0
_MLFLOW_ENTITIES = 900
"""Of one request; servers take 1000."""
_MLFLOW_PARAMETERS = 90
"""Of one request; servers take 100."""
_MLFLOW_VALUE_CHARACTERS = 500
"""Servers take 6000; those before 2.10 took 500."""
_RUN_TAG, _STEP_TAG = "ascendtune.run", "ascendtune.step"


@dataclass(frozen=True)
class Destination:
    """Where a run is sent to.

    Attributes:
        host: URL of the server; None: the one that the client is set up for.
        offline: into the client's own files below the run directory, which its `sync` uploads.
    """

    tracker: TrackerName
    project: str
    host: str | None = None
    offline: bool = False


@dataclass(frozen=True)
class Identity:
    """A run, as trackers know it.

    Attributes:
        id: the same for every copy of the run directory, on every machine; `fixed_name` likewise.
        name: of the directory.
    """

    id: str
    name: str
    fixed_name: str
    config: dict[str, Any]
    directory: Path


@dataclass(frozen=True)
class Point:
    """All numbers of one step. `time`: seconds since 1970."""

    step: int
    time: float
    values: dict[str, float]


class Tracker(Protocol):
    """An open connection to one run of a tracker."""

    def last_step(self) -> int | None:
        """The newest step that the tracker has, -1 where it has none; None where its client cannot ask."""

    def send(self, points: Sequence[Point]) -> None:
        """Pass on points in the order of their steps."""

    def close(self, outcome: Outcome) -> None:
        """Wait until everything has arrived."""


def open_tracker(destination: Destination, identity: Identity) -> Tracker:
    """Connect to the run in the tracker, and make it there if it is new.

    Raises:
        InputError: the tracker cannot do what is asked.
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
        return _OPENED[tracker](destination, identity)


def _temporary_directory() -> tempfile.TemporaryDirectory[str]:
    """Also removed where the client cannot be started, or fails at its end."""
    return tempfile.TemporaryDirectory(prefix="ascendtune-wandb-", ignore_cleanup_errors=True)


class _Wandb:
    def __init__(self, destination: Destination, identity: Identity) -> None:
        # Before the import: there the client reads them. Its core process inherits them.
        os.environ.setdefault("WANDB_SILENT", "true")
        wandb: Any = importlib.import_module("wandb")
        self._wandb, self._host, self._last = wandb, destination.host, -1
        # What the client writes on the way is not needed later: the run directory is the source.
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
        # Of a resumed run the step that the client begins with.
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
        """Ask the server for the newest step: the client ends without an error where its server went down."""
        api = self._wandb.Api(overrides={"base_url": self._host} if self._host else {}, timeout=int(_ANSWER_SECONDS))
        path = f"{self._run.entity}/{self._run.project}/{self._run.id}"
        for _ in range(_RETRIES):
            arrived = api.run(path).lastHistoryStep
            if arrived >= self._last:
                return
            # A server may take in rows later than it acknowledges them.
            time.sleep(_LOOK_AGAIN_SECONDS)
            api.flush()
        raise RuntimeError(f"its server has steps up to {arrived} of {self._last}")


class _Swanlab:
    def __init__(self, destination: Destination, identity: Identity) -> None:
        if destination.host:
            # Before the import. `swanlab.login` would take no key for it from the environment.
            os.environ["SWANLAB_API_HOST"] = destination.host
        swanlab: Any = importlib.import_module("swanlab")
        self._swanlab = swanlab
        # With an id and `resume` the client takes no step a second time.
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
        found = self._client.search_runs([number], f"tags.`{_RUN_TAG}` = '{identity.id}'", max_results=1)
        if found:
            self._id, self._last = found[0].info.run_id, found[0].data.tags.get(_STEP_TAG)
            return
        self._last = None
        made = self._client.create_run(number, tags={_RUN_TAG: identity.id}, run_name=identity.name)
        self._id = made.info.run_id
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
                # The time is derived from the record: a point that is sent again is the same row.
                time = int(each.time * 1000)
                batch += [self._entities.Metric(key, value, time, each.step) for key, value in each.values.items()]
                following = len(points[number].values) if number < len(points) else _MLFLOW_ENTITIES
                if len(batch) + following >= _MLFLOW_ENTITIES:
                    # One request: either both arrive, or none.
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
            # Runs are found by their names there.
            name=identity.fixed_name,
            config=identity.config,
            resume="allow",
            server_url=destination.host,
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        # The client has no public way to ask.
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


_OPENED: dict[TrackerName, Callable[[Destination, Identity], Tracker]] = {
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
    """Errors of a client, whatever their classes are, as ours."""
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
            f"{tracker} did not take the run: {without_secrets(lines[0])[:300]}",
            code="tracker-unreachable",
            remedy="check the network, the address and the log-in (`ascendtune track login`), then send again: "
            "steps that have arrived are passed over",
        ) from error
