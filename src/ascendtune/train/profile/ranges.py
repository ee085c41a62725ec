"""Names in a trace: ranges of phases, of modules, and of calls in which the host waits for the device.

They are installed in profiled steps only. `check/profile` recognises them by their prefix.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import record_function

_NAMED_MODULES = re.compile(r"Norm|Attention$|MLP|FeedForward|Experts|MoE|Moe|Rotary")
_WAITING_METHODS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero")
"""Methods of a tensor that return only after the device has computed it."""
_SHOWN_PARTS = 3


def named_range(kind: str, name: str) -> record_function:
    """A range `ascendtune:KIND NAME` in the trace."""
    return record_function(f"ascendtune:{kind} {name}")


@contextmanager
def module_ranges(model: nn.Module) -> Iterator[None]:
    """Context with a range, named by class, for each forward pass of norms, attention, feed-forward and rotary."""
    opened: list[record_function] = []

    def enter(module: nn.Module, _arguments: Any) -> None:
        opened.append(named_range("module", type(module).__name__))
        opened[-1].__enter__()

    def leave(_module: nn.Module, _arguments: Any, _output: Any) -> None:
        opened.pop().__exit__(None, None, None)

    with ExitStack() as hooks:
        for module in model.modules():
            if _NAMED_MODULES.search(type(module).__name__):
                hooks.callback(module.register_forward_pre_hook(enter).remove)
                # Also after an exception: the ranges must stay nested.
                hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield


@contextmanager
def host_sync_ranges() -> Iterator[None]:
    """Context with a range `ascendtune:sync FILE:LINE` for each call of a tensor method that waits for the device."""
    with ExitStack() as replaced:
        for name in _WAITING_METHODS:
            if name not in vars(torch.Tensor):
                # The method is inherited from torch's C class: deleting this one restores it.
                setattr(torch.Tensor, name, _with_place(getattr(torch.Tensor, name)))
                replaced.callback(delattr, torch.Tensor, name)
        yield


@contextmanager
def garbage_collection_ranges() -> Iterator[None]:
    """Context with a range `ascendtune:phase garbage collection` for each collection of older generations."""
    opened: list[record_function] = []

    def follow(moment: str, facts: dict[str, int]) -> None:
        if moment == "start" and facts["generation"] > 0:
            opened.append(named_range("phase", "garbage collection"))
            opened[-1].__enter__()
        elif moment == "stop" and opened:
            opened.pop().__exit__(None, None, None)

    gc.callbacks.append(follow)
    try:
        yield
    finally:
        gc.callbacks.remove(follow)


def _with_place(method: Callable[..., Any]) -> Callable[..., Any]:
    def waiting_method(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        caller = sys._getframe(1)
        place = "/".join(Path(caller.f_code.co_filename).parts[-_SHOWN_PARTS:])
        with named_range("sync", f"{place}:{caller.f_lineno}"):
            return method(tensor, *arguments, **named)

    return waiting_method
