"""The pickles that ranks may send each other.

torch's object collectives unpickle what comes from another rank. Gloo does not authenticate ranks: any process that
reaches its port can pretend to be one. A pickle that names anything but plain data is refused before it is executed.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

from ascendtune.core.errors import MachineError

_ALLOWED = {"collections": {"OrderedDict"}, "torch": {"Size", "device"}}


class PlainUnpickler(pickle.Unpickler):
    """Unpickles plain data: numbers, texts, collections of them, and types and sizes of tensors."""

    def find_class(self, module: str, name: str) -> Any:
        """The object `name` of `module`.

        Raises:
            MachineError: it is not one that ranks send each other.
        """
        if name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        # Nothing is imported for its sake, and a name with dots, which leads through attributes, is not in there.
        found = vars(sys.modules[module]).get(name) if module in sys.modules else None
        if module == "torch" and isinstance(found, torch.dtype | torch.layout | torch.memory_format):
            return found
        raise MachineError(
            f"a message that should come from another rank is a pickle that would run {module}.{name}; it was not run",
            code="foreign-pickle",
            remedy="find out who can reach the ports of this job: the network between ranks must be trusted",
        )


def refuse_foreign_pickles() -> None:
    """Let every object collective of this process unpickle by `PlainUnpickler`."""
    # torch names it once, for exactly this use.
    c10d._unpickler = PlainUnpickler
