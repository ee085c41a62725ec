"""State that ZeRO keeps on a disk: what must be there for it, where its files are, how large its buffers must be."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from torch import nn

from ascendtune.core.errors import MachineError, RecipeError, translated_disk_errors
from ascendtune.core.files import file_lock
from ascendtune.core.log import say
from ascendtune.recipe.deepspeed_config import Config, parts_on_disk

_PREFIX = "ascendtune-swap-"


def require_disk(config: Config, *, compute: str) -> None:
    """Raise unless DeepSpeed can keep on a disk what `config` wants there.

    Args:
        compute: fp32, bf16 or fp16.

    Raises:
        MachineError: its operator for files cannot be built here.
        RecipeError: weights would lose digits on their way.
    """
    from deepspeed.accelerator import get_accelerator
    from deepspeed.ops.op_builder import AsyncIOBuilder

    # 0.19, Init._set_dtype in runtime/zero/partition_parameters.py: bf16 where there is no fp16, whatever it was given.
    rounds = compute == "fp32" and not get_accelerator().is_fp16_supported()
    if rounds and "offload_param" in parts_on_disk(config):
        raise RecipeError(
            "on a device without fp16 DeepSpeed writes weights to the disk in bf16, and this run's are fp32",
            remedy="set precision: bf16, or parallel.deepspeed.offload_param: cpu",
        )
    operator = AsyncIOBuilder()
    if not operator.is_compatible():
        raise MachineError(
            "keeping state on a disk needs the headers of libaio, which are not installed",
            remedy="apt-get install libaio-dev, or dnf install libaio-devel; or offload to cpu",
        )
    if not Path(os.environ["TORCH_EXTENSIONS_DIR"], operator.name).exists():
        say("DeepSpeed builds its operator for files; this takes minutes, the first time")


def fit_buffers(config: Config, objective: nn.Module, *, ranks: int) -> None:
    """Make buffers for weights that come from a disk as large as the largest share that a rank has of one.

    DeepSpeed's own, 100 million elements, are too small for some embeddings, and gigabytes too large for most models.
    """
    if "offload_param" in parts_on_disk(config):
        largest = max(math.ceil(each.numel() / ranks) for each in objective.parameters())
        config["zero_optimization"]["offload_param"].setdefault("buffer_size", largest)


@contextmanager
def swap_directories(config: Config) -> Iterator[None]:
    """Give this process directories of its own below those that `config` names; they go with it.

    What killed processes have left goes too: each holds a lock on its directory as long as it lives.

    Raises:
        MachineError: a directory is not there, or cannot be written.
    """
    with ExitStack() as held:
        for part in parts_on_disk(config):
            section = config["zero_optimization"][part]
            section["nvme_path"] = str(_own(Path(section["nvme_path"]), held))
        yield


def _own(parent: Path, held: ExitStack) -> Path:
    if not parent.is_dir():
        raise MachineError(
            "parallel.deepspeed.nvme_path is no directory here",
            remedy="make it, on every host, on a fast local disk",
            where=parent,
        )
    lock = parent / f".ascendtune-{os.getuid()}.lock"
    with translated_disk_errors(parent, "making a directory to swap to"), file_lock(lock, wait=True):
        _sweep(parent)
        own = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        held.callback(shutil.rmtree, own, ignore_errors=True)
        held.enter_context(file_lock(own / "lock", wait=True))
    return own


def _sweep(parent: Path) -> None:
    for other in parent.glob(f"{_PREFIX}*"):
        if other.stat().st_uid == os.getuid():
            with file_lock(other / "lock", wait=False) as is_nobodys:
                if is_nobodys:
                    shutil.rmtree(other, ignore_errors=True)
