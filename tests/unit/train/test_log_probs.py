from __future__ import annotations

import pytest
import torch
from torch import nn

from ascendtune.train.objective.head import PLAIN, HeadForm
from ascendtune.train.objective.log_probs import linear_log_probs


class Wrapped(nn.Module):
    """A head that is no plain nn.Linear, as an adapter makes it."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.inner(hidden)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("positions", [0, 1, 23])
@pytest.mark.parametrize("form", [PLAIN, HeadForm(3), HeadForm(3, 1.5)], ids=["plain", "scaled", "capped"])
def test_values_and_gradients_are_those_of_log_softmax(
    monkeypatch: pytest.MonkeyPatch, bias: bool, wrapped: bool, positions: int, form: HeadForm
) -> None:
    monkeypatch.setattr("ascendtune.train.objective.logit_chunks.softmax_rows", lambda vocabulary: 4)
    monkeypatch.setattr(
        "ascendtune.train.objective.logit_chunks.product_rows", lambda vocabulary, hidden, is_trained: 7
    )
    torch.manual_seed(3)
    head = nn.Linear(16, 50, bias=bias).double()
    hidden = torch.randn(positions, 16, dtype=torch.float64)
    targets, weights = torch.randint(0, 50, (positions,)), torch.randn(positions, dtype=torch.float64)
    results = []
    for plain in (True, False):
        head.zero_grad()
        given = hidden.clone().requires_grad_()
        if plain:
            logits = form.scale * head(given)
            if form.cap is not None:
                logits = form.cap * torch.tanh(logits / form.cap)
            found = logits.log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
        else:
            found = linear_log_probs(given, Wrapped(head) if wrapped else head, targets, form)
        (found * weights).sum().backward()
        results.append([found.detach(), given.grad, *(each.grad for each in head.parameters())])
    for expected, found in zip(*results, strict=True):
        # Logits are brought to fp32, whatever they came in.
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_under_autocast_gradients_reach_fp32_weights() -> None:
    head, hidden = nn.Linear(16, 50), torch.randn(9, 16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = linear_log_probs(hidden, head, torch.arange(9))
    found.sum().backward()
    assert found.dtype == torch.float32
    assert head.weight.grad is not None and head.weight.grad.dtype == torch.float32
    assert hidden.grad is not None and hidden.grad.dtype == torch.float32
