"""Checkpoints of ZeRO stage 3 with state on a disk.

DeepSpeed's own do not go on where they stopped: when it reads one, it leaves out the optimiser's state (0.19,
load_checkpoint in runtime/engine.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ascendtune.core.errors import InputError
from ascendtune.core.files import ask_disk, sync_tree, write_json
from ascendtune.train.checkpoint.content import CheckpointContent, damaged

_WEIGHTS = "weights"


class SwappedState(CheckpointContent):
    """This rank's share of every group of weights, in fp32, with the optimiser's state for it: a file for each group.

    One group at a time is in memory, as in a step.

    Args:
        size_bytes: of all ranks' files; about.
    """

    form = "zero-disk"
    on_any_ranks = False

    def __init__(self, engine: Any, size_bytes: int, barrier: Callable[[], None]) -> None:
        self._zero = engine.optimizer
        self._size_bytes = size_bytes
        self._barrier = barrier

    def size_bytes(self) -> int:
        return self._size_bytes

    def write(self, directory: Path) -> Future[Any]:
        self._barrier()  # the directory is there
        own = _own(directory)
        own.mkdir()
        write_json(own / "scaler.json", self._scaler())
        for number, flat in enumerate(self._zero.fp32_partitioned_groups_flat):
            with self._in_memory(number):
                state = self._zero.optimizer.state[flat]
                tensors = {_WEIGHTS: flat, **{key: each for key, each in state.items() if torch.is_tensor(each)}}
                self._save({key: each.detach().contiguous() for key, each in tensors.items()}, own, number)
        sync_tree(own)
        self._barrier()
        written: Future[Any] = Future()
        written.set_result(None)
        return written

    def read(self, directory: Path) -> None:
        own = _own(directory)
        try:
            vars(self._zero.loss_scaler).update(json.loads((own / "scaler.json").read_text()))
        except (OSError, ValueError) as error:
            raise damaged(directory, error) from error
        self._zero.checkpoint_event_prologue()
        for number, flat in enumerate(self._zero.fp32_partitioned_groups_flat):
            stored = _load(_file(own, number), directory)
            weights = stored.pop(_WEIGHTS)
            if weights.numel() != self._zero.fp16_partitioned_groups_flat_numel[number]:
                raise InputError(
                    f"the checkpoint is of another model: group {number} has {weights.numel()} weights on this rank",
                    remedy="resume with the recipe that wrote it",
                    where=directory,
                )
            with self._in_memory(number, changes=True):
                flat.data.copy_(weights)
                self._zero.optimizer.state[flat] = stored
                self._zero._reassign_or_swap_out_partitioned_parameters(number)
        self._zero.checkpoint_event_epilogue()

    @contextmanager
    def _in_memory(self, number: int, *, changes: bool = False) -> Iterator[None]:
        """Group `number`, read from the disk if that is where it is, and written back if it changes."""
        swapped = self._zero._swappable_optimizer_subgroup(number)
        if swapped:
            self._zero._optimizer_states_and_gradient_swap_in(number)
        try:
            yield
        finally:
            if swapped and changes:
                self._zero._optimizer_states_and_gradient_swap_out(number)
            elif swapped:
                self._zero._release_swap_buffers(number)

    def _scaler(self) -> dict[str, Any]:
        return {key: each for key, each in vars(self._zero.loss_scaler).items() if isinstance(each, (int, float))}

    def _save(self, tensors: dict[str, torch.Tensor], own: Path, number: int) -> None:
        try:
            save_file(tensors, _file(own, number))
        except (OSError, SafetensorError):
            # The library's exceptions do not tell what the disk said.
            ask_disk(own)
            raise


def _own(directory: Path) -> Path:
    return directory / f"zero_rank_{dist.get_rank()}"


def _file(own: Path, group: int) -> Path:
    return own / f"group_{group}.safetensors"


def _load(file: Path, directory: Path) -> dict[str, torch.Tensor]:
    try:
        tensors: dict[str, torch.Tensor] = load_file(file)
    except (OSError, SafetensorError) as error:
        raise damaged(directory, error) from error
    if _WEIGHTS not in tensors:
        raise damaged(directory, f"{file.name} holds no weights")
    return tensors
