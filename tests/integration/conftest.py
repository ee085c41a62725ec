"""The command as real processes in a directory of their own, observed from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from ascendtune.core.files import write_atomically
from ascendtune.core.rundir import RunDir
from ascendtune.train.report import picture
from cluster import Cluster, two_machines
from preloaded import Preloaded

_PATIENCE_SECONDS = 180


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


class Job:
    """One `ascendtune …`, its streams in files, so that they can be read while it runs and after it was killed."""

    def __init__(self, words: tuple[str, ...], directory: Path, number: int, env: dict[str, str]) -> None:
        self.began = time.time()
        self._out, self._err = directory / f".out-{number}", directory / f".err-{number}"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ascendtune", *words],
                cwd=directory,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def err(self) -> str:
        return self._err.read_text()

    def wait(self) -> Ended:
        code = self.process.wait(_PATIENCE_SECONDS)
        return Ended(code, self._out.read_text(), self.err)

    def until(self, condition: Callable[[], Any]) -> None:
        """Look again and again, often enough to hit a window of a few milliseconds."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            assert self.process.poll() is None, f"ended with {self.process.returncode} too early:\n{self.err}"
            assert time.monotonic() < deadline, f"waited too long:\n{self.err}"
            time.sleep(0.0005)

    def until_step(self, run: RunDir, step: int) -> None:
        """Until an attempt that this job began has recorded `step`."""
        seen = 0

        def reached() -> bool:
            nonlocal seen
            size = run.metrics.stat().st_size if run.metrics.exists() else 0
            if size == seen:
                return False
            seen = size
            last = list(run.read_metrics())[-1:]
            if not last or last[0]["step"] < step:
                return False
            return bool(run.read()["attempts"][last[0]["attempt"] - 1]["started"] >= self.began)

        self.until(reached)


class Workshop:
    """A directory with recipes in which commands are started; cache and registry are its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cache = directory / "cache"
        self.env = {
            **os.environ,
            "XDG_CACHE_HOME": str(self.cache),
            "XDG_STATE_HOME": str(directory / "state"),
            "COLUMNS": "80",
        }
        self._number = 0

    def write(self, name: str, recipe: dict[str, Any]) -> str:
        (self.directory / name).write_text(yaml.safe_dump(recipe, sort_keys=False))
        return name

    def write_small_run(self, model: Path, **sections: Any) -> None:
        """recipe.yaml of a run named `run` on 40 short rows, with `sections` beside name, model and data."""
        rows = [{"instruction": f"What is {n} plus one?", "output": f"It is {n + 1}."} for n in range(40)]
        (self.directory / "rows.json").write_text(json.dumps(rows))
        data = {"train": "rows.json", "max_length": 64}
        self.write("recipe.yaml", {"name": "run", "model": {"path": str(model)}, "data": data, **sections})

    def start(self, *words: str, **env: str) -> Job:
        self._number += 1
        return Job(words, self.directory, self._number, {**self.env, **env})

    def run(self, *words: str, **env: str) -> Ended:
        return self.start(*words, **env).wait()

    def processes(self) -> list[psutil.Process]:
        """Whatever still runs in here, whoever its parent has become. Not this process, which a test may have sent."""
        found = []
        for process in psutil.process_iter():
            try:
                inside = Path(process.cwd()).is_relative_to(self.directory)
            except (psutil.Error, OSError):
                continue
            if inside and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def leftovers(self, run: RunDir) -> list[str]:
        """Files that only a write in progress may have."""
        patterns = (".*.[0-9]*", ".model.*", "checkpoints/.step_*")
        found = [path for pattern in patterns for path in run.path.glob(pattern)]
        return [str(path) for path in (*found, *self.cache.glob("ascendtune/tokens/.building-*"))]


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    place = Workshop(tmp_path)
    yield place
    for process in place.processes():
        process.kill()


@pytest.fixture(scope="session")
def new_workshop() -> Callable[[Path], Workshop]:
    """For what lives longer than a test."""
    return Workshop


@pytest.fixture(scope="module", autouse=True)
def _empty_pictures() -> Iterator[None]:
    """Drawing a picture takes longer than these trainings do, and has tests of its own; each is an empty file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picture, "write_figure", lambda figure, path: write_atomically(path, b""))
        yield


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """`disk("size=2m")`: a file system of its own; tests run as root, whom permission bits do not stop."""
    mounted: list[Path] = []

    def mount(options: str = "size=1m", name: str = "disk") -> Path:
        path = tmp_path / name
        path.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, _libraries: Preloaded) -> Iterator[Cluster]:
    with two_machines(tmp_path_factory.mktemp("cluster"), _libraries) as machines:
        yield machines
