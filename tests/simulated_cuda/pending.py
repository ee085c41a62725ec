"""Pending work of the device, and the places where the host waits for it."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable

import torch

_GARBAGE = 77
_pending: list[Callable[[], None]] = []
"""Copies that arrive, and checks that are made, when the device is waited for."""
_pinned: set[int] = set()
"""Addresses of memory whose pages are locked."""
_kept: list[torch.Tensor] = []
"""Pinned memory stays: an address that is given out again would count as pinned."""
_reports = "default"


def wait(why: str) -> None:
    """The host waits for the device."""
    if _reports == "warn":
        frames = [each for each in traceback.extract_stack() if "/ascendtune/" in each.filename]
        place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        warnings.warn(f"called a synchronizing CUDA operation: {why}{place}", stacklevel=2)
    drain()


def drain() -> None:
    """Everything that was queued runs."""
    pending = _pending[:]
    _pending.clear()
    for each in pending:
        each()


def set_sync_debug_mode(mode: str) -> None:
    """`torch.cuda.set_sync_debug_mode`."""
    global _reports
    _reports = mode


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, any shape on the host, whose memory counts as pinned from now on."""
    _kept.append(tensor)
    _pinned.add(tensor.untyped_storage().data_ptr())
    return tensor


def pin_address(address: int) -> None:
    _pinned.add(address)


def unpin_address(address: int) -> None:
    _pinned.discard(address)


def is_pinned(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() in _pinned


def arrive_later(target: torch.Tensor, values: torch.Tensor) -> None:
    """`target` on the host gets `values` of the same shape when the device is waited for; until then it is garbage."""

    def arrive() -> None:
        target.copy_(values)

    target.fill_(_GARBAGE)
    _pending.append(arrive)


def require_unchanged(source: torch.Tensor) -> None:
    """`source`, any shape on the host, which the device may read at any time until it is waited for."""
    bits = source.contiguous().view(torch.uint8) if source.ndim else source.reshape(1).view(torch.uint8)
    before = bits.clone()

    def check() -> None:
        now = source.contiguous().view(torch.uint8) if source.ndim else source.reshape(1).view(torch.uint8)
        if not torch.equal(now, before):
            raise AssertionError(f"memory {tuple(source.shape)} was changed while a copy to the device could read it")

    _pending.append(check)
