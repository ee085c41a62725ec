"""Fixtures of several tests: the shared material, and a model small enough to be created on demand."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

import unsynced
from preloaded import Preloaded
from python_path import python_path
from tiny_model import write_tiny_model

# Small tensors gain nothing from threads, and two test workers share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Otherwise each child would compile what it imports of ascendtune.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
unsynced.install()

# The same examples in every run: a search may find something new, but not in the middle of somebody's commit.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")

_ROOT = Path(__file__).resolve().parents[1]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of collected tests and their modules stay to the end: no garbage collection has to look at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The read-only material beside the repository (data sets, fixtures)."""
    path = _ROOT.parent / "shared"
    if not path.is_dir():
        pytest.skip(f"no shared material at {path}")
    return path


@pytest.fixture(autouse=True)
def _own_cache_and_registry(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache and job registry, nor do the processes it starts."""
    home = tmp_path_factory.getbasetemp() / "xdg"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the real clients of ModelScope and wandb, which this process and its children can import."""
    path = _ROOT / ".venv-clients/packages"
    if not path.is_dir():
        pytest.skip("the clients of hubs and trackers are not installed: run make clients-env")
    monkeypatch.setattr(sys, "path", [*sys.path, str(path)])
    monkeypatch.setenv("PYTHONPATH", python_path(path))
    return path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 (hidden 64, 2 layers, 512 tokens) with a ChatML tokenizer, in Hugging Face format. Read-only."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="session")
def _libraries() -> Iterator[Preloaded]:
    libraries = Preloaded()
    yield libraries
    libraries.end()


@pytest.fixture(scope="module")
def preloaded(_libraries: Preloaded) -> Iterator[None]:
    """`pytestmark = pytest.mark.usefixtures("preloaded")`: the module's children need not import torch."""
    with _libraries.children():
        yield
