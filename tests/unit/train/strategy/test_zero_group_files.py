"""The content of ZeRO's files of state on a disk, without DeepSpeed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ascendtune.core.errors import MachineError
from ascendtune.core.files import digest_of_file
from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.train.checkpoint import content
from ascendtune.train.strategy import deepspeed_disk
from ascendtune.train.strategy.base import Strategy
from ascendtune.train.strategy.deepspeed import EngineState


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda file: None, "No such file"),
        (lambda file: file.write_bytes(b"abc"), "header"),
        (lambda file: file.write_bytes(os.urandom(300)), "header"),
        (lambda file: file.mkdir(), "No such device"),
        (lambda file: save_file({"exp_avg": torch.zeros(2)}, file), "group_0.safetensors contains no weights"),
    ],
    ids=["absent", "short", "random", "directory", "without weights"],
)
def test_damaged_group_is_a_damaged_checkpoint(tmp_path: Path, damage: Callable[[Path], object], why: str) -> None:
    file = tmp_path / "group_0.safetensors"
    damage(file)
    with pytest.raises(MachineError) as refused:
        deepspeed_disk._load_group(file, tmp_path)
    assert refused.value.code == "checkpoint-damaged"
    assert why in refused.value.what and refused.value.where == str(tmp_path)


def test_fault_of_the_program_is_not_taken_for_a_damaged_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> None:
        raise TypeError

    monkeypatch.setattr(deepspeed_disk, "load_file", fail)
    with pytest.raises(TypeError):
        deepspeed_disk._load_group(tmp_path, tmp_path)


class Zero:
    """ZeRO's optimizer as `SwappedState` uses it: two groups of weights, the second on a disk between its uses."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.fp32_partitioned_groups_flat = [torch.nn.Parameter(torch.randn(length)) for length in (5, 3)]
        self.fp16_partitioned_groups_flat_numel = [5, 3]
        self.loss_scaler = SimpleNamespace(cur_scale=2.0**seed, name="dynamic")
        self.optimizer = torch.optim.AdamW(self.fp32_partitioned_groups_flat)
        for flat in self.fp32_partitioned_groups_flat:
            flat.grad = torch.randn_like(flat)
        self.optimizer.step()
        self._optimizer_states_and_gradient_swap_out(1)

    def _swappable_optimizer_subgroup(self, number: int) -> bool:
        return number == 1

    def _optimizer_states_and_gradient_swap_out(self, number: int) -> None:
        flat = self.fp32_partitioned_groups_flat[number]
        self.on_disk = flat.detach().clone(), self.optimizer.state[flat]
        self._release_swap_buffers(number)

    def _release_swap_buffers(self, number: int) -> None:
        flat = self.fp32_partitioned_groups_flat[number]
        flat.data.zero_()
        self.optimizer.state[flat] = {}

    def _optimizer_states_and_gradient_swap_in(self, number: int) -> None:
        flat = self.fp32_partitioned_groups_flat[number]
        weights, self.optimizer.state[flat] = self.on_disk
        flat.data.copy_(weights)

    def _reassign_or_swap_out_partitioned_parameters(self, number: int) -> None:
        assert self.fp32_partitioned_groups_flat[number].any(), "weights of the model are made of these"

    def checkpoint_event_prologue(self) -> None: ...

    def checkpoint_event_epilogue(self) -> None: ...

    def everything(self) -> list[torch.Tensor]:
        first, _ = self.fp32_partitioned_groups_flat
        groups = ((first.detach(), self.optimizer.state[first]), self.on_disk)
        return [each for weights, state in groups for each in (weights, *(state[key] for key in sorted(state)))]


def test_weights_and_moments_of_groups_on_disk_are_those_that_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deepspeed_disk.dist, "get_rank", lambda: 1)
    zero, other = Zero(1), Zero(2)

    def state_of(optimizer: Any) -> deepspeed_disk.SwappedState:
        return deepspeed_disk.SwappedState(SimpleNamespace(optimizer=optimizer), 0, Strategy(CpuDevice()))

    expected = zero.everything()
    digests = state_of(zero).write(tmp_path, {}).result()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert digests == {str(path.relative_to(tmp_path)): digest_of_file(path) for path in written}
    assert not zero.fp32_partitioned_groups_flat[1].any(), "the second group is on the disk again"
    state_of(other).read(tmp_path)
    assert len(expected) == 8
    assert all(torch.equal(one, two) for one, two in zip(other.everything(), expected, strict=True))
    assert other.loss_scaler.cur_scale == 2.0


def test_each_rank_makes_the_digests_of_its_own_files_and_flushes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main rank alone would read for minutes what all have written, while the others wait for it in a step."""
    names = ["mp_rank_00_model_states.pt", *(f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1))]
    flushed = list[Path]()
    monkeypatch.setattr(content, "sync_path", flushed.append)

    class Engine:
        def zero_optimization_stage(self) -> int:
            return 2

        def save_checkpoint(self, directory: str, tag: str, **options: Any) -> None:
            (Path(directory) / tag).mkdir(exist_ok=True)
            for name in names:
                (Path(directory) / tag / name).write_text(name)
            (Path(directory) / "zero_to_fp32.py").write_text("")

    (tmp_path / "rng").mkdir()
    digests = dict[str, str]()
    for rank in (1, 0):
        strategy = Strategy(CpuDevice())
        strategy.rank = rank
        flushed.clear()
        random = {f"rng/rank_{rank}.safetensors": b"random"}
        digests |= (own := EngineState(Engine(), 0, strategy).write(tmp_path, random).result())
        assert len(own) == 4 - 2 * rank
        assert own.keys() - random.keys() == {str(path.relative_to(tmp_path)) for path in flushed if path.is_file()}
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert digests == {str(path.relative_to(tmp_path)): digest_of_file(path) for path in written}
