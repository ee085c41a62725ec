"""Mapped weights: a model computes as if it were loaded in fp32, and its weights stay those of the files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from torch import nn

from ascendtune.hub.safetensors_header import read_safetensors_header
from ascendtune.merge.mapped_model import MappedFiles, NotInFp32, in_fp32


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


class Doubled:
    """Weights whose names hold `part`, doubled."""

    def __init__(self, part: str = "") -> None:
        self._part = part

    def concern(self, name: str) -> bool:
        return self._part in name

    def put(self, name: str, stored: torch.Tensor, target: torch.Tensor) -> None:
        assert self.concern(name)
        torch.mul(stored.float(), 2, out=target)


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


def test_adapter_that_is_added_to_a_matrix_itself_is_computed(saved: tuple[Layered, MappedFiles]) -> None:
    model, files = saved
    exact = Layered()
    exact.load_state_dict({name: each.float() for name, each in model.state_dict().items()})
    config = LoraConfig(r=2, target_parameters=["layers.0.0.weight", "layers.1.0.weight"])
    expected, tuned = get_peft_model(exact, config), get_peft_model(model, config)
    for of_expected, own in zip(expected.parameters(), tuned.parameters(), strict=True):
        if own.requires_grad:
            own.data = of_expected.data.normal_()
    with torch.no_grad(), in_fp32(tuned, files):
        assert torch.equal(tuned(IDS), expected(IDS))


def test_every_weight_that_computes_can_be_changed(saved: tuple[Layered, MappedFiles]) -> None:
    model, files = saved
    expected = Layered()
    expected.load_state_dict({name: 2 * each.float() for name, each in model.state_dict().items()})
    with torch.no_grad(), in_fp32(model, files, Doubled()):
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


@pytest.mark.parametrize("in_chunks", [True, False])
@pytest.mark.parametrize("part", ["layers.0.0.weight", "layers.1.1", "table", "nothing"])
def test_weights_that_are_not_changed_are_the_stored_ones(
    saved: tuple[Layered, MappedFiles], part: str, in_chunks: bool
) -> None:
    model, files = saved
    expected = Layered()
    weights = {name: (2 if part in name else 1) * each.float() for name, each in model.named_parameters()}
    expected.load_state_dict(weights | {"head.weight": weights["table.weight"]})
    with torch.no_grad(), in_fp32(model, files, Doubled(part), in_chunks=in_chunks):
        assert torch.equal(model(IDS), expected(IDS))


def test_large_matrix_is_multiplied_in_chunks(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(700, 3001), nn.Linear(3001, 401, bias=False)).to(torch.bfloat16)
    expected = nn.Sequential(nn.Linear(700, 3001), nn.Linear(3001, 401, bias=False))
    expected.load_state_dict({name: each.float() for name, each in model.state_dict().items()})
    save_file({name: each.detach() for name, each in model.named_parameters()}, tmp_path / "model.safetensors")
    files = MappedFiles([read_safetensors_header(tmp_path / "model.safetensors")])
    inputs = torch.randn(2, 3, 700)
    with torch.no_grad(), in_fp32(model, files):
        assert torch.allclose(model(inputs), expected(inputs), rtol=1e-6, atol=1e-6)


def test_matrix_that_is_used_outside_its_module_is_seen(saved: tuple[Layered, MappedFiles]) -> None:
    model, files = saved
    linear = model.layers[0][0]
    assert isinstance(linear, nn.Linear)
    with torch.no_grad(), in_fp32(model, files):
        assert linear.weight.dtype == torch.float32
        assert linear.weight.isnan().all()
    assert torch.equal(linear.weight, files.tensors["layers.0.0.weight"])
