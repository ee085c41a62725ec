"""A run that goes on draws what it would have drawn: on the host and on a device with a generator of its own."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch

from ascendtune.core.errors import MachineError
from ascendtune.core.files import digest_of_file
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.train.checkpoint.checkpointer import read_random_state, restore_random_state, save_random_state
from ascendtune.train.checkpoint.content import NamedTensors
from ascendtune.train.checkpoint.digests import DigestedFile, take_digests
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


def test_both_generators_go_on_where_they_were(tmp_path: Path, strategy: tuple[Strategy, torch.Generator]) -> None:
    of_run, generator = strategy
    (tmp_path / "rng").mkdir()
    with torch.random.fork_rng(devices=[]):
        save_random_state(tmp_path, of_run)
        expected = torch.rand(3), torch.rand(3, generator=generator)
        restore_random_state(read_random_state(tmp_path, of_run), of_run)
        found = torch.rand(3), torch.rand(3, generator=generator)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


def test_a_rank_that_the_checkpoint_does_not_know_keeps_its_own(
    tmp_path: Path, strategy: tuple[Strategy, torch.Generator]
) -> None:
    of_run, generator = strategy
    (tmp_path / "rng").mkdir()
    save_random_state(tmp_path, of_run)
    of_run.rank = 1
    before = torch.get_rng_state(), generator.get_state()
    restore_random_state(read_random_state(tmp_path, of_run), of_run)
    assert torch.equal(torch.get_rng_state(), before[0]) and torch.equal(generator.get_state(), before[1])


@pytest.mark.parametrize("content", [None, "", "[]", "{"])
def test_index_that_cannot_be_read_is_told_with_its_directory(content: str | None, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    tensors = NamedTensors(model, torch.optim.SGD(model.parameters()), alone=True)
    if content is not None:
        (tmp_path / "tensors.json").write_text(content)
    with pytest.raises(MachineError) as caught:
        tensors.read(tmp_path)
    assert (caught.value.code, caught.value.where) == ("checkpoint-damaged", str(tmp_path))


def written(content: NamedTensors, directory: Path) -> dict[str, torch.Tensor]:
    """What a checkpoint of `content` holds, read back by DCP alone."""
    import torch.distributed.checkpoint as dcp

    directory.mkdir()
    content.write(directory).result()
    found = {name: torch.zeros_like(each) for name, each in content._tensors().items()}
    dcp.load(found, storage_reader=dcp.FileSystemReader(directory), no_dist=True)
    return found


def trained_model() -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
    model = torch.nn.Linear(300, 40)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 300)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_digests_made_while_writing_are_those_of_the_files(tmp_path: Path) -> None:
    content = NamedTensors(*trained_model(), alone=True)
    written(content, tmp_path / "step")
    names = {each.name for each in (tmp_path / "step").glob("*.distcp")}
    digests = take_digests(tmp_path / "step")
    assert names and digests == {name: digest_of_file(tmp_path / "step" / name) for name in names}
    assert not list((tmp_path / "step").glob("*.sha256"))


def test_staging_is_used_again_and_holds_the_newest_values(tmp_path: Path) -> None:
    model, optimizer = trained_model()
    content = NamedTensors(model, optimizer, alone=True)
    first = written(content, tmp_path / "first")
    held = dict(content._staging._state_dict_stager._cached_storage_mapping)
    optimizer.step()
    second = written(content, tmp_path / "second")
    assert dict(content._staging._state_dict_stager._cached_storage_mapping) == held
    for name, tensor in content._tensors().items():
        assert torch.equal(second[name], tensor)
    assert not torch.equal(first["model.weight"], second["model.weight"])


def test_checkpoints_are_written_by_a_torch_that_cannot_reuse_staging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("torch.distributed.checkpoint.staging.DefaultStager")
    content = NamedTensors(*trained_model(), alone=True)
    found = written(content, tmp_path / "step")
    assert all(torch.equal(found[name], tensor) for name, tensor in content._tensors().items())


def test_a_digested_file_cannot_be_written_out_of_order(tmp_path: Path) -> None:
    with DigestedFile(io.FileIO(tmp_path / "x.distcp", "wb")) as file:
        file.write(b"abc")
        with pytest.raises(io.UnsupportedOperation):
            file.seek(0)
