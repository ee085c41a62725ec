"""Live bytes against sizes that are known."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ascendtune.train.plan import live_bytes
from ascendtune.train.plan.live_bytes import LiveBytes


def test_counts_a_storage_once_and_until_its_last_reference() -> None:
    with FakeTensorMode(), LiveBytes() as live:
        first = torch.empty(1000, dtype=torch.float32)
        view = first[10:].view(2, 495)
        assert live.now().total() == 4000
        second = first * 2
        del first
        assert live.now().total() == 8000
        del view
        assert live.now().total() == 4000
        del second
    assert live.now().total() == 0
    assert live.peaks["model"].total() == 8000


def test_peaks_belong_to_their_moment_and_category() -> None:
    with FakeTensorMode(), LiveBytes() as live:
        weights = torch.empty(100, dtype=torch.float32)
        live.enter("forward", "activations")
        activations = weights * 2
        live.enter("backward", "gradients")
        del activations
        gradient = torch.empty_like(weights)
        live.add(gradient, "kept gradients")
        live.enter("end")
    assert dict(live.peaks["forward"]) == {"model": 400, "activations": 400}
    # The moment begins with what is live.
    assert live.peaks["backward"].total() == 800
    assert +live.peaks["end"] == {"model": 400, "kept gradients": 400}


def test_saved_tensors_live_until_backward() -> None:
    with FakeTensorMode(), LiveBytes() as live:
        weight = torch.empty((64, 64), requires_grad=True)
        hidden = torch.empty((8, 64), requires_grad=True)
        output = (hidden @ weight).exp()
        # The product is gone, the result of exp is kept for its gradient.
        held = live.now().total()
        assert held == 4 * (64 * 64 + 8 * 64 + 8 * 64)
        output.sum().backward()
        del output
    assert live.now().total() == 4 * 2 * (64 * 64 + 8 * 64)


def test_follows_a_storage_that_is_emptied() -> None:
    with FakeTensorMode(), LiveBytes() as live, live.follow_resizing():
        tensor = torch.empty(256, dtype=torch.float32)
        tensor.untyped_storage().resize_(0)
        assert live.now().total() == 0
        tensor.untyped_storage().resize_(1024)
        assert live.now().total() == 1024


def test_logsumexp_holds_a_copy_of_its_input() -> None:
    with FakeTensorMode(), LiveBytes() as live:
        logits = torch.empty((4, 1000))
        live.enter("loss", "loss")
        torch.logsumexp(logits, dim=-1)
    assert live.peaks["loss"].total() == pytest.approx(2 * 16000, abs=64)


def test_a_torch_without_grouped_products_can_be_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.6 and 2.7 lack the operator."""
    names = [each for each in dir(torch.ops.aten) if each != "_grouped_mm"]
    aten = SimpleNamespace(**{each: getattr(torch.ops.aten, each) for each in names if not each.startswith("__")})
    monkeypatch.setattr(torch.ops, "aten", aten)
    spec = importlib.util.spec_from_file_location("older_live_bytes", live_bytes.__file__)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up.
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    with FakeTensorMode(), module.LiveBytes() as live:
        kept = torch.empty(1000, dtype=torch.float32) * 2
        assert live.now().total() == kept.nbytes
