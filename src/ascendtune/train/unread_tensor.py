"""Tensors of weight files that have not been read: transformers loads and converts them as if they had been.

Each operation on an `UnreadTensor` is carried out for shape and dtype only, and results in another one that remembers
it. So the cast of a weight, and the conversion of the experts of a mixture to one tensor, are computed later, weight by
weight, by the operations that transformers chose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from ascendtune.core.replaced import replaced
from ascendtune.hub.safetensors_header import TORCH_NAMES, StoredTensor
from ascendtune.hub.weight_files import read_weight_headers

Read = Callable[[str], torch.Tensor]
"""Reads a tensor of the files, by its name."""
_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, each) for name, each in TORCH_NAMES.items()}
_IN_PLACE = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__set__"}
_SET_DATA: Any = getattr(torch.Tensor, "data").__set__  # noqa: B009
# These change no values.
_SETTERS = [getattr(torch.Tensor, name).__set__ for name in ("requires_grad", "grad")]


class UnreadWeights:
    """The weight files of a model.

    Raises:
        RecipeError: files are missing or damaged.
        MachineError: permission is denied, or the disk fails.
    """

    def __init__(self, directory: Path) -> None:
        self._headers = {directory / file: header for file, header in read_weight_headers(directory).items()}
        self._files = {name: file for file, header in self._headers.items() for name in header.tensors}
        self.values_needed = False
        """Whether an operation needed, or changed, the content of an unread tensor: the result cannot be used."""

    @contextmanager
    def in_place_of_files(self) -> Iterator[None]:
        """Context in which transformers loads unread tensors in place of those in the files."""
        from transformers import modeling_utils

        def open_unread(file: Any, **_options: Any) -> _File:
            return _File(self, self._headers[Path(file)].tensors)

        with replaced(modeling_utils, safe_open=open_unread):
            yield

    @contextmanager
    def open(self) -> Iterator[Read]:
        """Context in which tensors can be read; each file is opened once. They are views of the mapped files."""
        with ExitStack() as stack:
            opened: dict[Path, Any] = {}

            def read(name: str) -> torch.Tensor:
                path = self._files[name]
                if path not in opened:
                    opened[path] = stack.enter_context(safe_open(path, framework="pt"))
                tensor: torch.Tensor = opened[path].get_tensor(name)
                return tensor

            yield read


class _File:
    """The part of safetensors' `safe_open` that transformers uses."""

    def __init__(self, weights: UnreadWeights, tensors: Mapping[str, StoredTensor]) -> None:
        self._weights, self._tensors = weights, tensors

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to close."""

    def keys(self) -> list[str]:
        return list(self._tensors)

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._weights, name, self._tensors[name])


class _Slice:
    """The part of safetensors' slices that transformers uses."""

    def __init__(self, weights: UnreadWeights, name: str, stored: StoredTensor) -> None:
        self._weights, self._name, self._stored = weights, name, stored

    def get_shape(self) -> list[int]:
        return list(self._stored.shape)

    def get_dtype(self) -> str:
        return self._stored.dtype

    def __getitem__(self, index: Any) -> torch.Tensor:
        """The tensor, if `index` is `...`."""
        if self._stored.dtype not in _DTYPES:
            self._weights.values_needed = True
        meta = torch.empty(self._stored.shape, dtype=_DTYPES.get(self._stored.dtype, torch.uint8), device="meta")
        tensor = _unread(meta, self._weights, lambda read: read(self._name))
        return tensor if index is ... else tensor[index]


