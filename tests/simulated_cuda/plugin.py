"""`pytest -p simulated_cuda.plugin`: each test runs with the simulated CUDA device; as the first plugin."""

from __future__ import annotations

from collections.abc import Generator
from importlib.util import find_spec

import pytest

from simulated_cuda.build import load

load()

from simulated_cuda import torch_cuda  # noqa: E402
from simulated_cuda.tensors import DEVICE  # noqa: E402

torch_cuda.install()
if find_spec("triton") is not None:
    from simulated_cuda import interpreter

    interpreter.install()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    with DEVICE:
        return (yield)
