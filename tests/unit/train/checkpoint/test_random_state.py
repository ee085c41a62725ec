"""A resumed run draws the same random numbers, on the host and on a device with its own generator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ascendtune.machine.torch_backend.find import find_device
from ascendtune.train.checkpoint.random_state import packed_random_state, read_random_state, restore_random_state
from ascendtune.train.strategy.base import Strategy


@pytest.fixture
def strategy(monkeypatch: pytest.MonkeyPatch) -> tuple[Strategy, torch.Generator]:
    """Of a device whose generator is not torch's own, as an accelerator's."""
    generator = torch.Generator().manual_seed(5)
    found = Strategy(find_device())
    kind = type(found.device)
    monkeypatch.setattr(kind, "random_state", lambda device: generator.get_state())
    monkeypatch.setattr(kind, "set_random_state", lambda device, state: generator.set_state(state))
    return found, generator


def test_both_generators_continue_where_they_were(tmp_path: Path, strategy: tuple[Strategy, torch.Generator]) -> None:
    of_run, generator = strategy
    (tmp_path / "rng").mkdir()
    with torch.random.fork_rng(devices=[]):
        (tmp_path / "rng/rank_0.safetensors").write_bytes(packed_random_state(of_run))
        expected = torch.rand(3), torch.rand(3, generator=generator)
        restore_random_state(read_random_state(tmp_path, of_run), of_run)
        found = torch.rand(3), torch.rand(3, generator=generator)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


def test_a_rank_that_the_checkpoint_does_not_know_keeps_its_own(
    tmp_path: Path, strategy: tuple[Strategy, torch.Generator]
) -> None:
    of_run, generator = strategy
    (tmp_path / "rng").mkdir()
    (tmp_path / "rng/rank_0.safetensors").write_bytes(packed_random_state(of_run))
    of_run.rank = 1
    before = torch.get_rng_state(), generator.get_state()
    restore_random_state(read_random_state(tmp_path, of_run), of_run)
    assert torch.equal(torch.get_rng_state(), before[0]) and torch.equal(generator.get_state(), before[1])
