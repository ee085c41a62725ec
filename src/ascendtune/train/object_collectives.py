"""The pickles that ranks may send each other.

torch's object collectives, by which torch.distributed.checkpoint plans what each rank writes and reads, unpickle what
comes from another rank. Gloo does not authenticate ranks: any process that reaches its port can pretend to be one.
A pickle that names anything but plain data, plans of checkpoints and exceptions is refused here before it is executed.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

from ascendtune.core.errors import MachineError

_PLANS = "torch.distributed.checkpoint"
_ALLOWED = {
    "collections": {"OrderedDict"},
    "torch": {"Size", "device"},
    "torch.serialization": {"_get_layout"},
    "pathlib": {"PosixPath"},
    "pathlib._local": {"PosixPath"},
    "traceback": {"FrameSummary", "StackSummary"},
    f"{_PLANS}.filesystem": {"_StorageInfo", "_StoragePrefix"},
    f"{_PLANS}.metadata": {
        *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta"),
        *("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
    },
    f"{_PLANS}.planner": {
        *("BytesIOWriteData", "LoadItemType", "LoadPlan", "ReadItem", "SavePlan", "TensorWriteData"),
        *("WriteItem", "WriteItemType"),
    },
    f"{_PLANS}.storage": {"WriteResult"},
}


class PlansUnpickler(pickle.Unpickler):
    """Unpickles plain data, plans of checkpoints, and exceptions, which report that a rank has failed."""

    def find_class(self, module: str, name: str) -> Any:
        """The object `name` of `module`.

        Raises:
            MachineError: it is not one that ranks send each other.
        """
        if name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        # Nothing is imported for its sake, and a name with dots, which leads through attributes, is not in there.
        found = vars(sys.modules[module]).get(name) if module in sys.modules else None
        if isinstance(found, type) and issubclass(found, BaseException):
            return found
        if module == "torch" and isinstance(found, torch.dtype | torch.layout | torch.memory_format):
            return found
        raise MachineError(
            f"a message that should come from another rank is a pickle that would run {module}.{name}; it was not run",
            code="foreign-pickle",
            remedy="find out who can reach the ports of this job: the network between ranks must be trusted",
        )


def refuse_foreign_pickles() -> None:
    """Let every object collective of this process unpickle by `PlansUnpickler`."""
    # torch names it once, for exactly this use.
    c10d._unpickler = PlansUnpickler
