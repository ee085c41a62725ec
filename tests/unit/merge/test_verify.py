"""The logits of a merge, and what their differences are relative to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from ascendtune.hub.safetensors_header import read_safetensors_header
from ascendtune.merge.mapped_model import MappedFiles
from ascendtune.merge.verify import _logits, _scale


class ReadsAMatrix(nn.Module):
    """A layer that multiplies by the numbers of a linear module without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.to(self.inner.weight.dtype) @ self.inner.weight.T


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 8)
        self.layers = nn.ModuleList([ReadsAMatrix()])
        self.head = nn.Linear(8, 9, bias=False)
        self.head.weight = self.table.weight

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        return SimpleNamespace(logits=self.head(self.layers[0](self.table(input_ids))))


def test_score_whose_terms_cancel_out_is_measured_by_the_score_of_the_other_model() -> None:
    assert _scale(torch.tensor([[8.0]]), torch.tensor([[0.1]])) == 8
    assert _scale(torch.tensor([[0.1]]), torch.tensor([[-8.0]])) == 8


def test_logits_are_measured_by_their_root_mean_square() -> None:
    base, adapted = torch.tensor([[[3.0, -4.0]]]), torch.tensor([[[6.0, -8.0]]])
    assert _scale(base, adapted) == pytest.approx(50**0.5)


@torch.no_grad()
def test_model_that_reads_a_matrix_itself_computes_with_it_in_fp32(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model()
    save_file({name: each.detach().bfloat16() for name, each in model.named_parameters()}, tmp_path / "m.safetensors")
    files = MappedFiles([read_safetensors_header(tmp_path / "m.safetensors")])
    for name, parameter in model.named_parameters():
        parameter.data = files.tensors[name].float()
    ids = torch.tensor([[1, 5, 2]])
    expected = model(ids, use_cache=False).logits
    for name, parameter in model.named_parameters():
        parameter.data = files.tensors[name]
    assert torch.equal(_logits(model, files, ids), expected)
    assert model.head.weight is model.table.weight
