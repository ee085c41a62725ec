"""Tensors on `cuda:0` that hold memory of the host, and the operators that make and take them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

from simulated_cuda.pending import arrive_later, drain, is_pinned, pin, require_unchanged, wait

CUDA = torch.device("cuda", 0)
_WAITING = {
    "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::is_nonzero",
    "aten::_unique", "aten::_unique2", "aten::unique_consecutive", "aten::unique_dim", "aten::bincount",
}  # fmt: skip
"""Operators whose result is on the host, or has a shape that only the device knows."""
_TAKING_BOTH = {
    "aten::copy_", "aten::_to_copy", "aten::set_", "aten::lift_fresh", "aten::index", "aten::index_put",
    "aten::index_put_", "aten::_index_put_impl_", "aten::split_with_sizes_copy",
}  # fmt: skip
"""Operators that CUDA lets have operands on the host."""

Operator = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
OPERATORS: dict[str, Operator] = {}
"""Those that the CPU does not have in this form."""


class OnCuda(torch.Tensor):
    """Any shape and dtype; `inner` is the same on the CPU."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> OnCuda:
        assert type(inner) is torch.Tensor and inner.device.type == "cpu", (type(inner), inner.device)
        made: OnCuda = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            layout=inner.layout, device=CUDA,
        )  # fmt: skip
        made.inner = inner
        return made

    def __init__(self, inner: torch.Tensor) -> None: ...

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{self.inner!r} on {CUDA}"

    # With these two `module.to` exchanges parameters of the host for such ones.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], *_: Any) -> OnCuda:
        return OnCuda(inner["inner"])

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) not in memo:
            copied: Any = OnCuda(self.inner.clone()).requires_grad_(self.requires_grad)
            copied._is_param = getattr(self, "_is_param", False)
            memo[id(self)] = copied
        return memo[id(self)]  # type: ignore[no-any-return]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.tolist:
            wait("tolist")
            return args[0].inner.tolist()
        if function in (torch.Tensor.untyped_storage, torch.Tensor.data_ptr):
            return function(args[0].inner)
        with torch._C.DisableTorchFunctionSubclass():
            found = function(*args, **kwargs or {})
        if function is torch.Tensor.data.__set__:  # type: ignore[attr-defined]
            args[0].inner = args[1].inner
        return found

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(function, args, kwargs or {})


class Device(TorchDispatchMode):
    """Context in which tensors are made on the device; of one thread."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            return function(*args, **kwargs)
        tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
        if not all(map(_is_plain, tensors)):
            return NotImplemented
        if any(isinstance(each, OnCuda) for each in tensors) or _kind(kwargs) == "cuda":
            return compute(function, args, kwargs)
        if kwargs.get("pin_memory"):
            return pin(function(*args, **{**kwargs, "pin_memory": False}))
        return function(*args, **kwargs)


DEVICE = Device()
_entered = threading.local()


def use_in_thread() -> None:
    """`torch.cuda.set_device`: a thread that has not called it cannot make tensors on the device."""
    if threading.current_thread() is not threading.main_thread() and not getattr(_entered, "yes", False):
        _entered.yes = True
        DEVICE.__enter__()


def compute(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an operator of torch, with operands or a result on the device."""
    name: str = function._schema.name
    is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "CompositeImplicitAutograd")
    if is_composite and name not in OPERATORS:
        with DEVICE:
            return function.decompose(*args, **kwargs)
    tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
    if not all(map(_is_plain, tensors)):
        return NotImplemented
    of_device = [each for each in tensors if isinstance(each, OnCuda)]
    of_host = [each for each in tensors if not isinstance(each, OnCuda)]
    if of_device and name not in _TAKING_BOTH and any(each.ndim for each in of_host):
        shapes = [(tuple(each.shape), str(each.device)) for each in tensors]
        raise RuntimeError(f"Expected all tensors to be on the same device: {name} of {shapes}")
    if of_device:
        _wait_for_shapes(name, function, args, kwargs)
    if name in OPERATORS:
        return OPERATORS[name](function, args, kwargs)
    wanted = _kind(kwargs)
    own = {key: value for key, value in kwargs.items() if key != "pin_memory"}
    if wanted == "cuda":
        own["device"] = torch.device("cpu")
    if own.get("generator") is not None:
        own["generator"] = None
    found = function(*tree_map(inner_of, args), **tree_map(inner_of, own))
    if name == "aten::_to_copy":
        _copied(args[0], found, wanted, is_queued=bool(kwargs.get("non_blocking")))
    if wanted == "cpu" or not (of_device or wanted):
        return found
    # Conjugates and negatives are made at once: the wrapper would not know that its content is to be read as one.
    wrapped = tree_map(
        lambda each: OnCuda(each.resolve_conj().resolve_neg()) if type(each) is torch.Tensor else each, found
    )
    return _as_operands(function, args, kwargs, wrapped)


def inner_of(each: Any) -> Any:
    """A tensor of the device as one of the host; anything else as it is."""
    return each.inner if isinstance(each, OnCuda) else each


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its class leaves operators to torch, or is this device's."""
    return isinstance(tensor, OnCuda) or type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def _kind(kwargs: dict[str, Any]) -> str | None:
    return None if kwargs.get("device") is None else torch.device(kwargs["device"]).type


def _wait_for_shapes(name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    counts_on_device = name == "aten::repeat_interleave" and function._overloadname == "Tensor"
    if name in _WAITING or (counts_on_device and kwargs.get("output_size") is None):
        wait(name)
    if name in ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"):
        for each in args[1]:
            if each is not None and (each.dtype == torch.bool or not isinstance(each, OnCuda)):
                wait(f"{name} by a mask, or by numbers of the host")


def _copied(source: torch.Tensor, found: torch.Tensor, wanted: str | None, *, is_queued: bool) -> None:
    """Queue, or wait for, a copy between host and device that has been made."""
    if isinstance(source, OnCuda):
        if wanted == "cpu" and is_queued:
            # torch gets pinned memory for it: it comes later.
            arrive_later(pin(found), found.clone())
        elif wanted == "cpu":
            wait("copy to the host")
        return
    # In the order of the stream: what was on its way to this memory is there before it is read.
    drain()
    found.copy_(source)
    if is_queued and is_pinned(source):
        require_unchanged(source)
    else:
        wait("copy to the device")


def _as_operands(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> Any:
    """`found`, with the operands themselves where the operator wrote to them, and views that share their storage."""
    written: dict[int, OnCuda] = {}
    for position, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            for each in value if isinstance(value, list | tuple) else [value]:
                if isinstance(each, OnCuda):
                    if each.shape != each.inner.shape:
                        raise NotImplementedError(f"{function} changes the shape of its operand")
                    written[id(each.inner)] = each
    if written:
        return tree_map(lambda each: written.get(id(each.inner), each) if isinstance(each, OnCuda) else each, found)
    if any(each.alias_info is not None for each in function._schema.returns):
        return return_and_correct_aliasing(function, args, kwargs, found)
    return found
