"""Checkpoints are complete or absent, and damaged ones are found."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.files import digest_of_file
from ascendtune.core.rundir import RunDir
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.train.checkpoint.checkpointer import Checkpointer
from ascendtune.train.checkpoint.content import NamedTensors, _of_all_ranks, _Report
from ascendtune.train.strategy.base import Strategy


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{", b"\x02\0\0\0\0\0\0\0{}"])
def test_checkpoint_without_readable_tensors_is_damaged(content: bytes | None, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    tensors = NamedTensors(model, torch.optim.SGD(model.parameters()), find_device())
    (tmp_path / "state.json").write_text('{"ranks": 1}')
    if content is not None:
        (tmp_path / "tensors_rank_0.safetensors").write_bytes(content)
    with pytest.raises((MachineError, InputError)) as caught:
        tensors.read(tmp_path)
    # A file that is whole and empty belongs to another model.
    expected = "checkpoint-model-differs" if content and len(content) == 10 else "checkpoint-damaged"
    assert (caught.value.code, caught.value.where) == (expected, str(tmp_path))


@pytest.mark.parametrize("state", ["{", "[]", "{}", '{"ranks": "x"}', '{"ranks": 1000000000}'])
def test_checkpoint_with_another_number_of_ranks_is_damaged(state: str, tmp_path: Path) -> None:
    content = NamedTensors(*trained_model(), find_device())
    written(content, tmp_path / "step")
    (tmp_path / "step" / "state.json").write_text(state)
    with pytest.raises(MachineError) as caught:
        content.read(tmp_path / "step")
    assert caught.value.code == "checkpoint-damaged"


def written(content: NamedTensors, directory: Path) -> dict[str, str]:
    """The digests of a checkpoint of `content`."""
    directory.mkdir()
    return content.write(directory, {"state.json": b'{"ranks": 1}'}).result()


def trained_model() -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
    model = torch.nn.Linear(300, 40)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 300)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_digests_made_while_writing_are_those_of_the_files(tmp_path: Path) -> None:
    digests = written(NamedTensors(*trained_model(), find_device()), tmp_path / "step")
    assert digests == {name: digest_of_file(tmp_path / "step" / name) for name in digests}
    assert digests.keys() == {"state.json", "tensors_rank_0.safetensors"}


def test_read_puts_back_weights_and_moments(tmp_path: Path) -> None:
    model, optimizer = trained_model()
    content = NamedTensors(model, optimizer, find_device())
    written(content, tmp_path / "step")
    before = {name: tensor.clone() for name, tensor in content._tensors().items()}
    model(torch.ones(2, 300)).square().sum().backward()
    optimizer.step()
    content.read(tmp_path / "step")
    assert before.keys() == content._tensors().keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in content._tensors().items())


def report(**changes: Any) -> str:
    return json.dumps(_Report(**{"names": ["a"], "digests": {}, **changes}))


@pytest.mark.parametrize(
    ("other", "number"),
    [
        ({"failure": "No space left on device", "errno": errno.ENOSPC}, errno.ENOSPC),
        ({"failure": "ValueError: x"}, None),
        ({"names": ["b"]}, None),
    ],
)
def test_failure_of_another_rank_is_raised_on_this_one(
    monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], number: int | None
) -> None:
    def gather(texts: list[str], own: str, group: object) -> None:
        texts[:] = [own, report(digests={"y": "2"}, **other)]

    monkeypatch.setattr("torch.distributed.get_world_size", lambda group: 2)
    monkeypatch.setattr("torch.distributed.all_gather_object", gather)
    group: Any = None
    with pytest.raises((OSError, RuntimeError), match="rank 1") as caught:
        _of_all_ranks(_Report(["a"], {"x": "1"}), group)
    assert getattr(caught.value, "errno", None) == number
    other.clear()
    assert _of_all_ranks(_Report(["a"], {"x": "1"}), group) == {"x": "1", "y": "2"}


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_main_rank_removes_a_checkpoint_that_could_not_be_written(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others may have lost a rank after the main rank had its report: it renames the directory meanwhile."""
    run, strategy = RunDir(tmp_path / "run"), Strategy(find_device())
    run.create("", {}, {})
    strategy.rank = rank
    content = NamedTensors(*trained_model(), find_device())
    monkeypatch.setattr(content, "_write", lambda directory, files, names: digest_of_file(directory / "missing"))
    checkpointer = Checkpointer(run, strategy, content, keep=1)
    checkpointer.save(3, {})
    with pytest.raises(MachineError):
        checkpointer.wait()
    assert (run.checkpoints / ".step_3.writing").is_dir() == (rank == 1)


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_main_rank_removes_a_checkpoint_that_could_not_be_begun(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, strategy = RunDir(tmp_path / "run"), Strategy(find_device())
    run.create("", {}, {})
    strategy.rank = rank
    content = NamedTensors(*trained_model(), find_device())

    def fail(directory: Path, files: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(content, "write", fail)
    with pytest.raises(MachineError):
        Checkpointer(run, strategy, content, keep=1).save(3, {})
    assert (run.checkpoints / ".step_3.writing").is_dir() == (rank == 1)


def test_checkpoint_that_a_run_resumed_from_is_not_written_again(tmp_path: Path) -> None:
    """A stop before an evaluation saves the step, and so would the evaluation after the resume. To replace a directory
    takes two renames, and a kill between them would leave no checkpoint."""
    of_device, content = Strategy(find_device()), NamedTensors(*trained_model(), find_device())
    for each in (run := RunDir(tmp_path / "run"), other := RunDir(tmp_path / "other")):
        each.create("", {}, {})
    first = Checkpointer(run, of_device, content, keep=1)
    first.save(3, {})
    first.wait()
    kept = run.checkpoint(3).stat().st_ino
    for directory, is_kept in ((other, False), (run, True)):
        resumed = Checkpointer(directory, of_device, content, keep=1)
        assert resumed.load(run.checkpoint(3))["step"] == 3
        resumed.save(3, {})
        resumed.wait()
        assert (directory.checkpoint(3).stat().st_ino == kept) == is_kept
        resumed.save(4, {})
        resumed.wait()
        assert directory.checkpoint_steps() == [4]


def test_checkpoint_that_a_run_beside_resumes_from_is_kept(tmp_path: Path) -> None:
    run, beside = RunDir(tmp_path / "run"), RunDir(tmp_path / "beside")
    run.create("", {}, {})
    beside.create("", {}, {"resume_from": str(run.checkpoint(2))})
    checkpointer = Checkpointer(run, Strategy(find_device()), NamedTensors(*trained_model(), find_device()), keep=1)

    def steps_after(step: int) -> list[int]:
        checkpointer.save(step, {})
        checkpointer.wait()
        return run.checkpoint_steps()

    assert [steps_after(step) for step in (1, 2, 3, 4)] == [[1], [2], [2, 3], [2, 4]]
    # From now on that run resumes from its own.
    beside.checkpoint(5).mkdir()
    assert steps_after(5) == [5]
