"""State that ZeRO offloads to a disk: its requirements, directories, buffers and checkpoints.

DeepSpeed cannot resume such a run from its own checkpoints: when it reads one, it ignores the optimizer's state (0.19,
load_checkpoint in runtime/engine.py).
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from ascendtune.core.errors import InputError, MachineError, RecipeError, translated_disk_errors
from ascendtune.core.files import probe_disk
from ascendtune.core.locks import file_lock
from ascendtune.core.log import say
from ascendtune.core.records import write_json
from ascendtune.recipe.deepspeed_config import Config, parts_on_disk
from ascendtune.train.checkpoint.content import (
    CheckpointContent,
    damaged_checkpoint,
    digests_of_ranks,
    write_files,
)
from ascendtune.train.strategy.base import Strategy

_PREFIX = "ascendtune-swap-"
_WEIGHTS = "weights"


def require_disk(config: Config, *, compute: str) -> None:
    """Raise if DeepSpeed cannot offload to a disk as in `config`.

    Args:
        compute: fp32, bf16 or fp16.

    Raises:
        MachineError: its file operator cannot be built on this host.
        RecipeError: offloading would round the weights.
    """
    from deepspeed.accelerator import get_accelerator
    from deepspeed.ops.op_builder import AsyncIOBuilder

    # 0.19, Init._set_dtype in runtime/zero/partition_parameters.py: bf16 if there is no fp16, whatever dtype was
    # passed.
    rounds = compute == "fp32" and not get_accelerator().is_fp16_supported()
    if rounds and "offload_param" in parts_on_disk(config):
        raise RecipeError(
            "on a device without fp16, DeepSpeed writes weights to disk in bf16, but the weights of this run are fp32",
            code="offload-rounds-weights",
            remedy="set precision: bf16, or parallel.deepspeed.offload_param: cpu",
        )
    operator = AsyncIOBuilder()
    if not operator.is_compatible():
        raise MachineError(
            "keeping state on a disk needs the headers of libaio, which are not installed",
            code="libaio-missing",
            remedy="apt-get install libaio-dev, or dnf install libaio-devel; or offload to cpu",
        )
    if not Path(os.environ["TORCH_EXTENSIONS_DIR"], operator.name).exists():
        say("DeepSpeed builds its file operator; this takes minutes, the first time")


def fit_buffers(config: Config, objective: nn.Module, *, ranks: int) -> None:
    """Set the size of buffers for weights from a disk to the largest shard of a parameter.

    DeepSpeed's default, 100 million elements, is too small for some embeddings, and gigabytes too large for most
    models.
    """
    if "offload_param" in parts_on_disk(config):
        largest = max(math.ceil(each.numel() / ranks) for each in objective.parameters())
        config["zero_optimization"]["offload_param"].setdefault("buffer_size", largest)


@contextmanager
def swap_directories(config: Config) -> Iterator[None]:
    """Create directories for this process below those in `config`, and remove them after the context.

    Directories of killed processes are removed, too: a running process holds a lock on its own.

    Raises:
        MachineError: a directory does not exist, or is not writable.
    """
    with ExitStack() as stack:
        for part in parts_on_disk(config):
            section = config["zero_optimization"][part]
            section["nvme_path"] = str(_own_directory(Path(section["nvme_path"]), stack))
        yield


def _own_directory(parent: Path, stack: ExitStack) -> Path:
    if not parent.is_dir():
        raise MachineError(
            "parallel.deepspeed.nvme_path is not a directory on this host",
            code="path-missing",
            remedy="create it on every host, on a fast local disk",
            where=parent,
        )
    lock = parent / f".ascendtune-{os.getuid()}.lock"
    with translated_disk_errors(parent, "creating a directory to swap to"), file_lock(lock, wait=True):
        _sweep(parent)
        own = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        stack.callback(shutil.rmtree, own, ignore_errors=True)
        stack.enter_context(file_lock(own / "lock", wait=True))
    return own


def _sweep(parent: Path) -> None:
    for other in parent.glob(f"{_PREFIX}*"):
        if other.stat().st_uid == os.getuid():
            with file_lock(other / "lock", wait=False) as is_free:
                if is_free:
                    shutil.rmtree(other, ignore_errors=True)


class SwappedState(CheckpointContent):
    """This rank's shard of every group of weights, in fp32, with its optimizer state: one file per group.

    Only one group at a time is in memory, as in a step.

    Args:
        size_bytes: approximate size of all ranks' files.
    """

    form = "zero-disk"
    supports_any_rank_count = False

    def __init__(self, engine: Any, size_bytes: int, strategy: Strategy) -> None:
        self._zero = engine.optimizer
        self._size_bytes = size_bytes
        self._strategy = strategy

    def size_bytes(self) -> int:
        return self._size_bytes

    def write(self, directory: Path, files: Mapping[str, bytes]) -> Future[dict[str, str]]:
        self._strategy.barrier()  # the directory exists
        digests = write_files(directory, files)
        own = _share_of_rank(directory)
        own.mkdir()
        write_json(own / "scaler.json", self._scaler())
        for number, flat in enumerate(self._zero.fp32_partitioned_groups_flat):
            with self._in_memory(number):
                state = self._zero.optimizer.state[flat]
                tensors = {_WEIGHTS: flat, **{key: each for key, each in state.items() if torch.is_tensor(each)}}
                self._save_group({key: each.detach().contiguous() for key, each in tensors.items()}, own, number)
        written: Future[dict[str, str]] = Future()
        written.set_result(digests_of_ranks(directory, digests, own.iterdir(), self._strategy.gather))
        return written

    def read(self, directory: Path) -> None:
        own = _share_of_rank(directory)
        try:
            vars(self._zero.loss_scaler).update(json.loads((own / "scaler.json").read_text()))
        except (OSError, ValueError) as error:
            raise damaged_checkpoint(directory, error) from error
        # Weights stay sharded, as in `EngineState`.
        self._zero.checkpoint_event_prologue()
        for number, flat in enumerate(self._zero.fp32_partitioned_groups_flat):
            stored = _load_group(_group_file(own, number), directory)
            weights = stored.pop(_WEIGHTS)
            if weights.numel() != self._zero.fp16_partitioned_groups_flat_numel[number]:
                raise InputError(
                    f"the checkpoint belongs to another model: group {number} has {weights.numel()} weights here",
                    code="checkpoint-model-differs",
                    remedy="resume with the recipe that wrote it",
                    where=directory,
                )
            with self._in_memory(number, changes=True):
                flat.data.copy_(weights)
                self._zero.optimizer.state[flat] = stored
                self._zero._reassign_or_swap_out_partitioned_parameters(number)

    @contextmanager
    def _in_memory(self, number: int, *, changes: bool = False) -> Iterator[None]:
        """Read group `number` from the disk if it is offloaded, and write it back after the context if it changes."""
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

    def _save_group(self, tensors: dict[str, torch.Tensor], own: Path, number: int) -> None:
        try:
            save_file(tensors, _group_file(own, number))
        except (OSError, SafetensorError):
            # The library's exceptions hide the error of the disk: write to it to find that error.
            probe_disk(own)
            raise


def _share_of_rank(directory: Path) -> Path:
    return directory / f"zero_rank_{dist.get_rank()}"


def _group_file(own: Path, group: int) -> Path:
    return own / f"group_{group}.safetensors"


def _load_group(file: Path, directory: Path) -> dict[str, torch.Tensor]:
    try:
        tensors: dict[str, torch.Tensor] = load_file(file)
    except (OSError, SafetensorError) as error:
        raise damaged_checkpoint(directory, error) from error
    if _WEIGHTS not in tensors:
        raise damaged_checkpoint(directory, f"{file.name} contains no weights")
    return tensors
