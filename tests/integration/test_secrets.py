"""Keys that are in the environment reach no log, no run directory, no terminal and no argument of a process."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hub_server import Hub, serving
from python_path import python_path
from wandb_server import KEY, WandbServer, serving_wandb

if TYPE_CHECKING:
    from tests.integration.conftest import Ended, Workshop

pytestmark = pytest.mark.usefixtures("preloaded")

_SECRETS = {
    name: f"planted{number}value{name.lower().replace('_', '')}00000000000000000"
    for number, name in enumerate(
        (
            "WANDB_API_KEY", "SWANLAB_API_KEY", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD",
            "TRACKIO_WRITE_TOKEN", "HF_TOKEN", "MODELSCOPE_API_TOKEN", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY",
        )
    )
}  # fmt: skip
_PASSWORD = "plantedpasswordofaproxy"
_ADDRESSES = {
    "HTTP_PROXY_OF_MINE": f"http://me:{_PASSWORD}@127.0.0.1:9",
    "PIP_INDEX_URL": f"https://me:{_PASSWORD}@127.0.0.1:9/simple",
}
_PLANTED = (*_SECRETS.values(), _PASSWORD)
_CLIENT = """
import os
Settings = dict
def init(**options):
    key = os.environ["{variable}"]
    raise ConnectionError(f"401 for https://me:{{key}}@example.org/, api_key={{key}}, Authorization: Bearer {{key}}")
"""


class _Arguments(threading.Thread):
    """Looks at the arguments of all processes, again and again, until it is told to end."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.found, self.looks, self._ended = set[str](), 0, threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.01):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    words = path.read_bytes()
                except OSError:
                    continue
                self.found |= {each for each in _PLANTED if each.encode() in words}
            self.looks += 1

    def end(self) -> None:
        self._ended.set()
        self.join()


@pytest.fixture(autouse=True)
def arguments() -> Iterator[_Arguments]:
    watcher = _Arguments()
    watcher.start()
    yield watcher
    watcher.end()
    assert watcher.looks > 0 and not watcher.found, "a secret is the argument of a process"


def _holding(directory: Path) -> list[tuple[str, str]]:
    """Files at or below a directory with a secret in content or name, and which one it is."""
    files = [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()]
    return [
        (str(path.relative_to(directory)), each)
        for path in files
        for each in _PLANTED
        if each.encode() in path.read_bytes() or each in path.name
    ]


def _shown(*ended: Ended) -> list[str]:
    return [each for each in _PLANTED for one in ended if each in one.out or each in one.err]


def test_training_that_is_sent_shows_and_keeps_no_key(workshop: Workshop, tiny_model: Path) -> None:
    clients = workshop.directory / "clients"
    clients.mkdir()
    for name, variable in (("wandb", "WANDB_API_KEY"), ("mlflow", "MLFLOW_TRACKING_TOKEN")):
        (clients / f"{name}.py").write_text(_CLIENT.format(variable=variable))
    (clients / "mlflow.py").write_text((clients / "mlflow.py").read_text().replace("def init(**options)", "if True"))
    workshop.write_small_run(tiny_model, optim={"max_steps": 2}, track={"send_to": ["wandb", "mlflow"]})
    env = {**_SECRETS, **_ADDRESSES, "HOME": str(workshop.directory / "home"), "PYTHONPATH": python_path(clients)}
    trained = workshop.run("train", "recipe.yaml", "--devices", "2", **env)
    assert trained.code == 0 and "track send runs/run --to wandb" in " ".join(trained.err.split()), trained.err
    assert "401" in (workshop.directory / "runs/run/log/track_wandb.log").read_text(), "the client was asked"
    ended = [
        trained,
        *(workshop.run(*words, **env) for words in (
            ("track", "send", "runs/run", "--to", "wandb"), ("track", "send", "runs/run", "--to", "mlflow", "--json"),
            ("runs", "show", "runs/run", "--json"), ("jobs", "show", "runs/run", "--json"), ("explain", "runs/run"),
            ("env", "export"), ("env", "mirrors", "show"), ("doctor", "python", "--json"),
        )),
    ]  # fmt: skip
    assert ended[1].code == ended[2].code == 3
    assert not _shown(*ended) and not _holding(workshop.directory)


def test_training_that_fails_shows_and_keeps_no_key(workshop: Workshop, tiny_model: Path) -> None:
    workshop.write_small_run(tiny_model, optim={"max_steps": 2})
    env = {**_SECRETS, **_ADDRESSES, "HOME": str(workshop.directory / "home")}
    words = ("recipe.yaml", "--devices", "2", "optim.learning_rate=1e30", "optim.max_grad_norm=0")
    failed = workshop.run("train", *words, **env)
    explained = workshop.run("explain", "runs/run", **env)
    assert failed.code != 0 and not _shown(failed, explained) and not _holding(workshop.directory), failed.err


def test_fetch_gives_its_token_to_the_hub_alone(workshop: Workshop) -> None:
    with serving(Hub({"config.json": b"{}", "a.safetensors": b"x" * 100_000})) as hub:
        env = {**_SECRETS, "HF_ENDPOINT": hub.endpoint, "HOME": str(workshop.directory / "home")}
        own = ("--from", hub.endpoint)
        fetched = workshop.run("fetch", "model", "o/m", *own, **env)
        script = workshop.run("fetch", "model", "o/m", *own, "--export-script", **env)
        hub.listing_statuses = [401] * 9
        refused = workshop.run("fetch", "model", "o/m", *own, "--to", "other", **env)
        assert set(hub.tokens) == {f"Bearer {_SECRETS['HF_TOKEN']}"}
    assert (fetched.code, script.code) == (0, 0) and refused.code != 0, fetched.err + script.err
    assert "a.safetensors" in script.out
    assert not _shown(fetched, script, refused) and not _holding(workshop.directory)


def test_key_that_is_typed_at_log_in_is_neither_shown_nor_kept_but_by_the_client(
    workshop: Workshop, clients: Path
) -> None:
    home = workshop.directory / "home"
    home.mkdir()
    path = f"{clients}/bin:{os.environ['PATH']}"
    controller, terminal = pty.openpty()
    with serving_wandb(WandbServer()) as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "ascendtune", "track", "login", "--host", server.endpoint],
            stdin=terminal, stdout=terminal, stderr=terminal, cwd=workshop.directory, start_new_session=True,
            env={**workshop.env, "HOME": str(home), "PATH": path, "PYTHONPATH": python_path()},
        )  # fmt: skip
        os.close(terminal)
        shown, deadline, is_typed = "", time.monotonic() + 120, False
        while time.monotonic() < deadline:
            if select.select([controller], [], [], 0.1)[0]:
                try:
                    shown += os.read(controller, 4096).decode(errors="replace")
                except OSError:
                    break
            words = Path(f"/proc/{process.pid}/cmdline")
            assert not words.exists() or KEY.encode() not in words.read_bytes()
            if not is_typed and "API key" in shown and shown.rstrip().endswith(":"):
                os.write(controller, f"{KEY}\n".encode())
                is_typed = True
        assert process.wait(60) == 0, shown
    os.close(controller)
    assert KEY not in shown
    files = [path for path in workshop.directory.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert [path.name for path in files] == [".netrc"], "where the client itself keeps it"
