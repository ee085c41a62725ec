"""Mapped weights: a model computes as if it were loaded in fp32, and its weights stay those of the files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from ascendtune.hub.safetensors_header import read_safetensors_header
from ascendtune.merge.mapped import MappedFiles, NotInFp32, in_fp32


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(2))
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.table(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: torch.Tensor = self.head(hidden)
        return logits


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Layered, MappedFiles]:
    torch.manual_seed(0)
    model = Layered().to(torch.bfloat16)
    weights = {name: each.detach().clone() for name, each in model.named_parameters()}
    save_file(weights, tmp_path / "model.safetensors")
    files = MappedFiles([read_safetensors_header(tmp_path / "model.safetensors")])
    for name, parameter in model.named_parameters():
        parameter.data = files.tensors[name]
    return model, files


def _double(_: str, stored: torch.Tensor, weight: torch.Tensor) -> bool:
    torch.mul(stored.float(), 2, out=weight)
    return True


IDS = torch.tensor([[0, 3, 6]])


def test_logits_are_those_of_the_model_in_fp32(saved: tuple[Layered, MappedFiles]) -> None:
    model, files = saved
    expected = Layered()
    expected.load_state_dict({name: each.float() for name, each in model.state_dict().items()})
    with torch.no_grad(), in_fp32(model, files):
        assert torch.equal(model(IDS), expected(IDS))
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.bfloat16
        assert parameter.data_ptr() == files.tensors[name].data_ptr()


def test_every_weight_that_computes_can_be_changed(saved: tuple[Layered, MappedFiles]) -> None:
    model, files = saved
    expected = Layered()
    expected.load_state_dict({name: 2 * each.float() for name, each in model.state_dict().items()})
    with torch.no_grad(), in_fp32(model, files, _double):
        assert torch.equal(model(IDS), expected(IDS))


def test_weights_of_a_quantised_model_are_refused(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(2, dtype=torch.float8_e4m3fn)}, tmp_path / "model.safetensors")
    with pytest.raises(NotInFp32, match="F8"):
        MappedFiles([read_safetensors_header(tmp_path / "model.safetensors")])


def test_table_stays_as_stored_while_its_rows_become_fp32(saved: tuple[Layered, MappedFiles]) -> None:
    model, files = saved
    seen: list[tuple[torch.dtype, torch.dtype]] = []
    model.table.register_forward_hook(lambda table, _, rows: seen.append((table.weight.dtype, rows.dtype)))
    with torch.no_grad(), in_fp32(model, files):
        model.layers[0].register_forward_pre_hook(lambda _, given: seen.append((torch.bfloat16, given[0].dtype)))
        model(IDS)
    assert seen == [(torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32)]


def test_weight_that_a_change_leaves_alone_is_the_stored_one(saved: tuple[Layered, MappedFiles]) -> None:
    model, files = saved
    expected = Layered()
    expected.load_state_dict({name: each.float() for name, each in model.state_dict().items()})
    with torch.no_grad(), in_fp32(model, files, lambda *_: False):
        assert torch.equal(model(IDS), expected(IDS))
