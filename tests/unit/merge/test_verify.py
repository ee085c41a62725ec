"""What the differences of a merge's logits are relative to."""

from __future__ import annotations

import pytest
import torch

from ascendtune.merge.verify import _scale


def test_score_whose_terms_cancel_out_is_measured_by_the_score_of_the_other_model() -> None:
    assert _scale(torch.tensor([[8.0]]), torch.tensor([[0.1]])) == 8
    assert _scale(torch.tensor([[0.1]]), torch.tensor([[-8.0]])) == 8


def test_logits_are_measured_by_their_root_mean_square() -> None:
    base, adapted = torch.tensor([[[3.0, -4.0]]]), torch.tensor([[[6.0, -8.0]]])
    assert _scale(base, adapted) == pytest.approx(50**0.5)
