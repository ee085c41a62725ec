"""The pickles that ranks may send to each other.

torch's object collectives unpickle data from other ranks. Gloo does not authenticate ranks: any process that can
connect to its port can impersonate one. A pickle that refers to anything but plain data is refused and not executed.
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
    """Unpickles plain data: numbers, strings, collections of them, and dtypes and sizes of tensors."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the object `name` of `module`.

        Raises:
            MachineError: ranks never send this object.
        """
        if name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        # Nothing is imported here; and a dotted name, which would follow attributes, is not a key of the module's dict.
        value = vars(sys.modules[module]).get(name) if module in sys.modules else None
        if module == "torch" and isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return value
        raise MachineError(
            f"a message that should come from another rank is a pickle that would run {module}.{name}; it was not run",
            code="foreign-pickle",
            remedy="find out who can reach the ports of this job: the network between ranks must be trusted",
        )


def refuse_foreign_pickles() -> None:
    """Make every object collective of this process unpickle with `PlainUnpickler`."""
    # This is torch's only reference to its unpickler in these collectives.
    c10d._unpickler = PlainUnpickler
