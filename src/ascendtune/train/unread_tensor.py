"""Tensors of weight files that have not been read: transformers loads and converts them as if they had been.

Each operation on an `UnreadTensor` is carried out for shape and dtype only, and results in another one that remembers
it. So the cast of a weight, and the conversion of the experts of a mixture to one tensor, are computed later, weight by
weight, by the operations that transformers chose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from ascendtune.core.replaced import replaced
from ascendtune.hub.safetensors_header import StoredTensor
from ascendtune.hub.weight_files import read_weight_headers

Read = Callable[[str], torch.Tensor]
"""Reads a tensor of the files, by its name."""
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_IN_PLACE = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__set__"}
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
        weights = _weights_of([arguments, options])
        if weights is None or function == torch.Tensor.device.__get__:
            return torch.device("cpu")
        if function is torch.equal:
            # Of tables that the config ties, and both of which are in the files.
            with weights.open() as read:
                return torch.equal(*(_computed(each, read) for each in arguments))
        if function is torch.Tensor.to:
            return _cast(arguments[0], weights, *arguments[1:], **options)
        name = getattr(function, "__name__", "")
        changes = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__") and name != "requires_grad_")
        if (changes and function not in _SETTERS) or "out" in options:
            weights.values_needed = True
        try:
            with torch._C.DisableTorchFunctionSubclass():
                result = function(*arguments, **options)
        except Exception:
            weights.values_needed = True
            raise
        if any(result is each for each in arguments):
            return result

        def computed(read: Read) -> Any:
            return function(*_computed(arguments, read), **_computed(options, read))

        if isinstance(result, torch.Tensor):
            return _unread(result, weights, computed)
        if type(result) in (tuple, list) and any(isinstance(each, torch.Tensor) for each in result):
            return type(result)(
                _unread(each, weights, partial(_part, computed, part)) for part, each in enumerate(result)
            )
        return result


def _unread(meta: torch.Tensor, weights: UnreadWeights, compute: Callable[[Read], torch.Tensor]) -> UnreadTensor:
    tensor = meta.as_subclass(UnreadTensor)
    tensor.weights, tensor.compute = weights, compute
    return tensor


def _part(computed: Callable[[Read], Any], part: int, read: Read) -> torch.Tensor:
    result: torch.Tensor = computed(read)[part]
    return result


def _cast(tensor: UnreadTensor, weights: UnreadWeights, *arguments: Any, **options: Any) -> UnreadTensor:
    """`tensor.to(…)` without the device."""
    dtype = next((each for each in (*arguments, *options.values()) if isinstance(each, torch.dtype)), tensor.dtype)
    if dtype == tensor.dtype:
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        meta = torch.empty_like(tensor, dtype=dtype)
    return _unread(meta, weights, lambda read: in_own_pages(tensor.compute(read), dtype))


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


def _computed(value: Any, read: Read) -> Any:
    """`value`, which may be nested, with the content of its unread tensors."""
    if isinstance(value, UnreadTensor):
        return value.compute(read)
    if isinstance(value, dict):
        return {name: _computed(each, read) for name, each in value.items()}
    return type(value)(_computed(each, read) for each in value) if type(value) in (list, tuple) else value
