"""Bytes of live tensors over time, by moment and category, of tensors without content."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ascendtune.core.replaced import replaced

# Operators that allocate a temporary copy of their input (ATen/native/ReduceOps.cpp of torch 2.13).
_COPYING = {torch.ops.aten.logsumexp.default}

_READING = torch.ops.aten._local_scalar_dense.default
# Available from torch 2.8 on.
_GROUPED_PRODUCT = getattr(getattr(torch.ops.aten, "_grouped_mm", None), "default", None)

Bytes = Counter[str]
"""Category -> bytes."""
_ENTER = torch.ops.profiler._record_function_enter_new.default
_EXIT = torch.ops.profiler._record_function_exit._RecordFunction
_GATHERING = "FSDP::all_gather"
"""Prefix of the profiler ranges in which torch's FSDP allocates gathered weights."""


@dataclass(frozen=True)
class StepMemory:
    """Memory of one rank during a training step, and the size of its model."""

    moments: dict[str, Bytes]
    """Moment of a step -> bytes by category at the peak of this moment."""
    resting: Bytes
    """Bytes between two steps."""
    parameters: int
    trainable: int
    layers: int
    how: str
    """The method of the estimate, for the report."""
    offloaded: int = 0
    """Bytes of saved tensors in host memory between forward and backward pass."""


class LiveBytes(TorchDispatchMode):
    """Counts the storages of all tensors that operators return, from creation until the last reference is gone.

    Memory that a kernel allocates and frees within one operator is not counted, except for `_COPYING`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peaks: dict[str, Bytes] = {}
        """Moment -> live bytes at its peak."""
        self._moment = self._category = "model"
        self._live: dict[int, tuple[weakref.ref[torch.UntypedStorage], str, int]] = {}
        self._now: Bytes = Counter()
        self._total = 0
        self._highest: Counter[str] = Counter()
        self._gathers: list[bool] = []
        """For each open range of torch's profiler, whether FSDP gathers weights in it."""
        self._reads_one = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outcome: Any
        if function is _GROUPED_PRODUCT:
            outcome = _grouped_product(*args, **(kwargs or {}))
        elif function is _READING and self._reads_one:
            outcome = 1.0
        else:
            outcome = function(*args, **(kwargs or {}))
        if function is _ENTER:
            self._gathers.append(args[0].startswith(_GATHERING))
        elif function is _EXIT and self._gathers:
            self._gathers.pop()
        for each in tree_leaves(outcome):
            if isinstance(each, torch.Tensor):
                self.add(each)
        if function in _COPYING:
            self._note(args[0].nbytes)
        return outcome

    def enter(self, moment: str, category: str | None = None) -> None:
        """Begin `moment`: peaks count for it from now on, and new storages for `category`."""
        self._moment, self._category = moment, category or self._category
        self._note()

    def add(self, tensor: torch.Tensor, category: str | None = None) -> None:
        """Count the storage of `tensor`, any shape, on this rank; move it to `category` if it is already counted."""
        storage = (tensor._local_tensor if isinstance(tensor, DTensor) else tensor).untyped_storage()
        key = storage._cdata
        if key in self._live:
            if category is not None:
                reference, old, size = self._live[key]
                self._now[old] -= size
                self._now[category] += size
                self._live[key] = reference, category, size
            return
        category = category or ("communication" if any(self._gathers) else self._category)
        self._live[key] = weakref.ref(storage, lambda _: self._drop(key)), category, 0
        self._resize(key, storage.nbytes())

    @contextmanager
    def reading_one(self) -> Iterator[None]:
        """Context in which reading a tensor on the host returns 1: correct if only tensors' content depends on it."""
        self._reads_one = True
        try:
            yield
        finally:
            self._reads_one = False

    def now(self) -> Bytes:
        """Live bytes."""
        return Counter(self._now)

    @contextmanager
    def follow_resizing(self) -> Iterator[None]:
        """Context in which storages that are emptied and refilled (as FSDP does) are tracked."""
        original: Callable[..., Any] = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            outcome = original(storage, size)
            if storage._cdata in self._live:
                self._resize(storage._cdata, size)
            return outcome

        with replaced(torch.UntypedStorage, resize_=resize):
            yield

    def _resize(self, key: int, size: int) -> None:
        reference, category, old = self._live[key]
        self._live[key] = reference, category, size
        self._now[category] += size - old
        self._total += size - old
        self._note()

    def _drop(self, key: int) -> None:
        _, category, size = self._live.pop(key)
        self._now[category] -= size
        self._total -= size

    def _note(self, within_operator: int = 0) -> None:
        total = self._total + within_operator
        if total > self._highest[self._moment] or self._moment not in self.peaks:
            self._highest[self._moment] = total
            self.peaks[self._moment] = self._now + Counter({self._category: within_operator})


def _grouped_product(
    one: torch.Tensor, other: torch.Tensor, offs: torch.Tensor | None = None, *_: Any, **__: Any
) -> torch.Tensor:
    """A result of torch's `_grouped_mm`, whose own implementation without content accepts bf16 only (torch 2.13).

    (rows, in) × (groups, in, out) is (rows, out); (out, rows) × (rows, in), with groups of rows, (groups, out, in).
    """
    if one.ndim == other.ndim == 2:
        assert offs is not None
        return one.new_empty((len(offs), len(one), other.shape[1]))
    groups = one.shape[:1] if one.ndim == other.ndim else ()
    return one.new_empty((*groups, one.shape[-2], other.shape[-1]))