class UnreadTensor(torch.Tensor):
    """A tensor on the meta device, which says that it is on the host."""

    weights: UnreadWeights
    compute: Callable[[Read], torch.Tensor]
    """Computes the content, of the same shape and dtype."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        options = dict(options or {})
        name, weights = getattr(function, "__name__", ""), _weights_of([arguments, options])
        if weights is None or function == torch.Tensor.device.__get__:
            return torch.device("cpu")
        if function is torch.equal:
            # Of tables that the config ties, and both of which are in the files.
            with weights.open() as read:
                return torch.equal(*(_content(_remembered(each), read) for each in arguments))
        if function is torch.Tensor.to:
            return _cast(arguments[0], *arguments[1:], **options)
        if name.endswith("_like"):
            # Only shape and dtype matter. Random numbers are drawn, as after reading.
            return function(torch.empty(arguments[0].shape, dtype=arguments[0].dtype), *arguments[1:], **options)
        if function == _SET_DATA and all(isinstance(each, UnreadTensor) for each in arguments):
            tensor, value = arguments
            tensor.compute = value.compute
        elif _changes_values(function, name) or "out" in options:
            weights.values_needed = True
        try:
            with torch._C.DisableTorchFunctionSubclass():
                result = function(*_on_meta(arguments), **_on_meta(options))
        except Exception:
            weights.values_needed = True
            raise
        if any(result is each for each in arguments):
            return result
        return _remembering(result, weights, function, _remembered(arguments), _remembered(options))


def _changes_values(function: Any, name: str) -> bool:
    if name == "requires_grad_" or function in _SETTERS:
        return False
    return name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))


def _remembering(
    result: Any, weights: UnreadWeights, function: Any, arguments: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """`result`, a tensor or several, with the call that computes its content; other results as they are."""

    def compute(read: Read) -> Any:
        return function(*_content(arguments, read), **_content(options, read))

    def compute_part(part: int, read: Read) -> Any:
        return compute(read)[part]

    if isinstance(result, torch.Tensor):
        return _unread(result, weights, compute)
    if type(result) in (tuple, list) and any(isinstance(each, torch.Tensor) for each in result):
        parts = (_unread(each, weights, partial(compute_part, number)) for number, each in enumerate(result))
        return type(result)(parts)
    return result


def _unread(meta: torch.Tensor, weights: UnreadWeights, compute: Callable[[Read], torch.Tensor]) -> UnreadTensor:
    tensor = meta.as_subclass(UnreadTensor)
    tensor.weights, tensor.compute = weights, compute
    return tensor


def _cast(tensor: UnreadTensor, *arguments: Any, **options: Any) -> UnreadTensor:
    """`tensor.to(…)` without the device."""
    dtype = next((each for each in (*arguments, *options.values()) if isinstance(each, torch.dtype)), tensor.dtype)
    if dtype == tensor.dtype:
        return tensor
    compute = tensor.compute
    meta = torch.empty(tensor.shape, dtype=dtype, device="meta")
    return _unread(meta, tensor.weights, lambda read: in_own_pages(compute(read), dtype))


def in_own_pages(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`weight`, any shape, in `dtype`, in memory pages that return to the system when the tensor is freed.

    On the heap, allocations that outlive a block would keep the freed memory around them in the process.
    """
    if weight.dtype == dtype or not weight.numel():
        return weight.to(dtype)
    pages = mmap(-1, weight.numel() * dtype.itemsize, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype, count=weight.numel()).view(weight.shape).copy_(weight)


def _weights_of(value: Any) -> UnreadWeights | None:
    """The files of the first unread tensor in `value`, which may be nested."""
    if isinstance(value, UnreadTensor):
        return value.weights
    nested = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next((found for each in nested if (found := _weights_of(each)) is not None), None)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value`, which may be nested, with `change` applied to each of its parts."""
    if isinstance(value, dict):
        return {name: _each(each, change) for name, each in value.items()}
    return type(value)(_each(each, change) for each in value) if type(value) in (list, tuple) else change(value)


def _on_meta(value: Any) -> Any:
    """`value`, whose unread tensors are on the meta device, with its other tensors there, too."""

    def moved(each: Any) -> Any:
        return each.to("meta") if isinstance(each, torch.Tensor) and not isinstance(each, UnreadTensor) else each

    return _each(value, moved)


@dataclass(frozen=True)
class _Remembered:
    """The content of an unread tensor when it was used: it may be assigned other data later."""

    compute: Callable[[Read], torch.Tensor]


def _remembered(value: Any) -> Any:
    return _each(value, lambda each: _Remembered(each.compute) if isinstance(each, UnreadTensor) else each)


def _content(value: Any, read: Read) -> Any:
    """`value`, a result of `_remembered`, with the content of its tensors."""
    return _each(value, lambda each: each.compute(read) if isinstance(each, _Remembered) else each)
