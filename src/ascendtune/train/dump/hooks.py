"""Hooks on the modules of a model: their inputs, outputs, and the gradients of their outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from ascendtune.train.dump.names import plain_modules
from ascendtune.train.dump.record import StepRecord, tensors_in


class ModuleHooks:
    """Adds inputs, outputs and output gradients of `model`'s modules to `record` until `remove` is called.

    If activation checkpointing repeats a forward pass, only the first one is recorded. Each call of the outermost
    module begins a micro-batch; forward passes without gradients are not part of the step.

    Args:
        left_out: modules that are not recorded, with their submodules.
    """

    def __init__(self, model: nn.Module, record: StepRecord, left_out: Collection[nn.Module] = ()) -> None:
        self._record = record
        self._calls: list[_Call] = []
        self._is_measuring = False
        self._operators = ExitStack()
        self._handles: list[RemovableHandle] = []
        self._outermost: nn.Module | None = None
        self._micro_batch_count = 0
        self._is_ignored = False
        skipped = {below for module in left_out for below in module.modules()}
        for name, module in plain_modules(model).items():
            if module not in skipped:
                after = self._after(name, kind_of(module), is_leaf=not any(True for _ in module.children()))
                self._handles += [
                    module.register_forward_pre_hook(self._before(name)),
                    module.register_forward_hook(after, with_kwargs=True),
                ]
        if record.header["level"] == "op":
            self._operators.enter_context(_Operators(self._add_operator))

    def remove(self) -> None:
        """Remove the hooks, so that other steps have no overhead."""
        self._operators.close()
        for handle in self._handles:
            handle.remove()

    def enter(self, module: nn.Module, name: str = "") -> None:
        """Note that the forward pass of `module` begins."""
        if is_in_backward():
            return
        if not self._calls:
            self._is_ignored = not torch.is_grad_enabled()
            if not self._is_ignored and self._outermost in (None, module):
                self._outermost = module
                self._record.micro_batch = self._micro_batch_count
                self._micro_batch_count += 1
        self._calls.append(_Call(name))

    def _before(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, _inputs: Any) -> None:
            self.enter(module, name)

        return hook

    def _after(self, name: str, kind: str, *, is_leaf: bool) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, named: Mapping[str, Any], output: Any) -> None:
            repeated = is_in_backward()
            if not repeated:
                self._calls.pop()
                if self._is_ignored:
                    return
                if module is self._outermost and isinstance(mask := named.get("attention_mask"), torch.Tensor):
                    self._record.add_padding(mask)
            if isinstance(module, nn.Embedding) and not repeated:
                for _, ids in tensors_in((inputs, named), "input"):
                    self._record.add_token_ids(ids)
            if is_leaf and not repeated:
                self._add("forward", name, kind, "input", inputs)
                self._add("forward", name, kind, "input", named)
            if not repeated:
                self._add("forward", name, kind, "output", output)
            self._watch_gradients(name, kind, output)

        return hook

    def _add(self, phase: str, name: str, kind: str, slot: str, value: Any) -> None:
        self._is_measuring = True
        for where, tensor in tensors_in(value, slot):
            self._record.add(phase, name, where, kind, tensor, micro_batch=self._record.micro_batch)
        self._is_measuring = False

    def _add_operator(self, operator: str, result: Any) -> None:
        """Record the result of an operator called by the innermost running module."""
        if self._calls and not self._is_measuring and not self._is_ignored and not is_in_backward():
            call = self._calls[-1]
            self._add("forward", call.name, operator, f"op.{call.operators}.{operator}", result)
            call.operators += 1

    def _watch_gradients(self, name: str, kind: str, output: Any) -> None:
        """Record the gradients of outputs once they are computed.

        The hooks are also registered in a repeated forward pass: reentrant checkpointing computes gradients for that
        one only, non-reentrant for the first one only.
        """
        number = self._record.micro_batch
        for slot, tensor in tensors_in(output, "output"):
            if tensor.requires_grad:

                def hook(gradient: torch.Tensor, slot: str = slot) -> None:
                    self._record.add("backward", name, slot, kind, gradient, micro_batch=number)

                self._handles.append(tensor.register_hook(hook))


@dataclass
class _Call:
    """A running forward pass."""

    name: str
    operators: int = 0
    """Number of operators that it has called."""


_WITHOUT_CONTENT = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
"""Operators that return uninitialised memory."""


class _Operators(TorchDispatchMode):
    """Calls `note(name, result)` after each operator that computes; views and uninitialised memory are skipped."""

    def __init__(self, note: Callable[[str, Any], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note = note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        operator = func.overloadpacket.__name__
        if not func.is_view and operator not in _WITHOUT_CONTENT:
            self._note(operator, result)
        return result


def kind_of(module: nn.Module) -> str:
    """The class name of `module`, without FSDP2's prefix."""
    name = type(module).__name__
    return name.removeprefix("FSDP") if isinstance(module, FSDPModule) else name


def is_in_backward() -> bool:
    """Whether this thread computes gradients: a forward pass is then one that checkpointing repeats."""
    return torch._C._current_graph_task_id() != -1
