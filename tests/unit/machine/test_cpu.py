"""The CPU as a device."""

from __future__ import annotations

import os

import pytest

from ascendtune.machine.torch_backend.cpu import CpuDevice

CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """What a test or `activate` sets is gone afterwards."""
    for name in CAPACITIES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def test_caches_of_past_shapes_are_bounded(environment: pytest.MonkeyPatch) -> None:
    CpuDevice(0).activate()
    assert [int(os.environ[name]) for name in CAPACITIES] == [64, 64]


def test_bounds_that_the_user_set_are_kept(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("LRU_CACHE_CAPACITY", "512")
    CpuDevice(0).activate()
    assert os.environ["LRU_CACHE_CAPACITY"] == "512"
